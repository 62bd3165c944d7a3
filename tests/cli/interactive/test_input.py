"""What a person types: history, pastes, completion."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from ohsandbox.cli.interactive import input as typed
from ohsandbox.cli.interactive.input import CommandHelp, InputCompleter, InputHistory, Pastes, PathCompletion

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def stored(history: InputHistory) -> list[str]:
    return [*history.load_history_strings()]


def test_history_outlives_the_session_newest_first_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.jsonl"
    for text in ("one", "two\nlines", "dreĭ"):
        InputHistory(path, str).store_string(text)
    assert stored(InputHistory(path, str)) == ["dreĭ", "two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_history_has_no_secret_and_nothing_that_begins_with_a_blank(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "h", lambda text: text.replace("s3cret", "<TOKEN>"))
    for text in ("use s3cret now", " not this", "x" * (typed.MAX_ENTRY_CHARS + 1)):
        history.store_string(text)
    assert stored(history) == ["use <TOKEN> now"]


def test_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "MAX_HISTORY_ENTRIES", 5)
    history = InputHistory(tmp_path / "h", str)
    for number in range(50):
        history.store_string(str(number))
    assert 5 <= len(stored(history)) <= 10
    assert stored(history)[0] == "49"


def test_a_damaged_history_is_read_as_far_as_it_goes_and_a_link_is_not_written_through(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(json.dumps("good").encode() + b'\n"half\n17\n\xff\n')
    assert stored(InputHistory(path, str)) == ["good"]
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    InputHistory(link, str).store_string("text")
    assert not target.exists()


def test_a_paste_of_10000_lines_is_folded_and_sent_whole() -> None:
    pastes, text = Pastes(), "".join(f"line {number}\n" for number in range(10_000))
    mark = pastes.fold(text.replace("\n", "\r"))
    assert mark == "[pasted 10,000 lines]"
    assert pastes.unfold(f"look: {mark} and say") == f"look: {text} and say"
    assert pastes.ending(f"look: {mark}") == mark
    assert pastes.ending(f"look: {mark} ") is None


def test_a_short_paste_is_text_and_pastes_of_one_size_stay_apart() -> None:
    pastes = Pastes()
    assert pastes.fold("two\r\nlines") == "two\nlines"
    first, second = pastes.fold("a\n" * 9), pastes.fold("b\n" * 9)
    assert first != second
    assert pastes.fold("a\n" * 9) == first
    assert pastes.unfold(first + second) == "a\n" * 9 + "b\n" * 9


def test_a_mark_within_a_paste_is_not_replaced() -> None:
    pastes = Pastes()
    first = pastes.fold("a\n" * 9)
    second = pastes.fold(f"{first}\n" * 9)
    assert pastes.unfold(second) == f"{first}\n" * 9


def completions(before: str, *, entries: list[PathCompletion] | None = None) -> list[str]:
    commands = [CommandHelp("/help", "shows this"), CommandHelp("/undo", "takes back")]
    completer = InputCompleter(commands, lambda _: entries or [])
    return [one.text for one in completer.get_completions(Document(before), CompleteEvent())]


def test_commands_are_completed_at_the_beginning_only() -> None:
    assert completions("/") == ["/help", "/undo"]
    assert completions("/u") == ["/undo"]
    assert completions("say /u") == completions("/undo x") == []


def test_paths_are_completed_behind_an_at_directories_first_and_hidden_ones_when_asked_for() -> None:
    entries = [
        PathCompletion(name, is_directory=name in {".git", "src"}) for name in ("b.py", ".git", "src", "bad\x1b[31m")
    ]
    assert completions("see @", entries=entries) == ["src/", "b.py"]
    assert completions("see @.", entries=entries) == [".git/"]
    assert completions("!cat b", entries=entries) == ["b.py"]
    assert completions("see b", entries=entries) == []


def test_a_path_is_completed_in_its_directory() -> None:
    asked: list[str] = []
    completer = InputCompleter((), lambda path: asked.append(path) or [])  # type: ignore[func-returns-value]
    for before in ("@src/li", "@/etc/", "@~x"):
        [*completer.get_completions(Document(before), CompleteEvent())]
    assert asked == ["src/", "/etc/", "."]
