"""Running the calls of one response: each is stored before it runs, its result after."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.errors import OhsandboxError, SandboxFileError, ToolError, UsageError
from ohsandbox.events import EventBody, ToolResult
from ohsandbox.schema import ErrorObservation, ImageContent, Observation, text_of
from ohsandbox.tool import cut_middle
from ohsandbox.tools import AgentFinishAction

if TYPE_CHECKING:
    from ohsandbox.agent.calls import PlannedCall
    from ohsandbox.agent.held import StoredCall

    AnyCall = PlannedCall | StoredCall

MAX_SIDE_BY_SIDE = 4
"""Of the read-only calls of one response so many run at a time: more would only queue for the sandbox's cores."""

MAX_RESULT_CHARS = 100_000
"""The last bound on any tool's result; the tools that ship cut at 30,000 themselves."""

MAX_IMAGES = 8
MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Of one result so many images, each so long as a data URL: what Anthropic's API takes (docs, "Vision", 2025)."""

FINISHED_BEFORE = "Not executed: `finish` came before it in the same reply."


class StepOutcome(Enum):
    """What follows a step."""

    CONTINUE = "continue"
    """The model has the next word."""
    IDLE = "idle"
    """The user has."""
    FINISHED = "finished"
    """The model called `finish`."""
    WAITING = "waiting"
    """Somebody must allow the calls that were stored."""


Step = Generator[EventBody, None, StepOutcome]


def _never() -> None:
    """Nobody stops the run."""


def run_calls(planned: Sequence[PlannedCall | StoredCall], *, stopped: Callable[[], str | None] = _never) -> Step:
    """Run the calls in their order; neighbours that only read run side by side. Nothing runs after `finish`.

    All `tool_call` events of a group are yielded before any of it runs; then its results, in the order of the calls,
    each as soon as it and those before it are there. `stopped` says, where it does, why what has not begun is not run.
    """
    finished = False
    for group in _groups(planned):
        for call in group:
            if call.event is not None:
                yield call.event
        for call, observation in _observations(group, refusal=FINISHED_BEFORE if finished else stopped()):
            yield _result_event(call, observation)
            finished = finished or (isinstance(call.action, AgentFinishAction) and not observation.is_error)
    return StepOutcome.FINISHED if finished else StepOutcome.CONTINUE


def _groups(planned: Sequence[AnyCall]) -> list[list[AnyCall]]:
    """Neighbours that may run side by side together; every other call by itself."""
    groups: list[list[AnyCall]] = []
    for call in planned:
        if groups and _only_reads(call) and _only_reads(groups[-1][-1]):
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _only_reads(call: AnyCall) -> bool:
    if call.refusal or call.tool is None or isinstance(call.action, AgentFinishAction):
        return False
    return call.tool.is_read_only


def _observations(group: list[AnyCall], *, refusal: str | None) -> Iterator[tuple[AnyCall, Observation]]:
    if refusal or len(group) == 1:
        for call in group:
            yield call, _observe(call, refusal=call.refusal or refusal)
        return
    with ThreadPoolExecutor(min(MAX_SIDE_BY_SIDE, len(group)), thread_name_prefix="ohsandbox-call") as pool:
        yield from zip(group, pool.map(_observe, group), strict=True)


def _observe(call: AnyCall, refusal: str | None = None) -> Observation:
    """The observation; a tool's failure is one too, a sandbox's or an interrupt is not."""
    if refusal is not None:
        return ErrorObservation(message=refusal)
    assert call.tool is not None  # noqa: S101 - a call without refusal has its tool
    try:
        observation: Observation = call.tool(call.action)
    except SandboxFileError as error:
        return ErrorObservation(message=f"{error.filename}: {error.strerror}")
    except (ToolError, UsageError) as error:  # a runtime that refuses what the model gave: a NUL, a directory
        return ErrorObservation(message=str(error))
    except OhsandboxError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault in a tool is the model's to hear, whatever it is
        return ErrorObservation(message=f"Tool {call.name!r} failed: {type(error).__name__}: {error}")
    return observation


def _result_event(call: AnyCall, observation: Observation) -> EventBody:
    images, left_out = _images(observation)
    text = cut_middle("\n".join([text_of(observation), *left_out]), limit_chars=MAX_RESULT_CHARS)
    return events.tool_result(
        tool_call_id=call.tool_call_id,
        name=call.name,
        result=ToolResult.failed(text) if observation.is_error else ToolResult.ok(text),
        details=events.short_fields(observation.model_dump(exclude={"images"})),
        images=images,
    )


def _images(observation: Observation) -> tuple[list[str], list[str]]:
    """The images that the model is shown, and a line for each that is too much."""
    contents = [part for part in observation.to_llm_content if isinstance(part, ImageContent)]
    urls = [url for part in contents for url in part.image_urls]
    fitting = [url for url in urls if len(url) <= MAX_IMAGE_CHARS]
    left_out = []
    if len(fitting) < len(urls):
        left_out.append(f"[{len(urls) - len(fitting)} image(s) over {MAX_IMAGE_CHARS // 1024 // 1024} MiB left out]")
    if len(fitting) > MAX_IMAGES:
        left_out.append(f"[{len(fitting) - MAX_IMAGES} more image(s) left out; at most {MAX_IMAGES} are shown]")
    return fitting[:MAX_IMAGES], left_out
