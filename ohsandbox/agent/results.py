"""The result of a call: an observation, or the reason why it did not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import events
from ohsandbox.events import ToolResult
from ohsandbox.schema import ImageContent, text_of
from ohsandbox.tool import cut_middle
from ohsandbox.tool.output import MAX_IMAGE_CHARS, MAX_IMAGES, MAX_RESULT_CHARS

if TYPE_CHECKING:
    from ohsandbox.events import EventBody
    from ohsandbox.schema import Observation


class ObservationEvent(NamedTuple):
    """The observation of a tool that ran; a failure is an observation too."""

    tool_call_id: str
    name: str
    observation: Observation

    @property
    def is_error(self) -> bool:
        """Whether the tool failed."""
        return self.observation.is_error

    @property
    def event(self) -> EventBody:
        """The `tool_result` event: text and images, both limited, and the short fields."""
        images, left_out = _images(self.observation)
        text = cut_middle("\n".join([text_of(self.observation), *left_out]), limit_chars=MAX_RESULT_CHARS)
        return events.tool_result(
            tool_call_id=self.tool_call_id,
            name=self.name,
            result=ToolResult.failed(text) if self.is_error else ToolResult.ok(text),
            details=events.short_fields(self.observation.model_dump(exclude={"images"})),
            images=images,
        )


class AgentErrorEvent(NamedTuple):
    """A call that did not run: unreadable arguments, an unknown tool, or a rejected call."""

    tool_call_id: str
    name: str
    error: str
    """For the model: the reason and the remedy."""

    @property
    def is_error(self) -> bool:
        """Always."""
        return True

    @property
    def event(self) -> EventBody:
        """The `tool_result` event of status error."""
        text = cut_middle(self.error, limit_chars=MAX_RESULT_CHARS)
        return events.tool_result(tool_call_id=self.tool_call_id, name=self.name, result=ToolResult.failed(text))


ResultEvent = ObservationEvent | AgentErrorEvent


def _images(observation: Observation) -> tuple[list[str], list[str]]:
    """The images for the model, and a line for each excess one."""
    contents = [part for part in observation.to_llm_content if isinstance(part, ImageContent)]
    urls = [url for part in contents for url in part.image_urls]
    fitting = [url for url in urls if len(url) <= MAX_IMAGE_CHARS]
    left_out = []
    if len(fitting) < len(urls):
        left_out.append(f"[{len(urls) - len(fitting)} image(s) over {MAX_IMAGE_CHARS // 1024 // 1024} MiB left out]")
    if len(fitting) > MAX_IMAGES:
        left_out.append(f"[{len(fitting) - MAX_IMAGES} more image(s) left out; at most {MAX_IMAGES} are shown]")
    return fitting[:MAX_IMAGES], left_out
