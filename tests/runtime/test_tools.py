"""The three tools of a runtime: the schema that goes to a provider, and the choice of lines."""

from __future__ import annotations

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.runtime import tools


def test_descriptions_begin_with_what_the_tool_does_and_say_its_limits() -> None:
    said = {tool["name"]: tool["description"] for tool in tools.definitions()}
    assert {name: text.split()[0] for name, text in said.items()} == {
        "execute_bash": "Run", "file_read": "Read", "file_write": "Write",
    }  # fmt: skip
    assert "16 MiB" in said["file_read"]
    assert "3600" in said["execute_bash"]


def test_view_range_is_a_plain_array_of_two_integers() -> None:
    schema = tools.definitions()[1]["inputSchema"]["properties"]["view_range"]["anyOf"][0]
    assert schema == {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


@pytest.mark.parametrize("first_last", [(1, 1), (1, -1), (1, 9)])
def test_an_empty_file_has_no_lines(first_last: tuple[int, int]) -> None:
    assert tools.select_lines(b"", first_last) == ""


def test_only_a_line_feed_ends_a_line() -> None:
    assert tools.select_lines("a\u2028b\x0cc\rd\ne".encode(), (2, 2)) == "e"


def test_a_wrong_range_tells_how_many_lines_there_are() -> None:
    with pytest.raises(ToolError, match="which has 2 lines"):
        tools.select_lines(b"a\nb", (3, 4))


def test_bytes_that_are_no_utf8_are_shown_as_replaced() -> None:
    assert tools.select_lines(b"caf\xe9\n", None) == "caf\ufffd\n"
