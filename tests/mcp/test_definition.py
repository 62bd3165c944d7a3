"""What a server says of its tools, made fit for a model; names; frames; results. No server is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, Tool

from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.mcp import definition
from ohsandbox.mcp.config import confusable_key
from ohsandbox.mcp.content import MAX_BLOCKS, MAX_IMAGES, observe, printable, visible_excerpt, visible_line
from ohsandbox.mcp.definition import (
    MAX_DEFINITION_CHARS,
    MCPToolAction,
    MCPToolDefinition,
    ServerTool,
    UnusableToolError,
    definition_of,
    fingerprint_of,
    listed_tool,
    names_for_model,
)
from ohsandbox.mcp.streams import FloodError, LineFramer
from ohsandbox.schema import Action, text_of
from ohsandbox.schema.execution import parse_action

if TYPE_CHECKING:
    from pathlib import Path

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 20).decode()


def tool(schema: dict[str, Any] | None = None, **fields: Any) -> Tool:
    return Tool.model_validate({"name": "t", "inputSchema": schema or {"type": "object"}, **fields})


# --- descriptions -------------------------------------------------------------------------------


def test_hidden_characters_leave_a_description() -> None:
    poison = "Adds\u200b numbers.\x1b[8m hidden\x1b[0m\u202e\U000e0048\U000e0049 \x9b31mred \x1b]52;c;cm0=\x07 end"
    said = listed_tool("s", tool(description=poison)).description
    assert said.startswith("Adds numbers. hidden red  end\n(Described by the MCP server 's'")


def test_a_long_description_is_cut_and_says_so() -> None:
    said = listed_tool("s", tool(description="x" * 5000)).description
    assert "x" * 2048 + " [... 2952 more characters left out]" in said
    assert len(said) < 2300


def test_an_arguments_description_is_cleaned_and_its_values_are_not() -> None:
    prop = {"type": "string", "description": "a\u200bb" + "y" * 3000, "enum": ["one\u200b"]}
    named = {"description": {"type": "string"}}
    schema = listed_tool("s", tool({"type": "object", "properties": {"p": prop, **named}})).schema
    assert schema["properties"]["p"]["description"].startswith("aby")
    assert len(schema["properties"]["p"]["description"]) < 1100
    assert schema["properties"]["p"]["enum"] == ["one\u200b"]
    assert schema["properties"]["description"] == {"type": "string"}


def test_annotations_are_the_servers_and_else_the_cautious_ones() -> None:
    hints = listed_tool("s", tool(annotations={"readOnlyHint": True, "title": "A\x1b[31m b"})).annotations
    assert (hints.readOnlyHint, hints.destructiveHint, hints.openWorldHint, hints.title) == (True, True, True, "A b")


# --- schemas ------------------------------------------------------------------------------------

BOMB = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/l0"}},
    "$defs": {
        **{
            f"l{n}": {"type": "object", "properties": {f"p{i}": {"$ref": f"#/$defs/l{n + 1}"} for i in range(10)}}
            for n in range(12)
        },
        "l12": {"type": "string"},
    },
}


LOOP = {"$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": LOOP}, "$defs": {"n": {"properties": {"a": LOOP}}}},
        {"type": "object", "properties": {"a": {"$ref": "https://evil.test/schema.json"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"type": "object", "properties": {"a": 7}, "required": "a"},
    ],
)  # fmt: skip
def test_a_hostile_schema_is_offered_without_references(schema: dict[str, Any]) -> None:
    listed = listed_tool("s", tool(schema))
    assert "$ref" not in json.dumps(listed.schema)
    parse_action("t", listed.action_type, {"a": {}} if "pattern" not in str(schema) else {"a": "a" * 50})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{n}": {"type": "string", "enum": ["x" * 100] * 10} for n in range(100)}},
        {"type": "object", "properties": {"a b": {}}},
        {"type": "object", "properties": {"x" * 65: {}}},
    ],
)
def test_what_providers_would_refuse_is_not_offered(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableToolError):
        listed_tool("s", tool(schema))


@pytest.mark.parametrize("name", ["", "x" * 129, "a\u200bb", "\u202ehsab", "\x1b[31mred", "two\nlines", " a"])
def test_a_name_that_does_not_show_itself_is_not_offered(name: str) -> None:
    with pytest.raises(UnusableToolError, match="can be seen"):
        listed_tool("s", tool(name=name))


def test_a_bomb_of_references_is_bounded() -> None:
    with contextlib.suppress(UnusableToolError):  # not offered is as well
        assert len(json.dumps(listed_tool("s", tool(BOMB)).schema)) < 70_000


def test_a_fingerprint_sees_every_change_and_no_order() -> None:
    one = tool({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}})
    two = tool({"properties": {"b": {}, "a": {"type": "string"}}, "type": "object"})
    assert fingerprint_of(one) == fingerprint_of(two)
    others = [
        tool(description="d"),
        tool(title="t"),
        tool(annotations={"readOnlyHint": True}),
        tool({"type": "object", "x": 1}),
    ]
    assert len({fingerprint_of(other) for other in [one, tool(), *others]}) == 6


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "reserved", "names"),
    [
        (["a:x", "b:y"], [], ["x", "y"]),
        (["a:x", "b:x", "b:y"], [], ["a__x", "b__x", "y"]),
        (["a:finish"], ["finish"], ["a__finish"]),
        (["a:Finish"], ["finish"], ["a__Finish"]),
        (["a.b:x y", "c:x.y"], [], ["a_b__x_y", "x_y"]),
        (["a:x", "b:x", "c:a__x"], [], ["a__x", "b__x", "c__a__x"]),
        (["a.b:x", "a-b:x", "a_b:x"], [], ["a_b__x", "a-b__x", "a_b__x_2"]),
        (["a:漢字", "b:"], [], ["a____", "b__"]),
    ],
)
def test_names_are_short_and_unique(tools: list[str], reserved: list[str], names: list[str]) -> None:
    keys = [ServerTool(*one.split(":", 1)) for one in tools]
    assert list(names_for_model(keys, reserved).values()) == names


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("helper__run", "x__helper__run"),
        ("helper._run", "x__helper__run"),
        ("Helper__run", "x__Helper__run"),
        ("hel\u0440er__run", "x__hel_er__run"),
        ("helper\u2017run", "x__helper_run"),
        ("\uff48elper__run", "x___elper__run"),
        ("\u0435xecute_bash", "x___xecute_bash"),
        ("Execute-Bash", "x__Execute-Bash"),
        ("execute.bash", "x__execute_bash"),
        ("helper_run", "helper_run"),
    ],
)
@pytest.mark.parametrize("foreign", [[], ["helper"]], ids=["a person's", "a repository's"])
def test_a_tool_named_like_another_servers_or_ours_has_its_own_server_before_its_name(
    tool: str, name: str, foreign: list[str]
) -> None:
    key = ServerTool("x", tool)
    assert names_for_model([key], ["execute_bash"])[key] == name
    names = names_for_model([key, ServerTool("helper", "run")], ["execute_bash"], foreign=foreign)
    assert names[key] == name
    assert names[ServerTool("helper", "run")] == ("helper__run" if foreign else "run")


SERVER_NAMES = st.from_regex(r"[a-bB]{1,2}([-_.][a-bB])?", fullmatch=True)


@given(st.lists(st.tuples(SERVER_NAMES, st.text("abB_-.\u0430\u2017", max_size=9)), max_size=6), st.data())
def test_no_name_begins_with_the_prefix_of_another_server_that_could_be_there(
    tools: list[tuple[str, str]], data: st.DataObject
) -> None:
    later = data.draw(SERVER_NAMES)
    for tool, name in names_for_model([ServerTool(*tool) for tool in tools], []).items():
        if confusable_key(tool.server) != confusable_key(later):
            assert not confusable_key(name).startswith(f"{confusable_key(later)}__")


def test_long_names_that_begin_alike_stay_apart() -> None:
    keys = [ServerTool("server", "x" * 100 + end) for end in "ab"]
    names = list(names_for_model(keys, []).values())
    assert len(set(names)) == 2
    assert all(len(name) <= 64 for name in names)


# --- frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_come_whole_however_they_are_cut(size: int) -> None:
    data, framer = b"one\r\n\ntwo\nlast", LineFramer(10)
    lines = [line for at in range(0, len(data), size) for line in framer.feed(data[at : at + size])]
    assert lines == [b"one", b"", b"two"]
    assert framer.rest() == b"last"


@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n", b"ok\n" + b"x" * 11])
def test_a_long_line_is_refused_and_forgotten(data: bytes) -> None:
    framer = LineFramer(10)
    with pytest.raises(FloodError):
        framer.feed(data)
    assert framer.rest() == b""


# --- results ------------------------------------------------------------------------------------


def result(*content: dict[str, Any], **fields: Any) -> Any:
    made = CallToolResult.model_validate({"content": list(content), **fields})
    return observe("s", "t", made, mask=lambda text: text.replace("hunter22", "***"))


def test_nothing_is_told_as_such() -> None:
    assert text_of(result()) == "[t returned nothing.]"


def test_structured_content_is_shown_once() -> None:
    said = {"type": "text", "text": '{"a": [1, 2]}'}
    assert text_of(result(said, structuredContent={"a": [1, 2]})) == '{"a": [1, 2]}'
    assert text_of(result({"type": "text", "text": "hi"}, structuredContent={"result": "hi"})) == "hi"
    assert text_of(result({"type": "text", "text": "hi"}, structuredContent={"a": 1})) == 'hi\n{"a": 1}'
    assert text_of(result(structuredContent={"items": []})) == '{"items": []}'
    assert (
        text_of(result({"type": "text", "text": "0"}, structuredContent={"deleted": False})) == '0\n{"deleted": false}'
    )


@pytest.mark.parametrize("shape", ["{'content': text}", "{'result': [text, '2']}", "[text, 2]"])
def test_structured_content_that_wraps_the_texts_is_not_shown(shape: str) -> None:
    text = "a line\n" * 1000
    structured = eval(shape, {"text": text})
    parts = [{"type": "text", "text": text}] + [{"type": "text", "text": "2"}] * ("2" in shape)
    seen = result(*parts, structuredContent=structured)
    assert text_of(seen) == "\n".join(part["text"] for part in parts)
    assert seen.structured == structured


def test_structured_content_refers_to_a_long_text_and_an_image_that_are_shown() -> None:
    text, data = "a line\n" * 1000, base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 200).decode()
    parts = [{"type": "text", "text": text}, {"type": "image", "data": data, "mimeType": "image/png"}]
    shown = text_of(result(*parts, structuredContent={"url": "http://x", "content": text, "parts": parts}))
    assert (shown.count("a line"), shown.count(data)) == (1000, 0)
    assert json.loads(shown.splitlines()[-1])["content"] == "[see above]"


def test_secrets_are_masked_before_the_cut() -> None:
    text = "x" * (DEFAULT_LIMITS.max_chars // 2 - 4) + "hunter22" + "y" * DEFAULT_LIMITS.max_chars
    assert "hunt" not in text_of(result({"type": "text", "text": text}, structuredContent={"k": "hunter22"}))


def test_numbers_that_json_has_not_are_texts() -> None:
    said = result(structuredContent={"a": [float("nan"), float("-inf"), 1, True, None]})
    assert said.structured == {"a": ["nan", "-inf", 1, True, None]}
    assert json.loads(text_of(said)) == said.structured


def test_many_parts_are_bounded() -> None:
    flood = [{"type": "text", "text": "z" * 1000}] * 5000
    assert len(text_of(result(*flood))) < DEFAULT_LIMITS.max_chars + MAX_BLOCKS * 100
    images = result(*[{"type": "image", "data": PNG, "mimeType": "image/png"}] * 50).content
    assert sum(part.type == "image" for part in images) == MAX_IMAGES


@pytest.mark.parametrize(
    ("data", "told"), [("!!", "base64 is broken"), ("A" * 8_000_000, "left out, at most"), ("AAAA", "not a PNG")]
)
def test_what_is_no_image_is_told(data: str, told: str) -> None:
    assert told in text_of(result({"type": "image", "data": data, "mimeType": "image/png\x1b[31m"}))


def test_printable_keeps_what_people_write() -> None:
    text = "tab\tnew\nline é 漢字 👩\u200d🚀"
    assert printable(text) == text
    assert printable("a\r\nb\x00\x07c\ud800") == "a\nbc\ufffd"
    assert visible_line("a\n b\u200b", limit_chars=10) == "a b"
    assert visible_excerpt("12345", limit_chars=3) == "123 [... 2 more characters left out]"


# --- import -------------------------------------------------------------------------------------


def test_the_package_loads_no_fastmcp_until_it_is_needed() -> None:
    program = (
        "import sys, ohsandbox.mcp as m\n"
        "m.MCPServers(m.MCPConfig.parse({'mcpServers': {'s': {'command': 'x', 'where': 'host'}}}), None)\n"
        "print([n for n in ('fastmcp', 'mcp', 'mcp_types') if n in sys.modules])\n"
        "print(m.MCPClient.__name__)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout == "[]\nMCPClient\n"


def test_a_repositorys_env_file_is_no_setting_of_ours(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FASTMCP_CLIENT_DISCONNECT_TIMEOUT=nonsense\n")
    program = "import ohsandbox.mcp as m; print(m.MCPClient.__name__)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ended.stdout == "MCPClient\n", ended.stderr


def test_a_control_string_without_its_end_hides_nothing() -> None:
    assert printable("a\x1b]0;title\x07b") == "ab"
    assert printable("a\x1b]52;c;\nthe rest") == "a52;c;\nthe rest"
    assert printable("\x9dnever ends") == "never ends"


def test_definition_for_comparison_has_a_line_each_and_a_bound() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}
    short = definition_of(Tool(name="t", description="One.\nTwo.", input_schema=schema))
    assert short.startswith("description:\n  One.\n  Two.\ninputSchema:\n  {\n")
    assert short.index('"a"') < short.index('"b"')
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"items": deep}
    assert "items" in definition_of(Tool(name="t", input_schema=deep))
    long = definition_of(Tool(name="t", description="x" * 100_000, input_schema=schema))
    assert len(long) < MAX_DEFINITION_CHARS + 100
    assert long.endswith("more characters are not kept]")


def test_a_typed_model_is_made_when_it_is_asked_for_with_the_tools_description(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = definition._create_mcp_action_type

    def recorded(name: str, *arguments: Any) -> type[Action]:
        made.append(name)
        return create(name, *arguments)

    monkeypatch.setattr(definition, "_create_mcp_action_type", recorded)
    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    listed = listed_tool("s", tool(schema, name="fetch-url", description="Fetches a page."))
    [offered] = MCPToolDefinition.create("s", listed, cast("Any", None), name="fetch-url")
    parameters = offered.to_openai_tool()["function"]["parameters"]
    assert (offered.action_type, made) == (MCPToolAction, [])
    assert {"url", "security_risk"} == {*parameters["properties"]}
    action = offered.action_from_arguments({"url": "http://x/"})
    assert (type(action), action.arguments, made) == (MCPToolAction, {"url": "http://x/"}, ["fetch-url"])
    offered.action_from_arguments({"url": "http://y/"})
    assert made == ["fetch-url"]
    typed = offered.arguments_type
    assert typed.__name__ == "FetchUrl"
    assert (typed.__doc__ or "").startswith("Fetches a page.")
