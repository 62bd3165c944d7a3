"""Slash commands on the screen of a session."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.interactive.conftest import Turns

ENTER, TAB, CTRL_C, CTRL_D = "\r", "\t", "\x03", "\x04"
SHIFT_TAB, UP = "\x1b[Z", "\x1b[A"


def _messages(home: Path) -> list[list[str]]:
    """What the agent was sent, by conversation, oldest first."""
    found = []
    for log in sorted(home.rglob("sdk_events.jsonl")):
        events = [json.loads(line) for line in log.read_text().splitlines()]
        said = [event["data"]["content"] for event in events if event["type"] == "user_message"]
        found += [said] if said else []
    return found


def test_an_unknown_command_is_told_and_never_sent(talk: Turns, home: Path) -> None:
    terminal = talk(("never", None))
    terminal.type(f"/stauts{ENTER}").wait("Did you mean /status?").type(f"/status{ENTER}").wait("asks about")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert _messages(home) == []


def test_names_and_arguments_are_completed_with_tab(talk: Turns) -> None:
    terminal = talk(("x", None))
    terminal.type("/instr").wait("the files that instruct the agent").type(f"{TAB}{ENTER}").wait("AGENTS.md is read")
    terminal.type("/net o").wait("> /net o").type(TAB).wait("/net open").type(CTRL_C).type(CTRL_D)
    assert terminal.end() == 0


def test_a_command_that_changes_the_conversation_waits_until_the_agent_stops(talk: Turns, home: Path) -> None:
    terminal = talk(("wait", "touch began; sleep 60"), ("after", None))
    terminal.type(f"go{ENTER}").wait("sleep 60").wait("Esc stops").type(f"/clear{ENTER}")
    terminal.wait("/clear waits until the agent has stopped").type(f"/cost{ENTER}").wait("MESSAGE").wait("All by")
    terminal.type(CTRL_C).wait("Stopped").wait("your turn").type(f"/clear{ENTER}").wait("A new conversation")
    terminal.type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert _messages(home) == [["go"]]


def test_resume_shows_a_list_and_the_last_exchange_and_goes_on(talk: Turns, home: Path) -> None:
    terminal = talk(("the first answer", None), ("the second answer", None))
    terminal.type(f"remember{ENTER}").wait("the first answer").wait("your turn").type(f"/clear{ENTER}")
    terminal.wait("A new conversation").type(f"/resume{ENTER}").wait("Enter takes it").wait("remember")
    terminal.type(ENTER).wait("goes on: remember").wait("the first answer", times=2).wait("your turn")
    terminal.type(f"and now{ENTER}").wait("the second answer").wait("your turn").type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert _messages(home) == [["remember", "and now", "/exit"]]


@pytest.mark.slow
@pytest.mark.docker
def test_undo_lists_what_it_changes_asks_and_goes_on_without_leaving(
    talk: Turns, workspace: Path, home: Path, image: str
) -> None:
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    turns = ("one", "echo one >a; echo two >b; echo three >c"), ("done one", None), ("done two", None)
    terminal = talk(*turns, options=("--runtime", "docker", "--image", image))
    terminal.type(f"first{ENTER}").wait("done one").wait("your turn")
    (workspace / "b").write_text("mine")
    terminal.type(f"/undo{ENTER}").wait("Left as it is: b: it was changed since as well")
    terminal.wait("a is removed").wait("Change these 2 files? /redo brings it back. [y/N]")
    terminal.type(f"y{ENTER}").wait("in the directory too, but for what is named above.").wait("your turn")
    assert not (workspace / "a").exists()
    (workspace / "c").write_text("mine")
    terminal.type(f"/redo{ENTER}").wait("Left as it is: c").wait("a comes back").wait("takes it away again. [y/N]")
    terminal.type(f"y{ENTER}").wait("is there again, but for what is named above.")
    assert (workspace / "a").read_text() == "one\n"
    assert [(workspace / name).read_text() for name in "bc"] == ["mine", "mine"]
    terminal.wait("your turn").type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert _messages(home)[0] == ["first", "/exit"]


def test_shift_tab_goes_through_the_modes_and_plan_mode_refuses_what_writes(talk: Turns, workspace: Path) -> None:
    (workspace / "a").write_text("x")
    terminal = talk(("look", "ls"), ("remove", "rm a"), ("My plan.", None), ("now", "rm a"), ("Gone.", None))
    terminal.wait("asks nothing").type(SHIFT_TAB).wait("asks risky").type(SHIFT_TAB).wait("asks all")
    terminal.type(SHIFT_TAB).wait("plan mode").type(f"plan it{ENTER}").wait("not run").wait("My plan.")
    terminal.wait("That is its plan").wait("your turn")
    assert (workspace / "a").exists()
    assert "The user has switched" not in terminal.scrollback, "that is for the model"
    terminal.type(SHIFT_TAB).wait("asks risky").type(f"/mode never{ENTER}").wait("* never").wait("asks nothing")
    terminal.type(f"do it{ENTER}").wait("Gone.").wait("your turn").type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert not (workspace / "a").exists()


def test_a_question_mark_at_an_empty_line_shows_the_keys_until_something_is_typed(talk: Turns) -> None:
    terminal = talk(("ok", None))
    terminal.type("?").wait("what is asked; plan mode").type("why?")
    terminal.wait("what is asked; plan mode", gone=True).wait("> why?").type(CTRL_C).type(CTRL_D)
    assert terminal.end() == 0


@pytest.mark.slow
def test_up_takes_back_what_is_queued_to_be_edited(talk: Turns, home: Path) -> None:
    terminal = talk(("ask", "touch asked"), ("done", None), options=("--confirm", "always"))
    terminal.type(f"!sleep 60{ENTER}").wait("sleep 60").wait("Esc stops").type(f"frist{ENTER}").wait("queued: frist")
    terminal.type(UP).wait("> frist").wait("queued:", gone=True).type("\x15first").wait("> first").type(CTRL_C)
    terminal.wait("Stopped").wait("your turn").type(ENTER).wait("Allow this call?").type("n\n").wait("done")
    terminal.wait("your turn").type(f"/exit{ENTER}")
    assert terminal.end() == 0
    assert _messages(home) == [["first", "/exit"]]


@pytest.mark.slow
def test_the_page_stays_at_its_address_when_a_new_conversation_begins(talk: Turns, home: Path) -> None:
    terminal = talk(("the first answer", None), options=("--view",), columns=200)
    [first] = home.rglob("view.json")
    address = json.loads(first.read_text())["address"]
    terminal.type(f"hello{ENTER}").wait("the first answer").wait("your turn").type(f"/clear{ENTER}")
    terminal.wait("A new conversation").wait("your turn")
    [second] = home.rglob("view.json")
    assert second != first
    assert json.loads(second.read_text())["address"] == address
    terminal.type(f"/exit{ENTER}")
    assert terminal.end() == 0


def test_a_command_of_the_persons_own_is_a_message(talk: Turns, home: Path) -> None:
    own = home / ".ohsandbox" / "commands"
    own.mkdir(parents=True)
    (own / "review.md").write_text("Review $ARGUMENTS.\nName each risk.\n")
    (own / "status.md").write_text("Ours comes first.")
    (own / "empty.md").write_text("")
    terminal = talk(("I looked.", None))
    terminal.type("/rev").wait("Review $ARGUMENTS").type(CTRL_C).wait("your turn")
    terminal.type(f"/empty{ENTER}").wait("be told.").type(f"/status{ENTER}").wait("asks about")
    terminal.type(f"/help{ENTER}").wait("Your own:").wait("/review")
    terminal.type(f"/review src/a.py{ENTER}").wait("I looked.").wait("your turn").type(CTRL_D)
    assert terminal.end() == 0
    assert _messages(home) == [["Review src/a.py.\nName each risk."]]
