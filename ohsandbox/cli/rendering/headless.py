"""Views for programs: only the answer on stdout, or every event as a line of JSON; `open_view` picks a view."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from ohsandbox.cli.rendering.events import Block, CallBlock, Form, MessageBlock, NoteBlock
from ohsandbox.cli.rendering.text import masked, safe, say
from ohsandbox.cli.rendering.view import PlainView, View
from ohsandbox.events.event import KINDS, ConversationStatus

if TYPE_CHECKING:
    from ohsandbox.conversation.run.result import RunResult
    from ohsandbox.events import SDKEvent
    from ohsandbox.network.audit import NetworkDecision


class RunSummary(BaseModel):
    """The last line of a run with `--json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["result"] = "result"
    conversation_id: Annotated[str, Field(description="What `ohsandbox run --resume` takes.")]
    status: ConversationStatus
    answer: Annotated[str | None, Field(description="The agent's last words; null for none.")]
    error: Annotated[str | None, Field(description="What ended the run, where status is ERROR.")]
    steps: Annotated[int, Field(description="Answers of the model.")]
    usage: Annotated[dict[str, int], Field(description="Tokens of the run's requests to the model.")]
    cost_usd: Annotated[float | None, Field(description="US dollars; null where no answer had a price.")]
    changed_files: Annotated[
        list[str], Field(description="Absolute paths in the sandbox, as far as the log knows them.")
    ]

    @classmethod
    def of(cls, conversation_id: str, result: RunResult) -> RunSummary:
        """Make the summary of a run."""
        responses = {event.data.get("response_id") for event in result.events}
        return cls(
            conversation_id=conversation_id,
            status=result.status,
            answer=result.answer,
            error=None if result.error is None else masked(str(result.error)),
            steps=len(responses - {None, ""}),
            usage=result.usage.model_dump(),
            cost_usd=result.cost_usd,
            changed_files=[*result.changed_files],
        )


class NetworkLine(BaseModel):
    """The decision on a request of the sandbox to its allowlist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["network"] = "network"
    time: Annotated[float, Field(description="Seconds since the epoch.")]
    host: str
    port: int
    protocol: str
    method: Annotated[str, Field(description="Of the HTTP request; CONNECT for HTTPS.")]
    allowed: bool
    reason: Annotated[str, Field(description="Why, as the second half of a sentence about the host.")]
    rule: Annotated[str, Field(description="The rule that allows it; empty for none.")]

    @classmethod
    def of(cls, decision: NetworkDecision) -> NetworkLine:
        """Make the line of a decision."""
        return cls(**{name: getattr(decision, name) for name in cls.model_fields if name != "type"})


def json_line(event: SDKEvent) -> str:
    """Return an event as one line of ASCII."""
    return json.dumps(event.model_dump(mode="json", exclude={"data"}) | {"data": event.data})  # pydantic nests 255 deep


def line_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line of `--json`: an event of a known kind, a network decision, or the result."""
    lines: list[type[BaseModel]] = [*KINDS.values(), NetworkLine, RunSummary]
    refs, schema = models_json_schema([(line, "validation") for line in lines])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A line of ohsandbox run --json"}
    return {**head, "oneOf": [*refs.values()], **schema}


class _SilentView(View):
    """A view that prints only warnings, on stderr."""

    def __init__(self) -> None:
        super().__init__(Form.PLAIN)

    def show_block(self, block: Block) -> None:
        if isinstance(block, NoteBlock) and block.is_warning:
            say(f"{block.kind}: {block.text}")

    def status(self, text: str) -> None:
        pass

    def tick(self) -> None:
        pass


class JsonView(_SilentView):
    """Prints each event on stdout as a line of JSON, as in the log, and a run's result as its last line."""

    def show(self, event: SDKEvent) -> None:
        """Print the event. A warning that is an event is not printed twice."""
        print(json_line(event), flush=True)  # noqa: T201 - the output of the command

    def network(self, decision: NetworkDecision) -> None:
        """Print the decision."""
        print(json.dumps(NetworkLine.of(decision).model_dump(mode="json")), flush=True)  # noqa: T201 - as above

    def result(self, conversation_id: str, result: RunResult) -> None:
        """Print the run's summary."""
        print(json.dumps(RunSummary.of(conversation_id, result).model_dump(mode="json")), flush=True)  # noqa: T201 - as above


class AnswerView(_SilentView):
    """Prints only the answer of each run, on stdout."""

    def result(self, conversation_id: str, result: RunResult) -> None:  # noqa: ARG002 - as `View` has it
        """Print the answer."""
        _print_answer(result)


class PipedView(PlainView):
    """Prints the answer of each run on stdout for another program, and a line per event on stderr for a person."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def show_block(self, block: Block) -> None:
        """Print any block except the answer."""
        match block:
            case MessageBlock("answer") | CallBlock(is_answer=True):
                return
        super().show_block(block)

    def result(self, conversation_id: str, result: RunResult) -> None:  # noqa: ARG002 - as `View` has it
        """Print the answer."""
        _print_answer(result)


def _print_answer(result: RunResult) -> None:
    """Print the answer with its tabs, since it may be a file."""
    if result.answer is not None:
        print("\t".join(map(safe, result.answer.split("\t"))), flush=True)  # noqa: T201 - the output of the command


def open_view(*, no_tui: bool, stored: bool = False) -> View:
    """Return a coloured view at a terminal, else plain lines; stored is for a conversation read from disk."""
    also = Form.STORED if stored else Form.NOWHERE
    if no_tui or not sys.stdout.isatty():
        return PlainView(forms=Form.PLAIN | also)
    from ohsandbox.cli.rendering.terminal import RichView  # noqa: PLC0415 - rich's Markdown is slow to import

    return RichView(forms=Form.TERMINAL | also)
