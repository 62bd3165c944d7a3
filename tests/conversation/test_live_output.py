"""What running calls print, as somebody hears it who looks on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ohsandbox import Agent, CLIRuntime, Conversation
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.runtime.shell.output import printable_end
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES
from ohsandbox.secrets import Masker, Secrets
from tests.fakes import FakeModel, RecordingRuntime, answer, call, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.runtime.base import Runtime

SECRET = "k3y-9f8e7d6c5b4a-not-for-you"
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"


def bash(command: str) -> Any:
    return answer("", call("execute_bash", {"command": command}))


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    (tmp_path / "work").mkdir()
    with CLIRuntime(tmp_path / "work", bubblewrap=False, quiet=True) as started:
        yield started


class Looker:
    """Keeps what is heard of a conversation, and lets its command go on once text is among it."""

    def __init__(self, conversation: Conversation, text: str, go: Path) -> None:
        self.heard: list[OutputEvent] = []
        self._text, self._go = text, go
        conversation.register_output(self._hear)

    def _hear(self, event: OutputEvent) -> None:
        self.heard.append(event)
        if self._text in event.text:
            self._go.touch()

    @property
    def text(self) -> str:
        return "\n".join(event.text for event in self.heard)


def watched(
    tmp_path: Path, runtime: Runtime, command: str, *, until: str, name: str = "c", **options: Any
) -> tuple[Conversation, Looker]:
    conversation = Conversation(Agent(FakeModel(bash(command))), runtime, tmp_path / name, **options)
    return conversation, Looker(conversation, until, tmp_path / "work" / "go")


def test_output_is_heard_while_its_command_runs_and_stored_once_with_the_result(
    tmp_path: Path, runtime: Runtime
) -> None:
    command = rf"printf '\033[31mone\033[0m\n 10%%\r 20%%'; {UNTIL_GO}; echo; echo two"
    conversation, looker = watched(tmp_path, runtime, command, until="20%")
    conversation.run("go", timeout_s=30)
    conversation.close()
    [call_id] = {event.tool_call_id for event in looker.heard}
    assert looker.heard[0].name == "execute_bash"
    assert looker.heard[0].text in {"one\n", "one\n 20%"}
    assert {event.type for event in conversation.events()}.isdisjoint({"output"})
    [result] = [event for event in conversation.events() if event.type == "tool_result"]
    assert (result.data["tool_call_id"], "two" in result.data["result"]["output"]) == (call_id, True)


def test_a_secret_in_pieces_is_heard_as_its_mask(tmp_path: Path, runtime: Runtime) -> None:
    half = len(SECRET) // 2
    command = (
        f"echo begun; printf %s '{SECRET[:half]}'; {UNTIL_GO}; rm go; printf %s '{SECRET[half:]}'; echo; "
        f"echo done; {UNTIL_GO}"
    )
    conversation, looker = watched(tmp_path, runtime, command, until="begun", secrets=Secrets({"KEY": SECRET}))
    conversation.run("go", timeout_s=30)
    conversation.close()
    assert "<secret:KEY>" in looker.text
    assert not [part for at in range(len(SECRET) - 8) if (part := SECRET[at : at + 8]) in looker.text]


def test_of_a_flood_the_end_is_heard(tmp_path: Path, runtime: Runtime) -> None:
    command = f"yes 'a line of a flood' | head -c 50000000; echo; echo the end; {UNTIL_GO}"
    conversation, looker = watched(tmp_path, runtime, command, until="the end")
    conversation.run("go", timeout_s=60)
    conversation.close()
    assert max(len(event.text) for event in looker.heard) <= LAST_OUTPUT_BYTES
    assert looker.heard[-1].text.splitlines()[-1] == "the end"
    assert {*looker.heard[-1].text.splitlines()[:-3]} == {"a line of a flood"}


def test_two_conversations_each_hear_their_own(tmp_path: Path) -> None:
    talks = []
    for name in ("one", "two"):
        (tmp_path / name / "work").mkdir(parents=True)
        sandbox = CLIRuntime(tmp_path / name / "work", bubblewrap=False, quiet=True)
        command = f"echo here is {name}; {UNTIL_GO}"
        talks.append(watched(tmp_path / name, sandbox, command, until=f"here is {name}"))
    for conversation, _ in talks:
        conversation.send_message("go")
    for conversation, _ in talks:
        assert conversation.wait(60) == Status.IDLE
        conversation.close()
    assert [{event.text for event in looker.heard} for _, looker in talks] == [{"here is one\n"}, {"here is two\n"}]


def test_a_stop_ends_the_listening(tmp_path: Path, runtime: Runtime) -> None:
    conversation, _ = watched(tmp_path, runtime, "echo begun; sleep 300", until="nothing")
    begun = threading.Event()
    conversation.register_output(lambda _: begun.set())
    conversation.send_message("go")
    assert begun.wait(60)
    [listening] = [thread for thread in threading.enumerate() if thread.name == "ohsandbox-output"]
    assert conversation.stop() is Status.CANCELED
    listening.join(60)
    assert not listening.is_alive()
    conversation.close()


def test_where_nobody_listens_nothing_is_looked_at(tmp_path: Path) -> None:
    seen: list[str] = []

    def note_threads(_: str) -> str:
        seen.extend(thread.name for thread in threading.enumerate())
        return ""

    conversation = Conversation(Agent(FakeModel(bash("x"))), RecordingRuntime(note_threads), tmp_path)
    conversation.run("go", timeout_s=60)
    conversation.close()
    assert seen
    assert "ohsandbox-output" not in seen


class Printing(RecordingRuntime):
    """A sandbox whose shell has always something to show."""

    def last_output(self, session: str = "main", *, limit_bytes: int = 4096) -> bytes:
        return f"{session} {limit_bytes} {len(self.commands)}".encode()


def test_output_belongs_to_the_call_that_runs_and_not_to_those_that_wait(tmp_path: Path) -> None:
    heard: list[OutputEvent] = []
    told = {command: threading.Event() for command in ("a", "b")}

    def hear(event: OutputEvent) -> None:
        heard.append(event)
        told["ab"[int(event.text[-1]) - 1]].set()

    def wait(command: str) -> str:
        assert told[command].wait(60)
        return ""

    calls = [call("execute_bash", {"command": command}, call_id=f"call_{command}") for command in told]
    model = FakeModel(answer("", *calls))
    conversation = Conversation(Agent(model), Printing(wait), tmp_path, confirmation="always")
    conversation.register_output(hear)
    conversation.run("go", timeout_s=60)
    assert heard == []
    conversation.confirm()
    conversation.wait(60)
    conversation.close()
    assert {(event.tool_call_id, event.text[-1]) for event in heard} == {("call_a", "1"), ("call_b", "2")}


class Failing(RecordingRuntime):
    def last_output(self, *_: Any, **__: Any) -> bytes:
        self.looked.set()
        raise OSError("gone")

    looked = threading.Event()


def test_a_tool_that_cannot_say_disturbs_nothing(tmp_path: Path) -> None:
    runtime = Failing(lambda _: str(Failing.looked.wait(60)))
    conversation = Conversation(Agent(FakeModel(bash("x"))), runtime, tmp_path)
    conversation.register_output(lambda event: pytest.fail(f"heard {event}"))
    conversation.run("go", timeout_s=30)
    conversation.close()
    assert "True" in results_of(conversation)[0]["output"]


def test_the_steps_of_a_sub_agent_are_heard(tmp_path: Path, runtime: Runtime) -> None:
    model = FakeModel(
        answer("", call("delegate", {"task": "look"})),
        answer("", call("execute_bash", {"command": f"{UNTIL_GO}\necho"})),
        answer("Looked."),
    )
    conversation = Conversation(Agent(model, ("execute_bash", "delegate")), runtime, tmp_path / "c")
    looker = Looker(conversation, "$ until", tmp_path / "work" / "go")
    conversation.run("go", timeout_s=30)
    conversation.close()
    assert {(event.name, event.text) for event in looker.heard} == {("delegate", f"$ {UNTIL_GO} echo")}


VALUE = "".join(f"{number:04d}." for number in range(5000))[:20000]


LINES = f"-----BEGIN KEY-----\n{'q7Zx' * 60}\nend of it\n"


@example(secret=LINES, before="", after="", end=277)  # the window ends after a line that is masked by itself
@given(
    secret=st.sampled_from([SECRET, VALUE, LINES]),
    before=st.text(max_size=50),
    after=st.text(max_size=50),
    end=st.integers(0, 30_000),
)
def test_no_window_of_a_stream_shows_a_part_of_a_secret(secret: str, before: str, after: str, end: int) -> None:
    stream = f"{before}{'x' * 16}\n{secret}{after}\n{'y' * 200}\n{secret}".encode()[:end]
    shown = printable_end(stream[-LAST_OUTPUT_BYTES:], Masker({"KEY": secret}))
    assert not [at for at in range(0, len(secret) - 16, 7) if secret[at : at + 16] in shown]


@given(st.binary(max_size=300))
def test_any_bytes_are_printable(data: bytes) -> None:
    shown = printable_end(data, None)
    assert not [one for one in shown if ord(one) < 0x20 and one not in "\n\t"]
    assert "\x7f" not in shown
