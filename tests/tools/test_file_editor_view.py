"""What `file_editor` takes and shows, in its three places. F numbers are those of the adversarial list."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import ToolArgumentsError, ToolError, UsageError
from ohsandbox.schema import ImageContent, text_of
from ohsandbox.state import ConversationState
from ohsandbox.tools.file_editor import FileEditorTool
from ohsandbox.tools.file_editor.definition import MAX_FILE_BYTES, MAX_IMAGE_BYTES
from tests.tools.editing import Editor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENOUGH_CHARS = 35_000
"""The limit of 30,000 and what is said beside it."""


@pytest.fixture
def editor(state: ConversationState, folder: str) -> Editor:
    return Editor(state, folder)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Editor]:
    """One place is enough where the bytes are ours alone."""
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        state = ConversationState(conversation_id="c", runtime=runtime, directory=tmp_path / "memory")
        yield Editor(state, str(tmp_path))


def test_lines_are_numbered_as_cat_does_and_end_at_line_feeds_only(local: Editor) -> None:
    local.write("a\n\x0cb\u2028c\r\n\n".encode())
    assert local.say("view").partition(":\n")[2] == "     1\ta\n     2\t\x0cb\u2028c\n     3\t"
    local.write(b"")
    assert "is empty" in local.say("view")
    assert "is empty" in local.say("view", view_range=[1, -1])


@pytest.mark.parametrize(
    ("view_range", "numbers"),
    [
        ([2, 3], [2, 3]),
        ([3, -1], [3, 4]),
        ([4, 10**18], [4]),
        ("[1, 1]", [1]),
        (None, [1, 2, 3, 4]),
        ([], [1, 2, 3, 4]),
    ],
)
def test_range_is_from_one_and_its_last_line_is_included(local: Editor, view_range: object, numbers: list[int]) -> None:
    local.write(b"x\nx\nx\nx")
    shown = local.say("view", view_range=view_range).splitlines()
    assert [int(line.split()[0]) for line in shown if "\t" in line] == numbers


@pytest.mark.parametrize("view_range", [[0, 1], [-1, 1], [3, 2], [1], [1, -2], "x"])
def test_range_that_is_none_is_refused(local: Editor, view_range: object) -> None:
    local.write(b"x\nx\nx\nx")
    with pytest.raises(ToolArgumentsError, match="view_range"):  # F36
        local.do("view", view_range=view_range)


def test_range_past_the_end_says_how_long_the_file_is(local: Editor) -> None:
    local.write(b"x\nx\n")
    assert "has 2 lines" in local.refusal("view", view_range=[3, 4])


def test_long_file_is_bounded_and_every_number_is_right(local: Editor) -> None:
    local.write(b"".join(b"line %d\n" % number for number in range(1, 200_001)))
    for view_range in ([1, -1], [123_456, 180_000]):
        shown = local.say("view", view_range=view_range)
        assert len(shown) < ENOUGH_CHARS
        rows = [row.split("\t") for row in shown.splitlines() if "\t" in row]
        assert all(text == f"line {int(number)}" for number, text in rows)
        following = int(shown.partition("[... lines ")[2].partition("-")[0])
        assert following == int(rows[-1][0]) + 1
        assert f"{following}\tline {following}" in local.say("view", view_range=[following, following])
    assert "199998\tline 199998" in local.say("insert", insert_line=200_000, new_str="end")


@pytest.mark.slow
def test_line_of_50_mb_is_cut_and_can_be_edited(editor: Editor) -> None:
    editor.write(b"x" * 25_000_000 + b"HERE" + b"x" * 25_000_000)  # F11
    shown = editor.say("view")
    assert len(shown) < ENOUGH_CHARS
    assert "of the 50000004 characters of line 1" in shown
    said = editor.say("str_replace", old_str="HERE", new_str="THERE")
    assert "xxTHERExx" in said
    assert len(said) < ENOUGH_CHARS


@pytest.mark.parametrize("size", [2**30, 15 * 2**30])
def test_sparse_file_gets_a_short_answer(editor: Editor, size: int) -> None:
    editor.sh(f"dd if=/dev/zero of=f bs=1 count=0 seek={size} 2>/dev/null")  # F10
    assert f"a binary file of {size} bytes" in editor.refusal("view")
    for command in ("str_replace", "insert", "undo_edit"):
        assert len(editor.refusal(command, old_str="a", insert_line=0, new_str="b")) < 300
    editor.sh("rm f")


def test_part_of_a_file_that_is_too_large_is_found_in_the_sandbox(editor: Editor) -> None:
    editor.sh("yes 'hello world' | head -c 80000000 > f")
    shown = editor.say("view", view_range=[6_000_000, 6_000_001])
    assert shown.endswith("6000000\thello world\n6000001\thello world")
    assert "80000000 bytes" in shown
    assert len(editor.say("view")) < ENOUGH_CHARS
    assert "no line 7000000" in editor.refusal("view", view_range=[7_000_000, -1])
    assert str(MAX_FILE_BYTES) in editor.refusal("str_replace", old_str="hello")
    editor.sh("rm f")


@pytest.mark.parametrize(
    "data", [b"\x7fELF\0\0", bytes(range(1, 256)) * 8, b"%PDF-1.4\n" + bytes(range(1, 32)) * 9 + b"\xff"]
)
def test_binary_file_is_told_as_such_and_not_shown(local: Editor, data: bytes) -> None:
    local.write(data)  # F9
    for command in ("view", "str_replace", "insert"):
        said = local.refusal(command, old_str="x", insert_line=0, new_str="y")
        assert f"a binary file of {len(data)} bytes" in said
        assert len(said) < 300


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "png"), (b"\xff\xd8\xff\xe0\0", "jpeg"), (b"GIF89a\1\0", "gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"), (b"BM\x46\0\0\0\0\0\0\0", "bmp"),
    ],
)  # fmt: skip
def test_image_is_shown_by_what_it_is(local: Editor, head: bytes, kind: str) -> None:
    local.write(head)
    [_, image] = local.do("view").to_llm_content
    assert image == ImageContent(image_urls=(f"data:image/{kind};base64,{base64.b64encode(head).decode()}",))
    local.write(head + bytes(MAX_IMAGE_BYTES))
    assert "Make a smaller copy" in local.refusal("view")


def test_text_that_begins_like_an_image_is_text(local: Editor) -> None:
    local.write(b"GIF89a is a format\nBM too\n")
    assert "\tGIF89a is" in local.say("view")


def test_directory_is_shown_two_levels_deep(editor: Editor) -> None:
    editor.sh(r'mkdir -p b/c/d .git; touch a .hidden b/c/d/deep "b/x y"; ln -s b link; touch "$(printf "n\\377\\nl")"')
    header, *lines = editor.say("view", "").splitlines()
    assert header.startswith(f"{editor.folder}/, two levels deep")
    assert lines[:5] == ["a", "b/", "b/c/", "b/x y", "link@"]
    assert any(line.startswith("$'") and "\\xff\\x0al" in line for line in lines)
    assert lines[-1] == f"[... 2 hidden in {editor.folder}/: ls -A shows them ...]"


def test_large_directory_is_bounded_and_says_what_is_left_out(editor: Editor) -> None:
    editor.sh("mkdir m; cd m; seq -f x%05g 1 3000 2>/dev/null | xargs touch || seq 10001 13000 | xargs touch")
    assert "2900 more in m/" in editor.say("view", "")
    shown = editor.say("view", "m")
    assert "2000 more entries" in shown
    assert len(shown) < ENOUGH_CHARS


def test_first_level_is_shown_before_any_of_the_second(local: Editor) -> None:
    local.sh('for d in $(seq 10 59); do mkdir "d$d"; (cd "d$d"; seq 1 60 | xargs touch); done; touch zlast')
    shown = local.say("view", "")
    assert "zlast" in shown.splitlines()
    assert shown.count("d59/") == 19  # itself and its share of the 1,000
    assert "2100 more in 50 of the directories" in shown


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "str_replace"}, "needs old_str"),
        ({"command": "create"}, "needs file_text"),
        ({"command": "insert", "new_str": "x"}, "needs insert_line"),
        ({"command": "insert", "insert_line": 1}, "needs new_str"),
        ({"command": "delete"}, "'view', 'create'"),
    ],
)
def test_missing_argument_is_named(local: Editor, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolArgumentsError, match=said):
        local.tool.action_from_arguments({"path": "/f", **arguments})


def test_spellings_of_models_are_taken(local: Editor) -> None:
    local.write(b"a\n")
    local.do("insert", insert_line="1", insert_text="b", view_range=None, old_str=None, security_risk="low")
    assert local.read() == b"a\nb\n"
    assert local.tool.aliases == ("str_replace_editor", "str_replace_based_edit_tool")


def test_a_relative_path_stands_in_the_working_directory_wherever_a_shell_does(editor: Editor) -> None:
    below = f"relative-{editor.folder.rpartition('/')[2]}"

    def do(command: str, path: str, **arguments: Any) -> str:
        action = editor.tool.action_from_arguments({"command": command, "path": path, **arguments})
        return text_of(editor.tool(action))

    editor.runtime.execute("cd /")
    try:
        assert f"{editor.runtime.workdir}/{below}/f" in do("create", f"{below}/f", file_text="a\n")
        assert editor.runtime.read_bytes(f"{below}/f") == b"a\n"
        do("str_replace", f"./{below}//f", old_str="a", new_str="b")
        do("insert", f"{editor.runtime.workdir}/{below}/f", insert_line=1, new_str="c")
        assert "b" in do("view", f"{below}/f")
        assert "f" in do("view", below)
        assert editor.runtime.read_bytes(f"{below}/f") == b"b\nc\n"
        for _ in range(3):
            do("undo_edit", f"{below}/f")
        with pytest.raises(FileNotFoundError):
            editor.runtime.read_bytes(f"{below}/f")
    finally:
        editor.runtime.run(["rm", "-rf", below])
        editor.runtime.close_session("main")


def test_a_home_directory_is_to_be_written_out(local: Editor) -> None:
    with pytest.raises(ToolError, match="home directory"):
        local.tool(local.tool.action_from_arguments({"command": "view", "path": "~/f"}))


def test_tool_describes_itself_and_needs_a_runtime(local: Editor) -> None:
    function = local.tool.to_openai_tool()["function"]
    assert function["parameters"]["required"] == ["command", "path"]
    assert all("description" in field for field in function["parameters"]["properties"].values())
    assert len(function["description"]) < 4096
    assert local.tool.annotations is not None
    hints = local.tool.annotations
    assert (hints.readOnlyHint, hints.destructiveHint, hints.openWorldHint) == (False, True, False)
    with pytest.raises(UsageError, match="no runtime"):
        FileEditorTool.create(conv_state=ConversationState(conversation_id="c"))
