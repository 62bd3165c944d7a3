"""`ohsandbox top`: its rows, its plain forms, and its screen at a real terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.commands import top_screen
from ohsandbox.cli.commands.top import Survey
from ohsandbox.cli.commands.top_screen import TopScreen
from ohsandbox.conversation.storage import list_stored
from ohsandbox.errors import EngineUnavailable
from ohsandbox.paths import conversations_dir
from ohsandbox.runtime.inventory import SandboxInfo, SandboxUsage
from tests.cli.conftest import Emulator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.cli.conftest import Answer, Invoke, Recorded, Start, WriteScript

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DONE = b"It is done. Really."
HOSTILE = "evil \x1b]0;pwned\x07\x1b[2J\u202e title"


def _sandbox(number: int, *, conversation: str | None = None, state: str = "running", ours: bool = True) -> SandboxInfo:
    return SandboxInfo(
        id=f"{number:064x}", name=f"ohsandbox-{number}", image="debian", state=state, created_at=NOW, ours=ours,
        owner_pid=1, owner_alive=True, conversation=conversation, keep=False, resumable=False,
    )  # fmt: skip


class FakeEngine:
    """An inventory of these sandboxes; each processor second takes one second."""

    def __init__(self, *found: SandboxInfo, measures: int = 1000) -> None:
        self.found = found
        self.measures = measures
        self.asked: list[list[str]] = []
        self.is_closed = False

    def list_sandboxes(self) -> list[SandboxInfo]:
        return [*self.found]

    def usage(self, sandbox_ids: Sequence[str], *, timeout_s: float) -> dict[str, SandboxUsage]:
        assert timeout_s > 0
        self.asked.append([*sandbox_ids])
        at = len(self.asked)
        sample = SandboxUsage(NOW + timedelta(seconds=at), at * 0.5, 10_000_000, 2_000_000_000, 1000, 2000)
        return dict.fromkeys(sandbox_ids[: self.measures], sample)

    def close(self) -> None:
        self.is_closed = True


def _survey(engine: FakeEngine) -> Survey:
    return Survey(conversations_dir(), opener=lambda: engine)  # type: ignore[arg-type, return-value] # what it uses


@pytest.fixture
def talked(invoke: Invoke, write_script: WriteScript, tmp_path: Path) -> list[str]:
    """Two conversations, one that waits and one that has answered; their ids."""
    place = ("--runtime", "cli", "--workspace", str(tmp_path), "--json")
    waiting = invoke(
        "run", HOSTILE, "--model", write_script(("", "rm -rf made \x1b[31m")), *place, "--confirm", "always"
    )
    answered = invoke("run", "plain", "--model", write_script(("It is done.\nReally.", None)), *place)
    assert (waiting.code, answered.code) == (6, 0)
    return [json.loads(ended.out.splitlines()[0])["conversation_id"] for ended in (waiting, answered)]


# --- rows -------------------------------------------------------------------------------------------


def test_what_waits_stands_first_then_what_runs_and_foreign_sandboxes_last(talked: list[str]) -> None:
    engine = FakeEngine(_sandbox(1, ours=False), _sandbox(2), _sandbox(3, conversation=talked[1], state="exited"))
    survey = _survey(engine)
    survey.ask_engine()
    survey.read_logs()
    rows = survey.rows()
    names = [row.sandbox.name if row.sandbox else None for row in rows]
    assert [row.state for row in rows] == ["waiting", "running", "idle", "running"]
    assert [row.conversation for row in rows] == [talked[0], None, talked[1], None]
    assert names == [None, "ohsandbox-2", "ohsandbox-3", "ohsandbox-1"]


def test_rows_say_what_each_does_and_every_text_is_printable(talked: list[str]) -> None:
    survey = _survey(FakeEngine())
    survey.read_logs()
    waiting, answered = survey.rows()
    assert waiting.doing == "$ rm -rf made \\u{1b}[31m"
    assert answered.doing == "It is done. Really."
    assert waiting.title.startswith("evil \\u{1b}]0;pwned")
    assert (waiting.title + waiting.doing + answered.doing).isprintable()
    assert {row.conversation for row in (waiting, answered)} == {*talked}


def test_the_share_of_a_processor_is_between_two_samples() -> None:
    survey = _survey(FakeEngine(_sandbox(1)))
    survey.ask_engine()
    assert survey.rows()[0].cpu is None
    survey.ask_engine()
    assert survey.rows()[0].cpu == 0.5


def test_what_there_was_no_time_to_measure_comes_first_the_next_time() -> None:
    engine = FakeEngine(*(_sandbox(number) for number in range(200)), measures=150)
    survey = _survey(engine)
    survey.ask_engine()
    survey.ask_engine()
    assert set(engine.asked[1][:50]) == set(engine.asked[0][150:])
    assert all(row.usage for row in survey.rows())


def test_an_engine_that_fails_is_told_and_asked_again() -> None:
    answers: list[FakeEngine] = []

    def opener() -> FakeEngine:
        if not answers:
            raise EngineUnavailable("No engine answers\x1b[31m.")
        return answers[0]

    survey = Survey(conversations_dir(), opener=opener)  # type: ignore[arg-type] # as above
    survey.ask_engine()
    assert (survey.fault, survey.rows()) == ("No engine answers\\u{1b}[31m.", [])
    answers.append(FakeEngine(_sandbox(1)))
    survey.ask_engine()
    assert (survey.fault, len(survey.rows())) == ("", 1)


def test_an_engine_that_hangs_holds_up_nothing_else(talked: list[str]) -> None:
    begun, over = threading.Event(), threading.Event()

    class Hung(FakeEngine):
        def list_sandboxes(self) -> list[SandboxInfo]:
            begun.set()
            over.wait(60)
            return []

    survey = _survey(Hung())
    asking = threading.Thread(target=survey.ask_engine)
    asking.start()
    begun.wait(60)
    survey.read_logs()
    assert len(survey.rows()) == len(talked)
    survey._asked_at = -100.0
    assert "has not answered for" in survey.fault
    over.set()
    asking.join()


def test_a_log_that_did_not_grow_is_not_read_again(talked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    survey = _survey(FakeEngine())
    survey.read_logs()
    monkeypatch.setattr("ohsandbox.cli.commands.top.tail_events", None)
    survey.read_logs()
    assert len(survey.rows()) == len(talked)


def test_a_log_full_of_nonsense_is_a_row_all_the_same(talked: list[str]) -> None:
    log = conversations_dir() / talked[1] / "sdk_events.jsonl"
    with log.open("ab") as file:
        file.write(
            b'[]\n{"type":"tool_call","ts":"2026-01-01","conversation_id":"x","seq":99,"data":{"tool_call_id":[]}}\n'
        )
        file.write(b"\xff\xfe\n" + b"[" * 100_000 + b"\n")
    survey = _survey(FakeEngine())
    survey.read_logs()
    assert len(survey.rows()) == len(talked)


# --- plain ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_conversations_are_listed_and_the_engine_is_told(invoke: Invoke, talked: list[str]) -> None:
    ended = invoke("top", "--once")
    assert ended.code == 0
    assert all(name in ended.out for name in talked)
    assert "\x1b" not in ended.out
    assert "Start the engine" in ended.err
    rows = json.loads(invoke("top", "--json").out)
    assert [(row["conversation"], row["state"]) for row in rows] == [(talked[0], "waiting"), (talked[1], "idle")]


@pytest.mark.usefixtures("no_engine")
def test_nothing_is_a_line(invoke: Invoke) -> None:
    assert invoke("top").out == "No sandboxes, and no conversations.\n"


# --- the screen -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_engine", "talked")
def test_the_screen_shows_rows_moves_and_gives_the_terminal_back(at_terminal: Callable[..., Recorded]) -> None:
    ended = at_terminal("top", answers=[(DONE, b"j"), (DONE, b"q")])
    assert (ended.code, ended.restored) == (0, True)
    assert b"1 waits for you" in ended.raw
    assert b"pwned\x07" not in ended.raw
    assert b"\x1b[2J\xe2\x80\xae" not in ended.raw
    assert ended.raw.rindex(b"\x1b[?1049l") > ended.raw.rindex(b"\x1b[?1049h")


@pytest.mark.usefixtures("no_engine", "talked")
def test_a_narrow_terminal_shows_which_conversation_it_is() -> None:
    with closing(Emulator("top", columns=40, rows=20)) as terminal:
        assert "plain" in terminal.wait("It is done").shown


@pytest.mark.usefixtures("no_engine")
def test_the_table_and_the_line_above_it_show_the_same_rows(talked: list[str]) -> None:
    survey = Survey(conversations_dir())
    screen = TopScreen(survey, None)
    survey.read_logs()
    screen._app.before_render.fire()
    table = "".join(part[1] for part in screen._table())  # the first that is laid out
    assert "It is done" in table
    assert f"{len(talked)} conversation" in "".join(part[1] for part in screen._summary())


def test_no_number_of_sandboxes_is_shown_before_the_engine_has_answered() -> None:
    survey = _survey(FakeEngine(_sandbox(1)))
    screen = TopScreen(survey, None)
    assert "asking for sandboxes" in "".join(part[1] for part in screen._summary())
    assert "".join(part[1] for part in screen._table()) == ""
    survey.ask_engine()
    screen._app.before_render.fire()
    assert "1 sandbox " in "".join(part[1] for part in screen._summary())


def test_the_process_that_uses_a_sandbox_is_named_before_the_sandbox_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survey, questions = _survey(FakeEngine(_sandbox(1))), list[str]()
    survey.ask_engine()
    screen = TopScreen(survey, None)
    monkeypatch.setattr(screen, "_in_terminal", lambda act: act())
    monkeypatch.setattr(top_screen, "ask_yes_no", questions.append)
    screen._remove(survey.rows()[0])
    assert questions == ["Remove sandbox ohsandbox-1, which process 1 uses, and the files in it, for good?"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_engine", "talked")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back(
    at_terminal: Callable[..., Recorded], number: signal.Signals, code: int
) -> None:
    def end(process: subprocess.Popen[bytes], _: int) -> None:
        process.send_signal(number)

    ended = at_terminal("top", answers=[(b"It is done.", end)])
    assert (ended.code, ended.restored) == (code, True)
    assert b"\x1b[?1049l" in ended.raw


@pytest.mark.slow
@pytest.mark.usefixtures("no_engine")
def test_a_row_is_deleted_only_by_what_is_typed_after_the_question(
    at_terminal: Callable[..., Recorded], talked: list[str]
) -> None:
    ended = at_terminal(
        "top",
        answers=[
            (b"1 waits for you", b"ry\n"), (b"for good? [y/N] ", b"n\n"), (b"Nothing was deleted", b"\n"),
            (b"2 conversations", b"r"), (b"for good? [y/N] ", b"y\n"), (b"deleted ", b"q"),
        ],
    )  # fmt: skip
    assert (ended.code, ended.restored) == (0, True)
    assert [one.id for one in list_stored(conversations_dir())] == [talked[1]]


@pytest.mark.slow
@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("ignores", [False, True])
def test_a_run_of_another_process_is_stopped_after_a_question(
    at_terminal: Callable[..., Recorded], start: Start, write_script: WriteScript, tmp_path: Path, *, ignores: bool
) -> None:
    model = write_script(("", "sleep 61.125"), ("x", None))
    place = ("--runtime", "cli", "--workspace", str(tmp_path))

    def ignore() -> None:  # as a shell does with what it starts in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = start("run", "go", "--json", "--model", model, *place, preexec_fn=ignore if ignores else None)
    assert process.stdout is not None
    while b'"tool_call"' not in process.stdout.readline():
        assert process.poll() is None
    again: list[tuple[bytes, Answer]] = [(b"told to stop", b"x"), (b"SIGTERM to process", b"y\n")]
    asked: list[tuple[bytes, Answer]] = [(b"sleep 61.125", b"x"), (b"Ctrl-C to process", b"y\n")]
    ended = at_terminal("top", answers=[*asked, *(again if ignores else []), (b"told to stop", b"q")])
    assert ended.code == 0
    process.communicate(timeout=60)
    assert process.returncode == (143 if ignores else 130)


@pytest.mark.slow
@pytest.mark.usefixtures("no_engine")
def test_diff_and_log_are_commands_of_ours_in_front_of_the_screen(
    at_terminal: Callable[..., Recorded], talked: list[str]
) -> None:
    ended = at_terminal(
        "top",
        answers=[
            (DONE, b"j"), (DONE, b"l"), (b"Enter goes back", b"\n"),
            (b"2 conversations", b"s"), (b"needs a running sandbox", b"x"), (b"No process", b"q"),
        ],
    )  # fmt: skip
    assert (ended.code, ended.restored) == (0, True)
    assert f"Conversation {talked[1]}, begun".encode() in ended.raw


def test_a_dumb_terminal_gets_the_plain_table(
    at_terminal: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch, talked: list[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    ended = at_terminal("top")
    assert ended.code == 0
    assert talked[0].encode() in ended.raw
    assert b"\x1b[?1049h" not in ended.raw


@pytest.mark.docker
def test_a_sandbox_at_work_has_its_numbers(start: Start, write_script: WriteScript, invoke: Invoke, image: str) -> None:
    model = write_script(("", "while :; do :; done"), ("x", None))
    process = start("run", "busy", "--json", "--model", model, "--image", image)
    assert process.stdout is not None
    while b'"tool_call"' not in process.stdout.readline():
        assert process.poll() is None
    [row] = [row for row in json.loads(invoke("top", "--json").out) if row["title"] == "busy"]
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert (row["state"], row["does"], row["process"]) == ("running", "$ while :; do :; done", str(process.pid))
    assert row["sandbox_state"] == "running"
    assert row["cpu"] > 0.05
    assert 0 < row["memory_bytes"] < row["memory_limit_bytes"]
    subprocess.run(["docker", "rm", "-f", row["sandbox"]], capture_output=True, check=True)


@pytest.mark.usefixtures("no_engine")
def test_the_plain_table_spells_out_what_is_hidden_once(invoke: Invoke, talked: list[str]) -> None:
    shown = invoke("top", "--once").out
    assert "$ rm -rf made \\u{1b}[31m\n" in shown
    assert "\\u{5c}" not in shown
    assert talked[0] in shown
