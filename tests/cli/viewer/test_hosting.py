"""`run --view` as a command: what waits is answered from the page, with a terminal beside it and without one."""

from __future__ import annotations

import io
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.rendering import text as texts
from ohsandbox.cli.viewer.hosting import MAX_NOW_LINES, _Now, hosted_at
from ohsandbox.conversation.live_output import OutputEvent
from ohsandbox.conversation.storage import find_stored
from ohsandbox.llm.chat import DeltaEvent
from ohsandbox.secrets import Masker
from tests.cli.viewer import example
from tests.cli.viewer.test_server import Client
from tests.fakes import stamp

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Invoke, Recorded, Start, WriteScript

KEY = "sk-1234567890abcdef"
TURNS = (("I make a file.", "touch made"), ("Done.", None))


@pytest.fixture
def options(write_script: WriteScript, tmp_path: Path, no_engine: None) -> tuple[str, ...]:  # noqa: ARG001 - none is asked
    (tmp_path / "workspace").mkdir()
    model = write_script(*TURNS)
    workspace = str(tmp_path / "workspace")
    return ("--model", model, "--runtime", "cli", "--workspace", workspace, "--confirm", "always", "--view")


def test_what_is_written_now_is_shown_masked_until_the_event_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_maskers", [Masker({"KEY": KEY})])
    shown: list[str] = []
    now = _Now(shown.append)
    for piece in ("I see sk-1234", "567890abcdef and\x1b[2J \u202e.\n\n", "Next"):
        now.show_answer(DeltaEvent(text=piece))
    assert shown[-1].startswith("I see <secret:KEY> and\\u{1b}[2J \\u{202e}.")
    assert not any("1234" in one for one in shown)
    now.show_output(OutputEvent(tool_call_id="1", name="x", text="\n".join(map(str, range(99)))))
    assert shown[-1].split("\n") == [str(number) for number in range(99 - MAX_NOW_LINES, 99)]
    [call, result] = stamp(example.call(1, "x", {}), example.result(1, "x", ""))
    now.add(call)
    assert shown[-1] == ""
    now.show_answer(DeltaEvent(text="Again.\n\n"))
    assert shown[-1] == "Again."
    now.add(result)
    assert shown[-1] == ""


def allow_on_page(address: str) -> None:
    client = Client(address)
    with client.events() as read:
        while (question := read("state")["question"]) is None:
            pass
    while client.ask("POST", "/answer", {"digest": question["digest"], "approved": True}).status != 200:
        pass  # it was shown too short a time


@pytest.mark.slow
def test_without_a_terminal_a_run_waits_for_its_page(options: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    process = start("run", "go", "--no-tui", *options)
    assert process.stderr is not None
    told = next(line for line in process.stderr if b"Its page" in line)
    found = re.search(r"http://\S+", told.decode())
    assert found is not None
    allow_on_page(found[0])
    assert process.wait(60) == 0
    assert (tmp_path / "workspace" / "made").exists()


def test_a_question_at_the_terminal_ends_when_the_page_answers_it(
    options: tuple[str, ...], at_terminal: Callable[..., Recorded], home: Path, tmp_path: Path
) -> None:
    def answer(_process: subprocess.Popen[bytes], _terminal: int) -> None:
        address = hosted_at(find_stored(home / ".ohsandbox" / "conversations", "last"))
        assert address is not None
        allow_on_page(address)

    ended = at_terminal("run", "go", *options, answers=[(b"Allow this call?", answer), (b"answered elsewhere", b"")])
    assert ended.code == 0, ended.raw
    assert (tmp_path / "workspace" / "made").exists()


def test_view_in_a_session_serves_its_page_and_that_of_the_next_conversation(
    options: tuple[str, ...], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/view\n/view\n/clear\n/view\n/view now\n"))
    ended = invoke("run", "--no-tui", *[one for one in options if one != "--view"])
    first, again, next_one = re.findall(r"Its page: (http://\S+)", ended.out + ended.err)
    assert first == again == next_one
    assert "Too many words" in ended.out + ended.err


@pytest.mark.slow
def test_view_names_the_page_of_a_run_that_serves_one(
    options: tuple[str, ...], start: Start, invoke: Invoke, capfd: Any
) -> None:
    process = start("run", "go", "--no-tui", *options)
    assert process.stderr is not None
    told = next(line for line in process.stderr if b"Its page" in line).decode()
    capfd.readouterr()
    ended = invoke("view", "last", "--no-open")
    assert (ended.code, ended.out.strip()) == (0, told.split()[-1])
    allow_on_page(ended.out.strip())
    assert process.wait(60) == 0


def test_view_serve_reads_until_it_is_interrupted(start: Start, home: Path) -> None:
    example.usual(home / ".ohsandbox" / "conversations")
    process = start("view", "last", "--serve", "--no-open")
    assert process.stdout is not None
    client = Client(process.stdout.readline().decode().strip())
    with client.events() as read:
        assert read("about")["title"].startswith("A test of")
        assert len(read("entries")["entries"]) == 25
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
