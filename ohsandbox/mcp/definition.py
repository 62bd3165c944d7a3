"""`MCPToolDefinition`, the definition of a server's tool, and `MCPToolObservation`, its result."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field
from rich.text import Text

from ohsandbox.content import Content, ImageContent, TextContent
from ohsandbox.mcp.text import Mask, masked, one_line, printable
from ohsandbox.runtime.tools import MCPAction
from ohsandbox.schema import Action, Observation
from ohsandbox.tool import ToolAnnotations, ToolDefinition, ToolExecutor, cut_middle, output, take_security_risk
from ohsandbox.tool.arguments import SECURITY_RISK, parse_action
from ohsandbox.tool.schema import with_security_risk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_types import CallToolResult, ContentBlock

    from ohsandbox.mcp.tool_listing import ListedTool


MAX_RESULT_CHARS = output.MAX_CHARS

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""The limit of the strictest provider."""

MAX_IMAGES = 20
"""Limit per result; each image costs a thousand tokens or more."""

MAX_BLOCKS = 200
"""Limit per result; each block takes at least one line."""

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
}  # fmt: skip
"""First bytes of the formats that models read; WebP has its signature at the ninth byte."""


class MCPToolObservation(Observation):
    """The content of a result, in its order."""

    server: str
    tool: str
    content: tuple[Content, ...]
    structured: Any = None
    """The structured content as JSON has it; its text is in `content` already."""
    failed: bool = False
    """The server's `isError`."""

    @property
    def is_error(self) -> bool:
        """What the server says."""
        return self.failed

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The content; never empty."""
        return self.content or (TextContent(text=f"[{self.tool} returned nothing.]"),)


def observe(server: str, tool: str, result: CallToolResult, *, mask: Mask) -> MCPToolObservation:
    """Make the observation of a result; mask removes secrets from every text."""
    content: list[Content] = []
    for block in result.content[:MAX_BLOCKS]:
        shown = _shown(block)
        if isinstance(shown, ImageContent) and sum(isinstance(part, ImageContent) for part in content) >= MAX_IMAGES:
            shown = TextContent(text=f"[image left out: at most {MAX_IMAGES} are shown]")
        content.append(shown)
    if (more := len(result.content) - MAX_BLOCKS) > 0:
        content.append(TextContent(text=f"[{more} more parts of {len(result.content)} left out]"))
    structured = masked(result.structured_content, mask)
    text = json.dumps(structured, ensure_ascii=False)
    if structured is not None and not _is_said(result.structured_content, content):
        content.append(TextContent(text=text))
    return MCPToolObservation(
        server=server, tool=tool, content=tuple(_bounded(content, mask)), failed=result.is_error,
        structured=structured if len(text) <= MAX_RESULT_CHARS else None,  # the content holds a longer one, truncated
    )  # fmt: skip


def _shown(block: ContentBlock) -> Content:  # noqa: PLR0911 - one a kind
    if block.type == "text":
        return TextContent(text=block.text)
    if block.type == "image":
        return _image(block.data, said=block.mime_type)
    if block.type == "audio":
        kind = one_line(block.mime_type, limit_chars=100)
        return TextContent(text=f"[audio, {kind}, {_size(block.data)} bytes: it cannot be shown here]")
    if block.type == "resource_link":
        words = (one_line(text, limit_chars=2000) for text in (str(block.uri), block.name, block.description or ""))
        return TextContent(text=f"[link to a resource, not read: {' - '.join(filter(None, words))}]")
    resource = block.resource
    where = f"{one_line(str(resource.uri), limit_chars=2000)}, {one_line(resource.mime_type or '', limit_chars=100)}"
    if (text := getattr(resource, "text", None)) is not None:
        return TextContent(text=f"[resource {where}]\n{text}")
    blob: str = getattr(resource, "blob", "")
    if (resource.mime_type or "").startswith("image/"):
        return _image(blob, said=resource.mime_type or "")
    return TextContent(text=f"[resource {where}, {_size(blob)} bytes: binary, not shown]")


def _image(data: str, *, said: str) -> Content:
    """The image if its bytes are an image, whatever MIME type the server declares."""
    said = one_line(said, limit_chars=100)
    if _size(data) > MAX_IMAGE_BYTES:
        return TextContent(text=f"[image, {said}, {_size(data)} bytes: left out, at most {MAX_IMAGE_BYTES} are shown]")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return TextContent(text=f"[image, {said}: left out, its base64 is broken]")
    kind = next((kind for mark, kind in _SIGNATURES.items() if raw.startswith(mark)), None)
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        return TextContent(text=f"[image, {said}, {len(raw)} bytes: left out, not a PNG, JPEG, GIF or WebP]")
    return ImageContent(image_urls=(f"data:{kind};base64,{data}",))


def _size(encoded: str) -> int:
    return len(encoded) * 3 // 4


def _is_said(structured: Any, content: Sequence[Content]) -> bool:
    """Whether a text of the content is the structured content as JSON, as the protocol recommends.

    FastMCP's servers wrap a plain value as `{"result": value}`; their text holds the value only.
    """
    plain = structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    for part in content:
        if isinstance(part, TextContent):
            if part.text == plain:
                return True
            try:
                said = json.loads(part.text)
            except (ValueError, RecursionError):
                continue
            if said in (structured, plain):
                return True
    return False


def _bounded(content: Sequence[Content], mask: Mask) -> list[Content]:
    """Clean and mask every text; all texts share MAX_RESULT_CHARS fairly."""
    texts = [mask(printable(part.text)) for part in content if isinstance(part, TextContent)]
    share = MAX_RESULT_CHARS // max(1, len(texts)) if sum(map(len, texts)) > MAX_RESULT_CHARS else MAX_RESULT_CHARS
    left = iter(texts)
    made: list[Content] = []
    for part in content:
        if isinstance(part, TextContent):
            made.append(TextContent(text=cut_middle(next(left), limit_chars=share)))
        else:
            made.append(part)
    return made


__all__ = ["MCPAction", "MCPToolAction", "MCPToolDefinition", "MCPToolExecutor"]


class MCPToolAction(Action):
    """The arguments of one call, checked against the server's schema."""

    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def visualize(self) -> Text:
        """One line an argument, as of any other action."""
        text = Text()
        for name, value in self.arguments.items():
            text.append(f"{name}: ", style="bold")
            text.append(f"{value}\n")
        text.rstrip()
        return text


class Caller(Protocol):
    """The interface to the servers."""

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> MCPToolObservation:
        """Call a tool by the server's name for it.

        Raises:
            MCPError: see `ohsandbox.mcp.errors`.
        """

    def interrupt(self, server: str, tool: str) -> None:
        """Cancel the pending calls of a tool; the server gets a cancellation."""

    def close(self) -> None:
        """End all servers. Safe to call twice."""


class MCPToolExecutor(ToolExecutor[MCPToolAction, MCPToolObservation]):
    """Bound to one tool of one server."""

    def __init__(self, caller: Caller, server: str, tool: str, *, owns_caller: bool = False) -> None:
        """With owns_caller, closing the tool ends all servers."""
        self._caller, self._server, self._tool, self._owns_caller = caller, server, tool, owns_caller

    def __call__(self, action: MCPToolAction) -> MCPToolObservation:
        """Call the tool.

        Raises:
            MCPError: the call returned no result; the message gives the reason and the consequence.
            SandboxUnavailable: the sandbox is gone.
        """
        return self._caller.call(self._server, self._tool, action.arguments)

    def interrupt(self) -> None:
        """Cancel the pending calls of this tool; from any thread."""
        self._caller.interrupt(self._server, self._tool)

    def close(self) -> None:
        """End the servers if the tool owns them."""
        if self._owns_caller:
            self._caller.close()


def believed(hints: ToolAnnotations) -> ToolAnnotations:
    """The hints to use from an untrusted server: the title, and hints that raise the risk.

    MCP 2025-06-18, "Tools": annotations are untrusted unless they come from a trusted server.
    """
    said = hints.model_fields_set
    dangers = {name: True for name in ("destructiveHint", "openWorldHint") if name in said and getattr(hints, name)}
    return ToolAnnotations(title=hints.title, **dangers)


@dataclass(frozen=True, kw_only=True)
class MCPToolDefinition(ToolDefinition[MCPToolAction, MCPToolObservation]):
    """A tool of an MCP server. `listed` holds the server's description of it."""

    server: str
    listed: ListedTool

    @classmethod
    def create(
        cls,
        server: str,
        listed: ListedTool,
        caller: Caller,
        *,
        name: str,
        aliases: tuple[str, ...] = (),
        owns_caller: bool = False,
        trusted: bool = False,
    ) -> list[MCPToolDefinition]:
        """Create the tool under the model's name for it; trusted is as in `ServerConfig.trusted`."""
        return [
            cls(
                name=name,
                description=listed.description,
                action_type=MCPToolAction,
                observation_type=MCPToolObservation,
                annotations=listed.annotations if trusted else believed(listed.annotations),
                executor=MCPToolExecutor(caller, server, listed.name, owns_caller=owns_caller),
                aliases=aliases,
                server=server,
                listed=listed,
            )
        ]

    @property
    def arguments_type(self) -> type[Action]:
        """The action type of the server's schema."""
        return self.listed.action_type

    def action_from_arguments(self, arguments: Mapping[str, Any]) -> MCPToolAction:
        """The action for a model's arguments, checked against the server's schema.

        A `security_risk` that the server's schema does not declare is checked and dropped.

        Raises:
            ToolArgumentsError: an argument is missing, unknown or wrong.
        """
        if SECURITY_RISK not in self.listed.schema["properties"]:
            arguments, _ = take_security_risk(self.name, arguments)
        checked = parse_action(self.name, self.listed.action_type, arguments)
        return MCPToolAction(arguments=checked.to_arguments())

    def to_mcp_tool(self) -> dict[str, Any]:
        """The entry of an MCP `tools/list` answer."""
        tool = {"name": self.name, "description": self.description, "inputSchema": self.listed.schema}
        return {**tool, "annotations": self.listed.annotations.model_dump(exclude_none=True)}

    def _parameters(self) -> dict[str, Any]:
        return self.listed.schema if self.is_read_only else with_security_risk(self.listed.schema)
