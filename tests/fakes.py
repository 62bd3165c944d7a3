"""Small stand-ins: a model that follows a list, and a runtime that remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ohsandbox.errors import file_error
from ohsandbox.events import SDKEvent
from ohsandbox.llm import ChatMessage, ChatResponse, Choice, FunctionCall, ModelCanceledError, ToolCall, Usage
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.results import CommandObservation, DirEntry

if TYPE_CHECKING:
    from os import PathLike

    from ohsandbox.conversation import Conversation
    from ohsandbox.events import EventBody
    from ohsandbox.runtime.channel import Channel

Turn = ChatResponse | BaseException | Callable[[], ChatResponse]


def call(name: str | None, arguments: Any = None, *, call_id: str = "") -> ToolCall:
    """A tool call; arguments that are not a string are written as JSON."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else {})
    return ToolCall(id=call_id, function=FunctionCall(name=name or "", arguments=raw))


def answer(text: str = "", *calls: ToolCall, finish_reason: str = "stop", **fields: Any) -> ChatResponse:
    """One response of a model."""
    choice = Choice(message=ChatMessage(content=text, tool_calls=calls), finish_reason=finish_reason)
    values = {"id": "r", "model": "fake", "usage": Usage(prompt_tokens=10, completion_tokens=5), "cost_usd": 0.25}
    return ChatResponse(choices=(choice,), **{**values, **fields})


class FakeModel:
    """Answers with its turns in order; "done" after the last."""

    name = "fake"
    note = "a fake"
    context_tokens: int | None = None

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.seen: list[list[dict[str, Any]]] = []
        self.choices: list[Any] = []
        self.canceled = threading.Event()
        self.asked = threading.Event()
        self.on_event: Any = None

    def preload(self) -> None:
        """Nothing to load."""

    def cancel(self) -> None:
        self.canceled.set()

    def send(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] = (),  # noqa: ARG002 - a fake offers nothing
        tool_choice: Any = "auto",
        **options: Any,
    ) -> Any:
        self.seen.append(json.loads(json.dumps(list(messages))))
        self.choices.append(tool_choice)
        self.on_event = options.get("on_event")
        self.asked.set()
        turn = self.turns.pop(0) if self.turns else answer("done")
        if isinstance(turn, BaseException):
            raise turn
        return turn if isinstance(turn, ChatResponse) else turn()

    def hang(self) -> NoReturn:
        """A turn that lasts until `cancel`."""
        assert self.canceled.wait(60)
        raise ModelCanceledError("canceled")


class RecordingRuntime(Runtime):
    """Files in a dict, commands in a list; `on_execute` decides what a command gives."""

    def __init__(self, on_execute: Callable[[str], str] = lambda command: f"ran {command}") -> None:
        super().__init__()
        self.on_execute = on_execute
        self.commands: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.alive = True
        self.log: list[str] = []
        self.interrupted = threading.Event()

    @property
    def id(self) -> str:
        return "fake"

    @property
    def workdir(self) -> str:
        return "/workspace"

    def start(self) -> Self:
        self.log.append("start")
        self.alive = True
        return self

    def _close(self) -> None:
        if self.alive:
            self.log.append("close")
        self.alive = False

    def is_alive(self) -> bool:
        return self.alive

    def open_channel(self, argv: Sequence[str], **_: Any) -> Channel:
        raise NotImplementedError(argv)

    def execute(self, command: str, *, cancel: threading.Event | None = None, **options: Any) -> CommandObservation:
        if cancel is not None:
            self.interrupted = cancel
        self.commands.append(command)
        self.calls.append(options)
        return CommandObservation(command=command, output=self.on_execute(command), exit_code=0, cwd=self.workdir)

    def interrupt(self, session: str = "main") -> None:
        self.log.append(f"interrupt {session}")
        self.interrupted.set()

    def close_session(self, name: str) -> None:
        self.log.append(f"close_session {name}")

    def read_bytes(self, path: str | PathLike[str], **_: Any) -> bytes:
        path = str(path)
        if path not in self.files:
            raise file_error(2, "No such file or directory", path)
        return self.files[path]

    def list_dir(self, path: str | PathLike[str], **_: Any) -> list[DirEntry]:
        above = "" if str(path) == "." else f"{path}/"
        below = {name.removeprefix(above) for name in self.files if name.startswith(above)}
        names = sorted({name.partition("/")[0] for name in below})
        return [DirEntry(name, "file" if name in below else "directory", 0, 0o644, datetime.now(UTC)) for name in names]

    def write_bytes(self, path: str | PathLike[str], data: bytes, **_: Any) -> None:
        self.files[str(path)] = data


def stamp(*bodies: EventBody) -> list[SDKEvent]:
    """The events as a log gives them back."""
    now = datetime.now(UTC)
    return [
        SDKEvent(type=body.type, ts=now, conversation_id="c", seq=seq, data=body.data)
        for seq, body in enumerate(bodies)
    ]


def data_of(events: Sequence[SDKEvent], event_type: str) -> list[dict[str, Any]]:
    """The data of every event of a type."""
    return [event.data for event in events if event.type == event_type]


def results_of(conversation: Conversation) -> list[Mapping[str, Any]]:
    """The ToolResult of every answered call."""
    return [data["result"] for data in data_of(conversation.events(), "tool_result")]
