from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.testing import FakeRuntime
from ohsandbox.timetravel import workspace_diff
from ohsandbox.timetravel.snapshots import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    monkeypatch.setattr(manifest, "MAX_FILE_BYTES", 4)
    with FakeRuntime() as runtime:
        yield runtime


def _names(fake: FakeRuntime) -> list[str]:
    return sorted(fake.run(["find", ".", "-type", "f"]).stdout.decode().splitlines())


@pytest.mark.parametrize("name", ["big", "a b/c\nd", "*", "-rf", "5\n./kept", "\udcff"])
def test_large_files_are_removed_and_named_whatever_their_names_and_no_other_is(fake: FakeRuntime, name: str) -> None:
    fake.write_bytes("kept", b"1234")
    before = _names(fake)
    fake.write_bytes(name, b"12345")
    assert workspace_diff._drop_large(fake, fake.workdir) == {name: "5 bytes, over the limit of 4"}
    assert _names(fake) == before


def test_more_large_files_than_can_be_named_are_refused(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_diff, "_MAX_NAMES_BYTES", 10)
    fake.write_bytes("large 1", b"12345")
    fake.write_bytes("large 2", b"12345")
    with pytest.raises(UsageError, match="too many files over 4 bytes"):
        workspace_diff._drop_large(fake, fake.workdir)


def test_without_find_the_files_stay_for_the_download_to_leave_out(
    fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_diff, "_FIND_LARGE", "no-such-command")
    fake.write_bytes("large", b"12345")
    assert workspace_diff._drop_large(fake, fake.workdir) == {}
    assert fake.read_bytes("large") == b"12345"
