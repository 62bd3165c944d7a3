"""What a person allows from now on: offered in the question, listed and revoked in the session and from outside."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Emulator, Invoke, Recorded, WriteScript

    AtTerminal = Callable[..., Recorded]

ASKED = b"? helps] "
ONE, TWO = "echo one >> done", "echo two >> done"


@pytest.fixture
def options(write_script: WriteScript, workspace: Path) -> tuple[str, ...]:
    """Three commands, of which the first and the last are the same."""
    model = write_script(("", ONE), ("", TWO), ("", ONE), ("all done", None))
    return ("--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace))


def done(workspace: Path) -> str:
    path = workspace / "done"
    return path.read_text() if path.exists() else ""


def run(at_terminal: AtTerminal, options: tuple[str, ...], *typed: bytes) -> Recorded:
    return at_terminal("run", "go", *options, answers=[(ASKED, keys) for keys in typed])


def test_each_scope_is_offered_as_what_it_allows(at_terminal: AtTerminal, options: tuple[str, ...]) -> None:
    ended = run(at_terminal, options, b"?\n", b"\x04")
    assert b"e: from now on execute_bash with exactly these arguments again, wherever its shell stands" in ended.raw
    assert b"t: from now on every call of execute_bash, with any arguments, unless its risk is HIGH" in ended.raw
    assert b"Allow this call? [y/e/t/n/v, ? helps]" in ended.raw


@pytest.mark.slow
def test_the_same_call_is_not_asked_about_again_and_another_is(
    at_terminal: AtTerminal, invoke: Invoke, options: tuple[str, ...], workspace: Path
) -> None:
    ended = run(at_terminal, options, b"e\n", b"y\n")
    assert (ended.code, done(workspace)) == (0, "one\ntwo\none\n"), ended.raw[-2000:]
    assert b"Allowed by approval 1." in ended.raw
    shown = invoke("conversations", "show", "last").out
    assert re.search(r"Approval 1 by \S+: from now on execute_bash with exactly these arguments", shown)
    assert shown.count("Allowed by approval 1.") == 1
    exported = invoke("conversations", "export", "last", "--format", "md").out
    assert "> Allowed by approval 1." in exported


def test_a_tool_is_not_asked_about_again_unless_the_risk_is_high(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    model = write_script(("", ONE), ("", TWO), ("", "sudo id"), ("", "ls #\rls"), ("done", None))
    options = ("--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace))
    ended = run(at_terminal, options, b"t\n", b"t\n", b"n\n", b"e\n", b"n\n")
    assert (ended.code, done(workspace)) == (0, "one\ntwo\n"), ended.raw[-2000:]
    assert ended.raw.count(b"t: from now on") == 1, "of what is HIGH only the exact call is offered"
    assert ended.raw.count(b"e: from now on") == 2, "of what hides characters nothing is"


def test_edits_under_a_directory_are_not_asked_about_again(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    def write(path: Path) -> dict[str, object]:
        calls = [{"name": "file_write", "arguments": {"path": str(path), "content": "x"}}]
        return {"content": "", "tool_calls": calls}

    paths = [workspace / name for name in ("src/a", "src/b", "lib/c", "lib/d", "other")]
    model = write_script(*map(write, paths), ("done", None))
    options = ("--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace))
    ended = run(at_terminal, options, b"d\n", b"d relative\n", b"d /etc\n", f"d {workspace}\n".encode())
    assert ended.code == 0, ended.raw[-2000:]
    assert all(path.exists() for path in paths)
    assert f"of every file below {workspace}/src, unless".encode() in ended.raw.replace(b"\r\n", b"")
    assert ended.raw.count(b"above this file; nothing was decided") == 2


def test_approvals_are_listed_and_revoked_in_the_session(
    emulator: Callable[..., Emulator], write_script: WriteScript, workspace: Path
) -> None:
    model = write_script(("", ONE), ("first", None), ("", ONE), ("second", None))
    terminal = emulator(
        "run", "--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace)
    )
    terminal.wait("your turn").type("go\r").wait("? helps]").type("e\n").wait("Answered")
    terminal.type("/approvals\r").wait("with exactly these arguments again")
    terminal.type("/approvals revoke 7\r").wait("Approval 7 is not in force")
    terminal.type("/approvals revoke 1\r").wait("Approval 1 is revoked")
    terminal.type("go on\r").wait("? helps]", times=2).type("n\n").wait("second")
    terminal.wait("your turn").type("/exit\r")
    assert (terminal.end(), done(workspace)) == (0, "one\n"), terminal.scrollback


@pytest.mark.slow
def test_approvals_of_a_stored_conversation_are_listed_and_revoked(
    at_terminal: AtTerminal, invoke: Invoke, options: tuple[str, ...], workspace: Path
) -> None:
    run(at_terminal, options, b"e\n", b"\x04")
    assert done(workspace) == "one\n"
    assert re.match(
        r"1  by \S+: execute_bash with exactly .*: \{\"command\": \"echo one", invoke("approvals", "last").out
    )
    [listed] = json.loads(invoke("approvals", "last", "--json").out)
    assert (listed["number"], listed["scope"]["arguments"]) == (1, {"command": ONE})
    wrong = invoke("approvals", "last", "--revoke", "2")
    assert (wrong.code, "In force: 1." in wrong.err) == (2, True)
    assert invoke("approvals", "last", "--revoke", "1", "--revoke-all").code == 2
    assert invoke("approvals", "last", "--revoke", "1").out == "Approval 1 is revoked.\n"
    assert invoke("approvals", "last").out == "No approval is in force.\n"
    answered = at_terminal("confirm", "last", answers=[(ASKED, b"y\n"), (ASKED, b"n\n")])
    assert (answered.code, done(workspace)) == (0, "one\ntwo\n"), answered.raw[-2000:]


@pytest.mark.slow
def test_an_approval_given_from_outside_holds_in_the_run_that_goes_on(
    at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path
) -> None:
    run(at_terminal, options, b"\x04")
    answered = at_terminal("confirm", "last", answers=[(ASKED, b"t\n")])
    assert (answered.code, done(workspace)) == (0, "one\ntwo\none\n"), answered.raw[-2000:]
