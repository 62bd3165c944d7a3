"""Tools and observations as the protocol has them."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.mcp_server.server import listed, result_of
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.schema import Action, ErrorObservation
from ohsandbox.tool import ToolDefinition
from ohsandbox.tools.execute_ipython_cell import IPythonObservation
from ohsandbox.tools.glob import GlobObservation
from ohsandbox.tools.grep import GrepMatch, GrepObservation

MAX_IMAGES, MAX_RESULT_CHARS = DEFAULT_LIMITS.max_images, DEFAULT_LIMITS.max_result_chars
PNG = "data:image/png;base64,AAAA"


def tool(kind: type[Any]) -> ToolDefinition[Any, Any]:
    return ToolDefinition(name="tool", description="Do it.", action_type=Action, observation_type=kind)


@pytest.mark.parametrize(
    "observation",
    [
        CommandObservation(command="c", output="o", exit_code=None, cwd="/"),
        CommandObservation(command="c", output="\udcff", exit_code=0, cwd="/", notice="n"),
        IPythonObservation(text="t", images=(PNG,)),
        GlobObservation(text="t", files=("/a\udcff",)),
        GrepObservation(text="t", matches=(GrepMatch("/a", 1, "x"),), files=("/a\udcff",)),
    ],
)
def test_what_is_sent_is_what_the_output_schema_says(observation: Any) -> None:
    made = tool(type(observation))
    sent = result_of(made, observation).structured_content
    Draft202012Validator(listed(made).output_schema).validate(sent)
    assert "�" in str(sent) or "\udcff" not in str(observation)


def test_images_are_blocks_and_no_text() -> None:
    result = result_of(tool(IPythonObservation), IPythonObservation(text="t", images=(PNG,)))
    assert types.ImageContent(data="AAAA", mime_type="image/png") in result.content
    assert "AAAA" not in str(result.structured_content)


def test_images_that_are_too_many_or_too_large_are_told() -> None:
    images = (*[PNG] * (MAX_IMAGES + 2), PNG + "A" * DEFAULT_LIMITS.max_image_chars)
    result = result_of(tool(IPythonObservation), IPythonObservation(text="t", images=images))
    assert len(result.content) == 1 + MAX_IMAGES
    assert "[1 image(s) over 5 MiB left out]" in str(result.content[0])
    assert "[2 more image(s) left out; at most 8 are shown]" in str(result.content[0])


def test_an_error_is_marked_and_has_no_structured_content() -> None:
    result = result_of(tool(CommandObservation), ErrorObservation(message="no"))
    assert (result.is_error, result.structured_content) == (True, None)


def test_text_is_bounded() -> None:
    result = result_of(tool(CommandObservation), ErrorObservation(message="x" * 2 * MAX_RESULT_CHARS))
    assert len(str(result.content[0])) < MAX_RESULT_CHARS + 500
