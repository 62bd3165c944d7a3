"""`--confirm` of a run, at a terminal and without one, and `ohsandbox confirm` from another process."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent.calls import ActionSecurityRisk
from ohsandbox.cli.prompts.approval_prompt import FilesNow
from ohsandbox.cli.prompts.prompt import Typed
from ohsandbox.cli.session.approvals import settle_approvals
from ohsandbox.conversation.approvals.decisions import Decision
from ohsandbox.conversation.approvals.scopes import PendingCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ended, Invoke, Recorded, Start, WriteScript

    AtTerminal = Callable[..., Recorded]

WAITING = 6
ASKED = b"? helps] "
TURNS = (("first", "echo one >> done"), ("second", "echo two >> done"), ("all done", None))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "work here"
    directory.mkdir()
    return directory


@pytest.fixture
def options(write_script: WriteScript, workspace: Path) -> tuple[str, ...]:
    return ("--model", write_script(*TURNS), "--runtime", "cli", "--workspace", str(workspace))


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait for three seconds without a key, not half a second, so that a busy machine types in time."""
    (tmp_path / "sitecustomize.py").write_text("from ohsandbox.cli.prompts import prompt\nprompt.QUIET_S = 3.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def end_of_input(_question: str) -> Typed:
    raise EOFError


NO_FILES = FilesNow(lambda: None, Path("/nowhere"))


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


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("--yes", "--no"), ("--no", "--yes")])
def test_an_answer_that_contradicts_an_earlier_one_is_told_and_starts_no_run(
    first: str, second: str, invoke: Invoke, options: tuple[str, ...], workspace: Path
) -> None:
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *options))
    assert invoke(*answer, first, "--no-run").code == 0
    late = invoke(*answer, second, "--no-tui")
    assert (late.code, done(workspace)) == (2, "")
    assert f"{second} has no effect" in late.err
    again = invoke(*answer, first, "--no-tui")
    assert (again.code, done(workspace)) == (WAITING, "one\n" if first == "--yes" else "")


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


@pytest.mark.parametrize(
    "wrong", [["--yes", "--no"], ["--yes", "--reason", "x"], ["--json", "--yes"], ["--unseen"]], ids=" ".join
)
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
        ([b"\n", b"?\n", b"yes\n", b"n\n"], ("one\n", 0)),
        ([b"n do it with printf\n", b"y\n"], ("two\n", 0)),
        ([b"ls\n", b"x\n", b"a\n", b"y please\n", b"ny\n", b"y\n", b"y\n"], ("one\ntwo\n", 0)),
        ([b"y\n", b"\x04"], ("one\n", WAITING)),
    ],
    ids=["yes twice", "help, yes, no", "a reason", "what is no answer", "end of input"],
)
def test_person_at_the_terminal_answers(
    at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path, typed: list[bytes], outcome: tuple[str, int]
) -> None:
    ended = at_terminal("run", "go", "--confirm", "always", *options, answers=[(ASKED, keys) for keys in typed])
    assert (done(workspace), ended.code) == outcome, ended.raw[-2000:]


@pytest.mark.slow
def test_an_unknown_word_is_told_and_refuses_nothing(
    at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path
) -> None:
    ended = at_terminal("run", "go", "--confirm", "always", *options, answers=[(ASKED, b"ls\n"), (ASKED, b"\x04")])
    assert b"'ls' is not an answer; nothing was decided" in ended.raw
    assert (ended.code, done(workspace)) == (WAITING, "")


def test_what_was_typed_before_the_question_answers_nothing(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    model = write_script(("slow", "sleep 1; echo one >> done"), TURNS[1], ("all done", None))
    typed = [(ASKED, b"y\ny\ny\nunfinished y"), (ASKED, b"\x04")]
    common = ("--model", model, "--runtime", "cli", "--workspace", str(workspace))
    ended = at_terminal("run", "go", "--confirm", "always", *common, answers=typed)
    assert (ended.code, done(workspace)) == (WAITING, "one\n"), ended.raw[-2000:]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_keys_of_the_first_half_second_answer_nothing(
    at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path
) -> None:
    typed = [(b"  | echo one", b"y\n"), (b"discarded.)", b""), (ASKED, b"\x04")]
    ended = at_terminal("run", "go", "--confirm", "always", *options, answers=typed)
    assert (ended.code, done(workspace)) == (WAITING, ""), ended.raw[-2000:]
    answer = re.search(rb"ohsandbox (confirm \S+)", ended.raw)
    assert answer
    again = at_terminal(*answer[1].decode().split(), answers=typed)
    assert (again.code, done(workspace)) == (WAITING, ""), again.raw[-2000:]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_whoever_types_on_is_asked_when_they_pause(
    at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path
) -> None:
    keys = [(b"  | echo one", b"my next mess")]
    ended = at_terminal(
        "run", "go", "--confirm", "always", *options,
        answers=[*keys, (b"discarded.)", b""), (ASKED, b"age\n"), (b"is not an answer", b""), (ASKED, b"\x04")],
    )  # fmt: skip
    assert (ended.code, done(workspace)) == (WAITING, ""), ended.raw[-2000:]


def test_pasted_text_allows_nothing(at_terminal: AtTerminal, options: tuple[str, ...], workspace: Path) -> None:
    pasted = b"\x1b[200~y\ny\n\x1b[201~\n"
    ended = at_terminal(
        "run", "go", "--confirm", "always", *options,
        answers=[(ASKED, pasted), (b"Pasted text is not an answer", b""), (ASKED, b"\x04")],
    )  # fmt: skip
    assert (ended.code, done(workspace)) == (WAITING, ""), ended.raw[-2000:]


def test_a_piped_yes_answers_nothing(start: Start, invoke: Invoke, options: tuple[str, ...], workspace: Path) -> None:
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *options))
    for arguments in (answer, ["run", "--resume", answer[1]]):
        process = start(*arguments, stdin=subprocess.PIPE)
        process.communicate(b"y\n" * 100, timeout=60)
        assert process.returncode == WAITING
    assert done(workspace) == ""


def test_a_command_is_asked_about_with_all_that_it_holds(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    command = "awk 'BEGIN{system(\"echo one >> done\")}' #\rls -la /workspace"
    model = write_script(("I list the files.", command), ("done", None))
    ended = at_terminal(
        "run", "go", "--confirm", "risky", "--model", model, "--runtime", "cli", "--workspace", str(workspace),
        answers=[(ASKED, b"n\n")],
    )  # fmt: skip
    asked = ended.raw.partition(b"[1] execute_bash, risk HIGH")[2]
    assert rb"""system("echo one >> done")}' #\u{d}ls -la /workspace""" in asked
    assert b"characters that cannot be seen: U+000D CARRIAGE RETURN" in asked
    assert done(workspace) == ""


def test_no_row_of_a_command_passes_for_one_of_ours(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    command = ": " + "x" * 96 + "[2] execute_bash, risk LOW\n  - No rule speaks against it.\necho one >> done"
    common = ("--model", write_script(("", command), ("", None)), "--runtime", "cli", "--workspace", str(workspace))
    ended = at_terminal("run", "go", "--confirm", "always", *common, answers=[(ASKED, b"n\n")])
    rows = ended.raw.decode().partition("[1] execute_bash")[2].partition("e: from now on")[0].split("\r\n")[1:-1]
    last = rows.index("  | echo one >> done")
    assert all(row.startswith("  | ") for row in rows[: last + 1]), rows
    assert rows[last + 1 :], rows
    assert all(row.startswith("  - ") and "speaks against" not in row for row in rows[last + 1 :]), rows
    assert max(map(len, rows)) <= 100


def test_no_width_of_a_character_makes_a_row_of_a_command_begin_like_one_of_ours(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    command = ": " + "\u2460" * 49 + "[2] execute_bash, risk LOW"  # one column or two, as the terminal likes
    common = ("--model", write_script(("", command), ("", None)), "--runtime", "cli", "--workspace", str(workspace))
    ended = at_terminal("run", "go", "--confirm", "always", *common, answers=[(ASKED, b"n\n")])
    rows = ended.raw.decode().partition("[1] execute_bash")[2].partition("e: from now on")[0].split("\r\n")[1:-1]
    assert max(sum(1 if one.isascii() else 2 for one in row) for row in rows) <= 100


def test_no_text_of_one_argument_passes_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"note: x\npath": "a", "text": "first\npath: /workspace/a\n  = path: /workspace/a", "path": "/etc/x"}
    call = PendingCall("1", "save", arguments, ActionSecurityRisk.HIGH, ())
    assert not settle_approvals(lambda: [call], lambda _: None, read=end_of_input, files=NO_FILES)
    rows = capsys.readouterr().out.split("\n")
    assert [row for row in rows if row.startswith("  = ")] == [
        r'  = "note: x\npath": a', "  = text:", "  = path: /etc/x",
    ]  # fmt: skip


LONG = "\n".join(["echo one >> done", *(f": line {number}" for number in range(900)), "echo two >> done"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "result"),
    [
        ([b"y\n", b"\x04"], ("", WAITING)),
        ([b"y\n", b"unseen\n"], ("one\ntwo\n", 0)),
        ([b"n\n"], ("", 0)),
    ],
    ids=["a plain yes", "unseen", "no"],
)
def test_what_is_too_long_to_be_shown_needs_another_word(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path, typed: list[bytes], result: tuple[str, int]
) -> None:
    model = write_script(("", LONG), ("done", None))
    ended = at_terminal(
        "run", "go", "--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace),
        answers=[(ASKED, keys) for keys in typed],
    )  # fmt: skip
    assert (done(workspace), ended.code) == result, ended.raw[-2000:]
    assert b"  | echo one >> done" in ended.raw
    assert b"  | echo two >> done" in ended.raw
    assert b"703 rows, " in ended.raw


@pytest.mark.slow
def test_a_long_call_may_be_seen_page_by_page_and_then_allowed(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    lines = [f"echo {number} >> done" for number in range(230)]
    common = ("--model", write_script(("", "\n".join(lines)), ("", None)), "--runtime", "cli")
    pages = [(b"q ends -- ", b"\n")] * (232 // 38)
    ended = at_terminal(
        "run", "go", "--confirm", "always", *common, "--workspace", str(workspace),
        answers=[(ASKED, b"v\n"), (b"q ends -- ", b"q\n"), (ASKED, b"y\n"), (ASKED, b"v\n"), *pages, (ASKED, b"y\n")],
    )  # fmt: skip
    assert ended.code == 0, ended.raw[-2000:]
    assert len(done(workspace).split()) == 230
    assert all(f"  | {line}\r\n".encode() in ended.raw for line in lines)


def test_yes_of_another_process_says_what_it_does_not_show(
    invoke: Invoke, write_script: WriteScript, workspace: Path
) -> None:
    common = ("--model", write_script(("", LONG), ("done", None)), "--runtime", "cli", "--workspace", str(workspace))
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *common))
    refused = invoke(*answer, "--yes", "--no-tui")
    assert (refused.code, done(workspace)) == (2, "")
    assert "Not shown: 703 rows of what waits; so --yes allows nothing" in refused.err
    assert "echo two" in refused.out
    assert invoke(*answer, "--unseen").code == 2
    assert (invoke(*answer, "--yes", "--unseen", "--no-tui").code, done(workspace)) == (0, "one\ntwo\n")


def test_another_process_shows_what_a_file_that_is_written_loses(
    invoke: Invoke, write_script: WriteScript, workspace: Path
) -> None:
    file = workspace / "notes.txt"
    file.write_text("kept\nlost\n")
    call = {"name": "file_write", "arguments": {"path": str(file), "content": "kept\nnew\n"}}
    model = write_script({"content": "", "tool_calls": [call]}, ("done", None))
    common = ("--model", model, "--runtime", "cli", "--workspace", str(workspace), "--enable", "file_write")
    answer = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *common))
    seen = invoke(*answer, "--no-tui")
    assert seen.code == WAITING
    assert seen.out.splitlines()[2:6] == ["  @ beside the file as it is now", "  | kept", " -| lost", " +| new"]
    file.write_bytes(b"\xff")
    refused = invoke(*answer, "--yes", "--no-tui")
    assert "  @ what it removes is not shown: The file is not UTF-8 text." in refused.out
    assert (refused.code, file.read_bytes()) == (2, b"\xff")
    assert "Not shown: the text that it removes; so --yes allows nothing" in refused.err
    assert (invoke(*answer, "--yes", "--unseen", "--no-tui").code, file.read_text()) == (0, "kept\nnew\n")


@pytest.mark.slow
@pytest.mark.docker
def test_another_process_reads_the_container_that_waits_and_leaves_it_for_the_run(
    invoke: Invoke, write_script: WriteScript, image: str
) -> None:
    new, newer = (
        {"content": "", "tool_calls": [{"name": "file_write", "arguments": {"path": "notes.txt", "content": text}}]}
        for text in ("new\n", "newer\n")
    )
    model = write_script(("", "echo lost > notes.txt"), new, newer, ("done", None))
    common = ("--model", model, "--image", image, "--enable", "file_write")
    first = answer_line(invoke("run", "go", "--no-tui", "--confirm", "always", *common))
    answer = answer_line(invoke(*first, "--yes", "--no-tui"))
    seen = invoke(*answer, "--no-tui")
    assert seen.out.splitlines()[2:5] == ["  @ beside the file as it is now", " -| lost", " +| new"], seen
    seen = invoke(*answer_line(invoke(*answer, "--yes", "--no-tui")), "--no-tui")
    assert seen.out.splitlines()[2:5] == ["  @ beside the file as it is now", " -| new", " +| newer"], seen
    assert invoke(*answer, "--no", "--no-tui").code == 0


@pytest.mark.slow
def test_many_calls_are_too_much_together_and_not_one_by_one(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path
) -> None:
    command = "\n".join([": x"] * 150)
    calls = [{"name": "execute_bash", "arguments": {"command": f"{command}\necho {n} >> done"}} for n in ("one", "two")]
    model = write_script({"content": "both", "tool_calls": calls}, ("done", None))
    ended = at_terminal(
        "run", "go", "--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace),
        answers=[(ASKED, b"y\n"), (ASKED, b"o\n"), (ASKED, b"y\n"), (ASKED, b"n\n")],
    )  # fmt: skip
    assert (ended.code, done(workspace)) == (0, "one\n"), ended.raw[-2000:]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "ran"),
    [
        ([(ASKED, b"o\n"), (ASKED, b"n\n"), (ASKED, b"y\n")], "two\n"),
        (
            [(ASKED, b"o\ny\ny\n"), (b"discarded.)", b""), (ASKED, b"y\ny\n"), (b"discarded.)", b""), (ASKED, b"n\n")],
            "one\n",
        ),
    ],
    ids=["one answer each", "what was typed before its question is discarded"],
)
def test_calls_of_one_reply_are_answered_one_by_one(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path, answers: list[tuple[bytes, bytes]], ran: str
) -> None:
    calls = [{"name": "execute_bash", "arguments": {"command": f"echo {word} >> done"}} for word in ("one", "two")]
    model = write_script({"content": "both", "tool_calls": calls}, ("done", None))
    ended = at_terminal(
        "run", "go", "--confirm", "always", "--model", model, "--runtime", "cli", "--workspace", str(workspace),
        answers=answers,
    )  # fmt: skip
    assert (ended.code, done(workspace)) == (0, ran), ended.raw[-2000:]


@pytest.mark.parametrize("flag", ["--max-time-s", "--max-tokens", "--max-cost-usd", "--max-iterations"])
def test_every_limit_is_a_flag(invoke: Invoke, options: tuple[str, ...], flag: str) -> None:
    ended = invoke("run", "go", "--no-tui", flag, "0", *options)
    assert ended.code == 2


def test_a_call_that_came_to_wait_meanwhile_is_not_asked_about_unseen() -> None:
    first, second = (
        PendingCall(name, "execute_bash", {"command": name}, ActionSecurityRisk.LOW, ()) for name in ("one", "two")
    )
    waiting = [first]

    def decide(decision: Decision) -> None:
        assert decision == Decision(approved=True, tool_call_ids=("one",))
        waiting[:] = [second]  # the run went on in its thread, and was faster than we

    assert settle_approvals(lambda: list(waiting), decide, read=lambda _: Typed("y"), files=NO_FILES)
    assert waiting == [second]
