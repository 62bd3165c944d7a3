"""`--confirm` of a run, at a terminal and without one, and `ohsandbox confirm` from another process."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent.calls import ActionSecurityRisk
from ohsandbox.cli.confirm import settle
from ohsandbox.conversation.confirmation.approvals import Decision, PendingCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ended, Invoke, Recorded, WriteScript

    AtTerminal = Callable[..., Recorded]

WAITING = 6
ASKED = b"why not; ? helps] "
TURNS = (("first", "echo one >> done"), ("second", "echo two >> done"), ("all done", None))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "work here"
    directory.mkdir()
    return directory


@pytest.fixture
def options(write_script: WriteScript, workspace: Path) -> tuple[str, ...]:
    return ("--model", write_script(*TURNS), "--runtime", "cli", "--workspace", str(workspace))


def answer_line(ended: Ended) -> list[str]:
    """The arguments of the command that stderr says to answer with."""
    found = re.search(r"Answer: ohsandbox (confirm .*)", ended.err)
    assert found, ended
    return shlex.split(found[1])


def done(workspace: Path) -> str:
    path = workspace / "done"
    return path.read_text() if path.exists() else ""


def test_headless_run_ends_with_its_own_code_and_says_how_to_answer(
    invoke: Invoke, options: tuple[str, ...], workspace: Path
) -> None:
    ended = invoke("run", "go", "--no-tui", "--confirm", "always", *options)
    assert ended.code == WAITING
    assert done(workspace) == ""
    assert "ohsandbox: this call waits for confirmation" in ended.err
    assert len(answer_line(ended)) == 2


def test_yes_of_another_process_goes_on_to_the_next_question(
    invoke: Invoke, options: tuple[str, ...], workspace: Path
) -> None:
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *options))
    again = invoke(*answer, "--yes", "--no-tui")
    assert (again.code, done(workspace)) == (WAITING, "one\n")
    assert "echo one" in again.out
    assert "risk" in again.out
    last = invoke(*answer, "--yes", "--no-tui")
    assert (last.code, done(workspace)) == (0, "one\ntwo\n")
    assert "all done" in last.out
    assert invoke(*answer, "--yes").code == 2


def test_no_with_a_reason_reaches_the_model(invoke: Invoke, workspace: Path, write_script: WriteScript) -> None:
    heard: dict[str, Any] = {"content": "I leave it.", "expect": "refused this call: on Fridays never"}
    common = ("--model", write_script(TURNS[0], heard), "--runtime", "cli", "--workspace", str(workspace))
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *common))
    ended = invoke(*answer, "--no", "--reason", "on Fridays never", "--no-tui")
    assert (ended.code, done(workspace)) == (0, "")
    assert "I leave it." in ended.out


def test_answer_without_a_run_is_acted_on_later(invoke: Invoke, options: tuple[str, ...], workspace: Path) -> None:
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *options))
    assert invoke(*answer, "--yes", "--no-run").code == 0
    assert done(workspace) == ""
    assert invoke(*answer, "--no-tui").code == WAITING
    assert done(workspace) == "one\n"


def test_json_shows_what_waits_and_answers_nothing(invoke: Invoke, options: tuple[str, ...]) -> None:
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *options))
    for _ in range(2):
        ended = invoke(*answer, "--json")
        assert ended.code == WAITING
        [call] = json.loads(ended.out)
        assert (call["name"], call["arguments"]["command"]) == ("execute_bash", "echo one >> done")


def test_without_a_terminal_and_an_answer_it_waits_on(invoke: Invoke, options: tuple[str, ...]) -> None:
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *options))
    ended = invoke(*answer)
    assert ended.code == WAITING
    assert "echo one" in ended.out


@pytest.mark.parametrize("wrong", [["--yes", "--no"], ["--yes", "--reason", "x"], ["--json", "--yes"]], ids=" ".join)
def test_contradictions_are_refused(invoke: Invoke, wrong: list[str]) -> None:
    assert invoke("confirm", "last", *wrong).code == 2


def test_unknown_conversation_is_a_usage_error(invoke: Invoke) -> None:
    ended = invoke("confirm", "nope", "--yes")
    assert ended.code == 2
    assert "nope" in ended.err


@pytest.mark.parametrize(
    ("typed", "outcome"),
    [
        ([b"y\n", b"y\n"], ("one\ntwo\n", 0)),
        ([b"\n", b"?\n", b"y\n", b"n\n"], ("one\n", 0)),
        ([b"do it with printf\n", b"y\n"], ("two\n", 0)),
        ([b"a\n"], ("one\ntwo\n", 0)),
        ([b"y\n", b"\x04"], ("one\n", WAITING)),
    ],
    ids=["yes twice", "help, yes, no", "a reason", "always", "end of input"],
)
def test_person_at_the_terminal_answers(
    at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path, typed: list[bytes], outcome: tuple[str, int]
) -> None:
    ended = at_terminal("run", "go", "--confirm", "always", *options, answers=[(ASKED, keys) for keys in typed])
    assert (done(workspace), ended.code) == outcome, ended.raw[-2000:]


def test_on_this_host_a_person_is_asked_about_what_is_risky(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path, home: Path
) -> None:
    model = write_script(("a", "echo one >> done"), ("b", "echo x >> ~/.profile"), ("done", None))
    ended = at_terminal(
        "run", "go", "--model", model, "--runtime", "cli", "--workspace", str(workspace), answers=[(ASKED, b"n\n")]
    )
    assert (ended.code, done(workspace)) == (0, "one\n")
    assert b"which other programs run or trust" in ended.raw
    assert not (home / ".profile").exists()


def test_calls_of_one_reply_are_answered_one_by_one(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    calls = [{"name": "execute_bash", "arguments": {"command": f"echo {word} >> done"}} for word in ("one", "two")]
    model = write_script({"content": "both", "tool_calls": calls}, ("done", None))
    ended = at_terminal(
        "run", "go", "--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace),
        answers=[(ASKED, b"o\n"), (ASKED, b"n\n"), (ASKED, b"y\n")],
    )  # fmt: skip
    assert (ended.code, done(workspace)) == (0, "two\n")


@pytest.mark.parametrize("flag", ["--max-time-s", "--max-tokens", "--max-cost-usd", "--max-iterations"])
def test_every_limit_is_a_flag(invoke: Invoke, options: tuple[str, ...], flag: str) -> None:
    ended = invoke("run", "go", "--no-tui", flag, "0", *options)
    assert ended.code == 2


def test_a_call_that_came_to_wait_meanwhile_is_not_asked_about_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        PendingCall(name, "execute_bash", {"command": name}, ActionSecurityRisk.LOW, ()) for name in ("one", "two")
    )
    waiting = [first]
    answers = iter(["y"])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))

    def decide(decision: Decision, *, always: bool) -> None:
        assert decision.approved
        assert not always
        waiting[:] = [second]  # the run went on in its thread, and was faster than we

    assert settle(lambda: list(waiting), decide)
    assert waiting == [second]
