"""`Action` and `Observation`: what goes into a tool and what comes out."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic reads annotations at run time

from pydantic import BaseModel, ConfigDict
from rich.text import Text

from ohsandbox.content import Content, ImageContent, TextContent


class Schema(BaseModel):
    """Root of both: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Action(Schema):
    """What a tool is asked to do; its fields are the tool's arguments."""

    @property
    def visualize(self) -> Text:
        """The action for a person's eyes: one line an argument."""
        text = Text()
        for name, value in self.model_dump(exclude_defaults=True).items():
            text.append(f"{name}: ", style="bold")
            text.append(f"{value}\n")
        text.rstrip()
        return text


class Observation(Schema):
    """What came of an action."""

    @property
    def is_error(self) -> bool:
        """Whether the tool failed; a command's non-zero exit code is no failure of the tool."""
        return False

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """What the model is shown."""
        return [TextContent(text=self.model_dump_json())]

    @property
    def visualize(self) -> Text:
        """The observation for a person's eyes."""
        parts = [
            part.text if isinstance(part, TextContent) else f"[{len(part.image_urls)} image(s)]"
            for part in self.to_llm_content
        ]
        return Text("\n".join(parts))


class TextObservation(Observation):
    """Plain text."""

    text: str

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The text as it is."""
        return [TextContent(text=self.text)]


class ErrorObservation(Observation):
    """A tool failed; the model reads why."""

    message: str

    @property
    def is_error(self) -> bool:
        """Always."""
        return True

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The message."""
        return [TextContent(text=self.message)]


def text_of(observation: Observation) -> str:
    """All text parts of an observation, joined."""
    return "\n".join(part.text for part in observation.to_llm_content if isinstance(part, TextContent))


__all__ = [
    "Action",
    "Content",
    "ErrorObservation",
    "ImageContent",
    "Observation",
    "Schema",
    "TextContent",
    "TextObservation",
    "text_of",
]
