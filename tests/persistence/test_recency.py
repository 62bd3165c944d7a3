from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ohsandbox import events, private_files
from ohsandbox.persistence import EventLog, recency
from ohsandbox.persistence.recency import JOURNAL_NAME, Recency, written_order

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def names(root: Path) -> list[str]:
    return sorted(order := written_order(root), key=order.__getitem__)


def write(root: Path, name: str) -> None:
    (root / name).mkdir(exist_ok=True)
    Recency(root / name).note()


def test_the_last_written_is_last_whoever_was_first(tmp_path: Path) -> None:
    for name in "abca":
        write(tmp_path, name)
    assert names(tmp_path) == ["b", "c", "a"]


def test_two_open_logs_take_turns(tmp_path: Path) -> None:
    with EventLog(tmp_path / "a", conversation_id="a") as a, EventLog(tmp_path / "b", conversation_id="b") as b:
        for log, last in ((a, "a"), (b, "b"), (b, "b"), (a, "a")):
            log.append(events.user_message("x"))
            assert names(tmp_path)[-1] == last
    assert (tmp_path / JOURNAL_NAME).read_bytes() == b"\na\n\nb\n\na\n"


def test_a_journal_that_was_removed_or_cut_is_written_on(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path, "b")
    kept = Recency(tmp_path / "a")
    kept.note()
    (tmp_path / JOURNAL_NAME).unlink()
    kept.note()
    assert names(tmp_path) == ["a"]
    os.truncate(tmp_path / JOURNAL_NAME, 1)
    kept.note()
    write(tmp_path, "b")
    assert names(tmp_path) == ["a", "b"]


def test_a_disk_that_is_gone_ends_no_conversation(tmp_path: Path) -> None:
    kept = Recency(tmp_path / "root" / "a")
    (tmp_path / "root" / "a").mkdir(parents=True)
    kept.note()
    (tmp_path / "root").rename(tmp_path / "moved")
    (tmp_path / "root").write_text("")
    kept.note()
    assert names(tmp_path / "moved") == ["a"]


def test_sub_agents_have_no_journal(tmp_path: Path) -> None:
    agents = tmp_path / "c" / "agents"
    agents.mkdir(parents=True)
    write(agents, "a-1")
    assert [path.name for path in agents.iterdir()] == ["a-1"]


def test_where_the_journal_cannot_be_written_a_conversation_goes_on(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).mkdir()
    with EventLog(tmp_path / "a", conversation_id="a") as log:
        log.append(events.user_message("x"))
    assert written_order(tmp_path) == {}


def test_a_journal_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "root" / JOURNAL_NAME).symlink_to(tmp_path / "victim")
    write(tmp_path / "root", "a")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_file_system_whose_inodes_change_at_each_look_holds_no_conversation_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.samestat", lambda first, second: False)  # noqa: ARG005 - as os.path has it
    write(tmp_path, "a")
    assert names(tmp_path) == ["a"]


def test_a_long_journal_is_shortened_to_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recency, "_MAX_BYTES", 40)
    write(tmp_path, "gone")
    (tmp_path / "gone").rmdir()
    for name in "abcab" * 20:
        write(tmp_path, name)
    assert names(tmp_path) == ["c", "a", "b"]
    assert (tmp_path / JOURNAL_NAME).stat().st_size < 60


def test_a_line_that_is_written_while_the_journal_is_shortened_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process writes just before the new journal has its name; another has opened the old one, and writes after."""
    for name in ("a", "b", "before", "after"):
        write(tmp_path, name)
    replace, append = private_files.write_atomically, private_files.write_all

    def replaced(path: Path, data: bytes, *, durable: bool) -> None:
        monkeypatch.setattr(recency, "write_atomically", replace)
        write(tmp_path, "before")
        replace(path, data, durable=durable)

    def appended(descriptor: int, data: bytes) -> None:
        monkeypatch.setattr(recency, "write_all", append)
        monkeypatch.setattr(recency, "_MAX_BYTES", 10)
        monkeypatch.setattr(recency, "write_atomically", replaced)
        write(tmp_path, "b")
        append(descriptor, data)

    write(tmp_path, "a")
    monkeypatch.setattr(recency, "write_all", appended)
    write(tmp_path, "after")
    assert names(tmp_path) == ["a", "b", "before", "after"]
