from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation import masking
from ohsandbox.evaluation.masking import mask_tree
from ohsandbox.secrets import Masker

if TYPE_CHECKING:
    from pathlib import Path

VALUE = "value-of-no-use-0123456789"
MASKER = Masker({"KEY": VALUE})


def test_no_file_name_or_link_keeps_a_secret(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "text").write_text(f"is {VALUE}, is")
    (tmp_path / "a" / "binary").write_bytes(b"\xff\0" + VALUE.encode() + b"\xfe")
    (tmp_path / f"name-{VALUE}").mkdir()
    (tmp_path / f"name-{VALUE}" / "inner").write_text("x")
    (tmp_path / "link").symlink_to(f"/somewhere/{VALUE}")
    mask_tree(tmp_path, MASKER)
    assert (tmp_path / "a" / "text").read_text() == "is <secret:KEY>, is"
    assert (tmp_path / "a" / "binary").read_bytes() == b"\xff\0<secret:KEY>\xfe"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "name-<secret:KEY>"]
    assert (tmp_path / "name-<secret:KEY>" / "inner").read_text() == "x"


@pytest.mark.parametrize("size", range(1, 60, 7))
def test_pieces_of_a_file_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(masking, "_CHUNK_BYTES", size)
    told = f"{VALUE}{VALUE} and {VALUE[:9]} and {VALUE}"
    (tmp_path / "file").write_text(told)
    mask_tree(tmp_path, MASKER)
    assert (tmp_path / "file").read_text() == MASKER.mask(told)


def test_modes_stay_and_a_file_without_secrets_is_not_touched(tmp_path: Path) -> None:
    for name, text in {"with": VALUE, "without": "plain"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o750)
    before = (tmp_path / "without").stat()
    mask_tree(tmp_path, MASKER)
    assert (tmp_path / "with").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "without").stat() == before


def test_a_name_that_its_mask_would_make_too_long_goes(tmp_path: Path) -> None:
    (tmp_path / f"{'x' * (255 - len(VALUE))}{VALUE}").write_text("x")
    (tmp_path / f"{'y' * 255}").write_text(VALUE)
    mask_tree(tmp_path, Masker({"A_NAME_THAT_IS_LONGER_THAN_THE_VALUE": VALUE}))
    assert [path.name for path in tmp_path.iterdir()] == ["y" * 255]
    assert VALUE not in (tmp_path / f"{'y' * 255}").read_text()


def test_a_file_that_nobody_may_read_is_masked(tmp_path: Path) -> None:
    (tmp_path / "closed").write_text(VALUE)
    (tmp_path / "closed").chmod(0)
    mask_tree(tmp_path, MASKER)
    assert (tmp_path / "closed").read_text() == "<secret:KEY>"
