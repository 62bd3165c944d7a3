"""The interactive session as a person sees it, in a terminal."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import History
from ohsandbox.persistence import read_events
from tests.cli.test_terminal import HOSTILE, assert_harmless

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Emulator, Invoke, WriteScript
    from tests.cli.interactive.conftest import Turns

ENTER, ESCAPE, CTRL_C, CTRL_D, ALT_ENTER = "\r", "\x1b", "\x03", "\x04", "\x1b\r"
CTRL_X_CTRL_E = "\x18\x05"
DOWN = "\x1b[B"
SLOW = "touch began; sleep 60"


def messages(home: Path) -> list[str]:
    """What the agent was sent in all conversations."""
    lines = (line for log in home.rglob("sdk_events.jsonl") for line in log.read_text().splitlines())
    events = [json.loads(line) for line in lines]
    return [event["data"]["content"] for event in events if event["type"] == "user_message"]


def test_it_begins_with_what_it_works_with_and_ends_with_exit(talk: Turns, workspace: Path) -> None:
    terminal = talk(("Hello **you**.", None))
    for text in ("ohsandbox 0", "scripted:", f"files    {workspace}", "asks     nothing", "0 tokens"):
        assert text in terminal.scrollback.replace("\n", ""), terminal.scrollback
    terminal.type(f"hi{ENTER}").wait("Hello you.").wait("Answered").type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert "> hi" in terminal.scrollback
    assert "ohsandbox run --resume" in terminal.scrollback
    assert "your turn" not in terminal.shown, "the region is gone"


@pytest.mark.usefixtures("no_engine")
def test_the_command_alone_opens_a_session_where_somebody_sits(
    emulator: Callable[..., Emulator],
    write_script: WriteScript,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    workspace: Path,
) -> None:
    monkeypatch.setenv("OHSANDBOX_MODEL", write_script(("Hello.", None)))
    terminal = emulator(cwd=workspace).wait("No Docker engine answers").type("y\n").wait("your turn")
    terminal.type(f"hi{ENTER}").wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert "Usage: ohsandbox" in invoke().out


@pytest.mark.usefixtures("no_engine")
def test_in_a_repository_its_mount_is_offered_before_anything_starts(
    emulator: Callable[..., Emulator], workspace: Path
) -> None:
    (workspace / ".git").mkdir()
    terminal = emulator("run", "--model", "scripted:demo", cwd=workspace)
    terminal.wait(f"Mount this repository, {workspace}").type("y\n").wait(f"files    {workspace}")
    terminal.wait("Work on THIS HOST").type("n\n")
    assert terminal.end() == 4
    again = emulator("run", "--model", "scripted:demo", cwd=workspace)
    again.wait("as you said before").wait(f"files    {workspace}").wait("Work on THIS HOST").type("n\n")
    assert again.end() == 4
    assert "Mount this repository" not in again.scrollback


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(20, 6), (40, 5)])
def test_a_tiny_terminal_shows_what_is_typed(talk: Turns, columns: int, rows: int) -> None:
    terminal = talk(("ok", None), columns=columns, rows=rows)
    terminal.type("hi there").wait("> hi there").type(ENTER).wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0


def test_a_message_of_several_lines(talk: Turns, home: Path) -> None:
    terminal = talk(("ok", None))
    terminal.type(f"one{ALT_ENTER}two\nthree\\{ENTER}four{ENTER}").wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert messages(home) == ["one\ntwo\nthree\nfour"]


def test_a_paste_of_10000_lines_is_shown_folded_and_sent_whole(talk: Turns, home: Path) -> None:
    terminal, text = talk(("ok", None)), "".join(f"line {number}\n" for number in range(10_000))
    terminal.type("see ").type(f"\x1b[200~{text}\x1b[201~").wait("> see [pasted 10,000 lines]")
    terminal.type(f" end{ENTER}").wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert messages(home) == [f"see {text} end"]
    assert "line 77\n" not in terminal.scrollback


def test_the_draft_is_opened_in_an_editor(
    talk: Turns, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/draft/text/ "$1"; printf "more\\n" >> "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    terminal, text = talk(("ok", None)), "pasted\n" * 10
    terminal.type("my draft ").type(f"\x1b[200~{text}\x1b[201~").wait("[pasted 10 lines]")
    terminal.type(CTRL_X_CTRL_E).wait("> my text pasted").type(ENTER).wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert messages(home) == [f"my text {text}more"]


@pytest.mark.parametrize("key", [ESCAPE, CTRL_C])
@pytest.mark.parametrize("task", [(), ("go",)])
def test_a_key_stops_the_agent_and_gives_the_prompt_back_with_the_draft(
    talk: Turns, key: str, task: tuple[str, ...]
) -> None:
    terminal = talk(("", SLOW), ("second", None), task=task)
    if not task:
        terminal.type(f"go{ENTER}")
    terminal.wait("sleep 60").wait("Esc stops").type("my draft").wait("> my draft").type(key)
    terminal.wait("Stopped").wait("your turn")
    assert "> my draft" in terminal.shown
    terminal.type(f" goes on{ENTER}").wait("second").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0


def test_a_task_that_ends_by_itself_ends_the_command(talk: Turns) -> None:
    terminal = talk(("done", None), task=("go",))
    assert terminal.end() == 0
    assert "done" in terminal.scrollback


def test_ctrl_c_twice_leaves_with_130_and_once_only_says_so(talk: Turns) -> None:
    terminal = talk(("ok", None))
    terminal.type("a draft").wait("> a draft").type(CTRL_C).wait("a draft", gone=True)
    terminal.type(CTRL_C).wait("Ctrl-C again, or Ctrl-D, leaves.").type(CTRL_C)
    assert terminal.end() == 130


def test_a_message_while_the_agent_works_reaches_it_before_its_next_step(
    talk: Turns, home: Path, workspace: Path
) -> None:
    terminal = talk(("", "until test -e go; do sleep 0.1; done"), ("heard", None))
    terminal.type(f"first{ENTER}").wait("Esc stops").type(f"second{ENTER}").wait("sent while the agent works")
    (workspace / "go").touch()
    terminal.wait("heard").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert messages(home) == ["first", "second"]


def test_a_command_of_the_person_runs_in_the_sandbox_and_the_agent_is_told(
    talk: Turns, home: Path, workspace: Path
) -> None:
    (workspace / "file").write_text("content of it\n")
    terminal = talk(("ok", None))
    terminal.type(f"!cat file; false{ENTER}").wait("exit 1").wait("your turn").type(f"what is that{ENTER}").wait(
        "Answered"
    )
    terminal.wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    [message] = messages(home)
    assert re.fullmatch(
        r"I ran this in the sandbox \(exit 1\):\n```\n\$ cat file; false\ncontent of it\n```\n\nwhat is that", message
    )
    assert "I ran this" not in terminal.scrollback


def test_a_file_that_is_named_with_an_at_goes_along(talk: Turns, home: Path, workspace: Path) -> None:
    (workspace / "notes.md").write_text("# Notes\n")
    (workspace / "pic.png").write_bytes(b"\x89PN\0")
    terminal = talk(("ok", None))
    terminal.type("see @not").wait("notes.md", times=1).type("\t").wait("> see @notes.md")
    terminal.type(f" and @pic.png{ENTER}").wait("Attached: notes.md").wait("pic.png is not text")
    terminal.wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert messages(home) == ["see @notes.md and @pic.png\n\nContents of notes.md:\n```\n# Notes\n```"]


@pytest.mark.slow
def test_history_is_there_in_the_next_session_and_is_searched(talk: Turns) -> None:
    first = talk(("ok", None))
    first.type(f"find the needle here{ENTER}").wait("Answered").wait("your turn")
    first.type(f"hay{ENTER}").wait("Failed").wait("your turn").type(CTRL_D)
    first.end()
    second = talk(("ok", None))
    second.type("\x12needle").wait("search the history: needle").wait("> find the needle here").type(ENTER)
    second.wait("search the history", gone=True).type(ENTER).wait("Answered").wait("your turn").type(CTRL_D)
    assert second.end() == 0


def test_keys_before_a_question_do_not_answer_it_and_the_draft_comes_back(talk: Turns, workspace: Path) -> None:
    slow = "until test -e go; do sleep 0.1; done"
    terminal = talk(("", slow), ("", "echo one >> done"), ("all done", None), options=("--confirm", "always"))
    terminal.type(f"go{ENTER}").wait("? helps]").wait("waits for your answer").type("y\n").wait(
        "until test -e go", times=3
    ).wait("waits for a tool")
    terminal.type("y").wait("> y")
    (workspace / "go").touch()
    terminal.wait("? helps]", times=2)
    assert not (workspace / "done").exists()
    terminal.type("y\n").wait("all done").wait("your turn")
    assert "> y" in terminal.shown, terminal.shown
    assert (workspace / "done").read_text() == "one\n"
    terminal.type(CTRL_C).type(CTRL_D)
    assert terminal.end() == 0


def test_an_unknown_command_is_no_message(talk: Turns, home: Path) -> None:
    terminal = talk(("ok", None))
    terminal.type(f"/undoo{ENTER}").wait("/undoo", times=2).type(CTRL_D)
    terminal.end()
    assert messages(home) == []


@pytest.mark.slow
def test_a_flood_reaches_the_scrollback_whole_while_the_person_types(talk: Turns) -> None:
    lines = [f"line {number} of many" for number in range(1500)]
    fences = ["\n".join(("```", *lines[at : at + 100], "```")) for at in range(0, len(lines), 100)]
    terminal = talk(("\n\n".join(fences), None))
    terminal.type(f"go{ENTER}").type("a draft").wait("Answered").wait("your turn").wait("> a draft")
    terminal.type(CTRL_C).type(CTRL_D)
    assert terminal.end() == 0
    assert re.findall(r"line \d+ of many", terminal.scrollback) == lines


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(40, 12), (80, 24), (250, 50)])
def test_every_width_and_what_a_resize_leaves(talk: Turns, columns: int, rows: int) -> None:
    terminal = talk(("", "sleep 60"), columns=columns, rows=rows)
    terminal.type(f"go{ENTER}").wait("Esc stops").type("a draft of some words")
    terminal.wait("of some words").resize(columns + 20, rows).wait("of some words").resize(columns - 5, rows + 3)
    terminal.type(ESCAPE).wait("Stopped").wait("your turn")
    assert terminal.shown.count("your turn") == 1
    assert terminal.shown.count("a draft of") == 1, terminal.shown
    terminal.type(CTRL_C).type(CTRL_D)
    assert terminal.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("works", [False, True])
def test_sigterm_leaves_the_terminal_as_it_was_and_says_how_to_go_on(talk: Turns, *, works: bool) -> None:
    terminal = talk(("Hello back.", None), ("", SLOW))
    terminal.type(f"hi{ENTER}").wait("Hello back.").wait("your turn")
    if works:
        terminal.type(f"go{ENTER}").wait("Esc stops")
    terminal.process.terminate()
    assert terminal.end() == 143
    assert "Terminated." in terminal.shown
    assert "ohsandbox run --resume" in terminal.scrollback


@pytest.mark.slow
@pytest.mark.parametrize("works", [False, True])
def test_a_terminal_that_has_gone_ends_the_session(talk: Turns, *, works: bool) -> None:
    terminal = talk(("", SLOW), ("x", None))
    if works:
        terminal.type(f"go{ENTER}").wait("Esc stops")
    terminal.hang_up()
    assert terminal.process.wait(60) == 129


def test_what_a_running_command_prints_is_seen_as_it_comes_and_is_harmless(talk: Turns, workspace: Path) -> None:
    (workspace / "evil").write_text("\n".join((*HOSTILE, "日本語", "the end")))
    (workspace / "\x1b[41mname").touch()
    terminal = talk(("", "cat evil; until test -e go; do sleep 0.1; done; echo over"), ("done", None))
    terminal.type(f"go{ENTER}").wait("the end").type("@").wait("evil").type("\x7f")
    assert "Esc stops" in terminal.shown, "it still runs"
    (workspace / "go").touch()
    terminal.wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert_harmless(bytes(terminal.raw))


def test_what_is_typed_before_the_sandbox_is_there_waits(talk: Turns, home: Path) -> None:
    terminal = talk(("", "until test -e go; do sleep 0.1; done"), ("second", None), task=("go",))
    terminal.wait(">").type(f"early{ENTER}").wait("> early").wait("sent while the agent works").type(CTRL_C)
    terminal.wait("Stopped").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert messages(home) == ["go", "early"]


@pytest.mark.slow
def test_a_session_that_is_resumed_counts_on(talk: Turns) -> None:
    first = talk(("", "true"), ("one", None))
    first.type(f"hi{ENTER}").wait("Answered").wait("your turn").type(CTRL_D)
    assert first.end() == 0
    assert "step 2" in first.raw.decode(errors="replace")
    second = talk(("", None), ("", None), ("two", None), options=("--resume", "last"))
    assert "step 2" in second.shown
    second.type(f"more{ENTER}").wait("Answered").wait("step 3").wait("your turn").type(CTRL_D)
    assert second.end() == 0


def test_no_color_means_none(talk: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = talk(("Hello **you**.", None))
    terminal.type(f"hi{ENTER}").wait("Answered").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert not re.search(rb"\x1b\[[0-9;]*[34][0-7]m", terminal.raw)


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch, emulator: Callable[..., Emulator]) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = emulator("run", "--model", "scripted:demo", "--runtime", "cli").wait("/exit or Ctrl-D leaves")
    terminal.type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert b"\x1b[?25l" not in terminal.raw


@pytest.mark.slow
def test_a_command_of_the_person_does_not_hold_what_the_agent_does(talk: Turns, workspace: Path) -> None:
    turns = ("one", "until [ -e go ]; do sleep 0.1; done"), ("two", "echo second >b"), ("Done.", None)
    terminal = talk(*turns)
    terminal.type(f"work{ENTER}").wait("until [ -e go ]").wait("Esc stops")
    terminal.type(f"!until [ -e end ]; do sleep 0.1; done; echo mine{ENTER}").wait("runs beside the agent")
    (workspace / "go").touch()
    terminal.wait("Done.").wait("! until")
    assert (workspace / "b").exists()
    (workspace / "end").touch()
    terminal.wait("mine", times=2).wait("your turn").type(CTRL_D)
    assert terminal.end() == 0


def test_resume_without_an_id_lets_a_person_choose_with_arrows(
    talk: Turns, emulator: Callable[..., Emulator], invoke: Invoke
) -> None:
    for words in ("first words", "second words"):
        terminal = talk((f"an answer to {words}", None))
        terminal.type(f"{words}{ENTER}").wait("an answer").wait("your turn").type(CTRL_D)
        assert terminal.end() == 0
    assert "--resume needs an ID" in invoke("run", "--resume").err
    terminal = emulator("run", "--resume", columns=120).wait("Enter takes it").wait("first words").wait("second words")
    terminal.type(DOWN).wait(">  2.").type(ENTER).wait("goes on: first words").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    terminal = emulator("run", "--resume").wait("Enter takes it").type("q").wait("No conversation was chosen")
    assert terminal.end() == 2


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")


def test_an_image_that_is_named_or_whose_path_is_pasted_goes_along_as_one(
    talk: Turns, home: Path, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "one.png").write_bytes(PIXEL)
    (tmp_path / "two words.png").write_bytes(PIXEL)
    (workspace / "false.png").write_text("no image")
    terminal = talk(("I see.", None), columns=250)
    terminal.type("see @one.png, @false.png ").type(f"\x1b[200~'{tmp_path}/two words.png'\x1b[201~")
    terminal.wait("two\\ words.png").type(ENTER).wait("Attached: one.png, an image")
    terminal.wait("two words.png, an image").wait("Attached: false.png, 1 line").wait("I see.").wait("your turn")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    [log] = home.rglob("sdk_events.jsonl")
    said = [one for line in log.read_text().splitlines() if (one := json.loads(line))["type"] == "user_message"]
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    assert said[0]["data"]["images"] == [url, url]
    history = History.from_events(read_events(log.parent))
    content = history.messages()[1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "image_url"]
    assert content[1]["image_url"]["url"] == url


def test_in_a_narrow_terminal_what_the_rules_say_of_a_call_stays_in_its_column(talk: Turns) -> None:
    terminal = talk(
        ("remove", "rm -rf /etc/nothing-of-that-name"), ("ok", None), columns=40, options=("--confirm", "risky")
    )
    terminal.type(f"go{ENTER}").wait("Allow this call?")
    rows = terminal.shown.split("\n")
    first = next(place for place, row in enumerate(rows) if row.startswith("  - "))
    assert rows[first + 1].startswith("    ")
    assert " ".join(row.strip() for row in rows[first : first + 4]).startswith(
        "- Deletes '/etc/nothing-of-that-name' as a tree,"
    )
    terminal.wait("? helps]").type("n\n").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
