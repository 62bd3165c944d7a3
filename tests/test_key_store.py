from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

import keyring
import pytest
from keyring.backend import KeyringBackend

from ohsandbox import key_store
from ohsandbox.errors import UsageError
from ohsandbox.key_store import is_reference, keyring_name, look_up_key, store_key
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class InMemory(KeyringBackend):
    """A keyring as a desktop has one."""

    priority: ClassVar[float] = 5
    name = "in memory"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # keyring's
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password


class Locked(InMemory):
    """One that nobody unlocks."""

    def set_password(self, *_: str) -> None:
        threading.Event().wait()


class PlainText(InMemory):
    priority = 0.5


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = keyring.get_keyring()
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))
    yield
    keyring.set_keyring(before)


def test_a_key_is_kept_in_the_keyring_and_found_by_its_reference() -> None:
    backend = InMemory()
    keyring.set_keyring(backend)
    stored = store_key("anthropic", "sk-1")
    assert stored.reference == "keyring:anthropic"
    assert backend.kept == {("ohsandbox", "anthropic"): "sk-1"}
    assert Settings(api_key=stored.reference).resolved_api_key() == "sk-1"
    assert keyring_name() == "in memory"


def test_a_keyring_that_keeps_plain_text_is_none() -> None:
    keyring.set_keyring(PlainText())
    assert store_key("a", "sk-1").reference.startswith("file:")
    assert keyring_name() is None


def test_a_keyring_that_never_answers_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "KEYRING_TIMEOUT_S", 0.2)
    keyring.set_keyring(Locked())
    reference = store_key("a", "sk-1").reference
    assert reference.startswith("file:")
    assert look_up_key(reference) == "sk-1"


@pytest.mark.parametrize("reference", ["keyring:none", "file:/none/here", "env:OHSANDBOX_TEST_NOT_SET"])
def test_a_key_that_is_not_there_is_one_line_that_names_the_setting(reference: str) -> None:
    keyring.set_keyring(InMemory())
    assert is_reference(reference)
    with pytest.raises(UsageError, match="api_key") as caught:
        look_up_key(reference)
    assert "\n" not in str(caught.value)
    assert reference.partition(":")[2] in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "", "a/b", "-x"])
def test_a_name_that_would_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="Invalid name"):
        store_key(name, "sk-1")


@pytest.mark.parametrize("key", ["", " ", "a\nb", "a\0b"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="newline"):
        store_key("a", key)
