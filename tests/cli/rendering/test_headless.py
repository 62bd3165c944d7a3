"""`run` for programs: `--json`, `--quiet`, and stdout that is no terminal."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from ohsandbox.cli.rendering.headless import line_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Invoke, Recorded, Start, WriteScript

ROOT = Path(__file__).parents[3]
ON_HOST = ("--runtime", "cli")


@pytest.fixture
def go(write_script: WriteScript, tmp_path: Path) -> tuple[str, ...]:
    model = write_script(("I look.", "echo x > made; cat made"), ("one\n\ttwo \x1b[31m", None))
    return ("run", "go", "--model", model, *ON_HOST, "--workspace", str(tmp_path))


def _lines(text: str | bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_the_log_and_then_the_result(invoke: Invoke, go: tuple[str, ...]) -> None:
    ended = invoke(*go, "--json")
    assert ended.code == 0
    *events, result = _lines(ended.out)
    assert events == _lines(invoke("conversations", "show", "--json", "last").out)
    assert [event["seq"] for event in events] == [*range(len(events))]
    assert (result["type"], result["status"], result["steps"]) == ("result", "IDLE", 2)
    assert result["answer"] == "one\n\ttwo \x1b[31m"
    assert result["conversation_id"] == events[0]["conversation_id"]


def test_every_line_fits_the_schema_and_a_wrong_one_does_not(invoke: Invoke, go: tuple[str, ...]) -> None:
    schema = jsonschema_rs.validator_for(line_schema())
    lines = _lines(invoke(*go, "--json").out)
    assert [line for line in lines if not schema.is_valid(line)] == []
    assert not schema.is_valid(lines[0] | {"data": {}})
    assert not schema.is_valid(lines[-1] | {"status": "DONE"})


def test_the_documented_schema_is_the_one_that_is_printed(invoke: Invoke) -> None:
    assert invoke("conversations", "schema").out == (ROOT / "docs" / "events.schema.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("flags", [["-q"], ["--quiet"], []])
def test_stdout_has_the_answer_and_nothing_else(invoke: Invoke, go: tuple[str, ...], flags: list[str]) -> None:
    ended = invoke(*go, *flags)
    assert (ended.code, ended.out) == (0, "one\n\ttwo \\u{1b}[31m\n")
    assert ("call     $ echo x" in ended.err) == (not flags)
    assert "one" not in ended.err


def test_a_resumed_run_prints_its_own_events(invoke: Invoke, go: tuple[str, ...]) -> None:
    before = _lines(invoke(*go, "--json").out)
    ended = invoke("run", "again", *go[2:6], "--json", "--resume", "last")
    first, *_, result = _lines(ended.out)
    assert (first["type"], first["seq"]) == ("user_message", before[-2]["seq"] + 1)
    assert result["conversation_id"] == before[-1]["conversation_id"]


def test_each_line_of_stdin_is_a_run_with_its_answer(start: Start, write_script: WriteScript) -> None:
    model = write_script(("first", None), ("second", None))
    process = start("run", "-q", "--model", model, *ON_HOST, stdin=subprocess.PIPE)
    assert process.communicate(b"one\ntwo\n", timeout=30)[0] == b"first\nsecond\n"


def test_a_run_that_fails_says_so_in_its_result_and_its_exit_code(invoke: Invoke, write_script: WriteScript) -> None:
    ended = invoke("run", "go", "--json", "--model", write_script(("", "true")), *ON_HOST)
    result = _lines(ended.out)[-1]
    assert (result["status"], result["answer"]) == ("ERROR", None)
    assert ended.code == 5
    assert result["error"] in ended.err


def test_calls_that_wait_end_it_with_6(invoke: Invoke, go: tuple[str, ...]) -> None:
    ended = invoke(*go, "--json", "--confirm", "always")
    assert (ended.code, _lines(ended.out)[-1]["status"]) == (6, "WAITING_FOR_CONFIRMATION")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_after_a_whole_line(
    start: Start, write_script: WriteScript, number: signal.Signals, code: int
) -> None:
    process = start("run", "go", "--json", "--model", write_script(("wait", "sleep 61.75")), *ON_HOST)
    assert process.stdout is not None
    while b'"tool_call"' not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == code
    assert all(isinstance(line, dict) for line in _lines(rest))
    if number == signal.SIGINT:
        assert _lines(rest)[-1]["status"] == "CANCELED"


def test_a_reader_that_leaves_ends_it_with_143(start: Start, write_script: WriteScript) -> None:
    model = write_script(*[("on", "sleep 0.2; echo x")] * 20, ("done", None))
    process = start("run", "go", "--json", "--model", model, *ON_HOST)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert process.wait(60) == 143


def test_both_at_once_are_refused(invoke: Invoke, go: tuple[str, ...]) -> None:
    ended = invoke(*go, "--json", "-q")
    assert ended.code == 2
    assert "exclude each other" in ended.err


def test_without_a_task_a_terminal_is_not_asked(at_terminal: Callable[..., Recorded]) -> None:
    ended = at_terminal("run", "-q", "--model", "scripted:demo", *ON_HOST)
    assert ended.code == 2
    assert b"need a TASK" in ended.raw
