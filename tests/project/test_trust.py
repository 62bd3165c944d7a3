from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.project.trust import revoke, trust, trust_of, trusted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_directory_is_trusted_with_one_content_until_it_is_revoked(tmp_path: Path) -> None:
    assert trust_of(tmp_path, "a") == "unknown"
    trust(tmp_path, "a")
    assert (trust_of(tmp_path, "a"), trust_of(tmp_path, "b")) == ("trusted", "changed")
    trust(tmp_path, "b")
    assert trust_of(tmp_path, "a") == "changed"
    assert [(one.directory, one.digest) for one in trusted()] == [(tmp_path, "b")]
    assert revoke(tmp_path)
    assert not revoke(tmp_path)
    assert trust_of(tmp_path, "b") == "unknown"


def test_the_real_path_counts(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to("one")
    trust(link, "a")
    assert trust_of(tmp_path / "one", "a") == "trusted"
    link.unlink()
    link.symlink_to("two")
    assert trust_of(link, "a") == "unknown"


def test_a_directory_inside_a_trusted_one_is_not_trusted(tmp_path: Path) -> None:
    trust(tmp_path, "a")
    (tmp_path / "below").mkdir()
    assert trust_of(tmp_path / "below", "a") == "unknown"


def test_the_record_is_private(tmp_path: Path, home: Path) -> None:
    trust(tmp_path, "a")
    assert stat.S_IMODE((home / "trusted.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["{", "[]", '{"/x": 1}', '{"/x": {"digest": 1, "at": "t"}}'])
def test_a_damaged_record_trusts_nothing_and_is_told(home: Path, text: str) -> None:
    home.mkdir(mode=0o700)
    (home / "trusted.json").write_text(text)
    with pytest.raises(UsageError, match=r"trusted\.json"):
        trusted()
