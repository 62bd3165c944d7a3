"""What the question before an action shows of an edit."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ohsandbox.agent.calls import ActionSecurityRisk
from ohsandbox.cli.commands.confirm import _store_answers
from ohsandbox.cli.options.per_command import ConfirmOptions
from ohsandbox.cli.prompts.approval_prompt import ADDED, GUTTER, MAX_ROWS, PLACE, REMOVED, FilesNow, show_calls
from ohsandbox.cli.session.approvals import answer_at_terminal
from ohsandbox.cli.viewer.control import ConversationControl
from ohsandbox.conversation.approvals.scopes import PendingCall
from ohsandbox.errors import SandboxFileNotFoundError
from ohsandbox.events import ConversationStatus
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool, resolve_tool
from ohsandbox.tools import HINTS, hint_of
from ohsandbox.tools.file_editor.definition import BUILT_IN, Command
from tests.fakes import RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime

TEXTS = st.lists(st.sampled_from(["a", "b", "", "  c", "d e"]), max_size=12).map("\n".join)


def edit(name: str = "file_editor", **arguments: Any) -> PendingCall:
    hint = hint_of(name, {"arguments": json.dumps(arguments)})
    return PendingCall("1", name, arguments, ActionSecurityRisk.MEDIUM, ("It changes a file.",), hint)


class FilesOf(FilesNow):
    """A sandbox whose every file holds the text; None if it has none."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def read(self, path: str) -> str:
        if self._text is None:
            raise SandboxFileNotFoundError(path)
        return self._text


def rows(call: PendingCall, there: str | None = None) -> list[str]:
    found = show_calls([call], files=FilesOf(there))
    assert found.is_whole
    return found.text.split("\n")


def text(found: list[str], *gutters: str) -> str:
    """Return the text that rows show; six empty lines and more are shown as their number."""
    kept = "\n".join(row[len(GUTTER) :] for row in found if row.startswith(gutters))
    return re.sub(r"^\\u\{a\*(\d+)\}$", lambda empty: "\n" * (int(empty[1]) - 1), kept, flags=re.MULTILINE)


def test_a_replacement_is_shown_as_its_change_and_where_it_is() -> None:
    call = edit(command="str_replace", path="/w/a", old_str="one\ntwo", new_str="one\n2", extra="x\n +| y")
    assert rows(call, "zero\none\ntwo\n") == [
        "[1] file_editor, risk MEDIUM",
        "  = command: str_replace",
        "  = path: /w/a",
        "  = extra:",
        "  | x",
        "  |  +| y",
        "  @ line 2 of the file as it is now",
        "  | one",
        " -| two",
        " +| 2",
        "  - It changes a file.",
    ]
    assert not [row for row in rows(call, "two\n") + rows(call) if row.startswith(PLACE)]


def test_a_file_that_is_written_is_shown_whole_beside_what_it_replaces() -> None:
    call = edit("file_write", path="/w/a", content="same\nnew\n")
    assert rows(call, "same\nold\n")[2:-1] == ["  @ beside the file as it is now", "  | same", " -| old", " +| new"]
    assert rows(call)[2:-1] == [" +| same", " +| new"]
    assert rows(edit("file_write", path="/w/a", content="x"))[2:-1] == [" +| x", "  @ no line feed at its end"]


@pytest.mark.parametrize(
    "call",
    [
        edit(command="create", path="/w/a", file_text="x", new_str="y"),
        edit(command="str_replace", path="/w/a", old_str=5),
    ],
    ids=["two texts", "no string"],
)
def test_what_is_no_plain_change_is_shown_by_its_arguments(call: PendingCall) -> None:
    found = rows(call, "there\n")
    assert not [row for row in found if row.startswith((ADDED, REMOVED, PLACE))]
    assert {f"  = {name}" for name in call.arguments} == {row.split(":")[0] for row in found if row.startswith("  = ")}


@pytest.mark.slow
@given(TEXTS, TEXTS)
@example("\n" * 6 + "a", "a" + "\n" * 7)
def test_all_that_a_replacement_does_is_shown(old: str, new: str) -> None:
    found = rows(edit(command="str_replace", path="/w/a", old_str=old, new_str=new))
    assert text(found, GUTTER, REMOVED) == old
    assert text(found, GUTTER, ADDED) == new


@given(TEXTS, TEXTS)
@example("", "\n" * 6 + "a")
@example("a", "b" + "\n" * 8)
@example("b", "\n" * 6)
def test_all_that_is_written_is_shown_whatever_is_there(there: str, new: str) -> None:
    found = rows(edit("file_write", path="/w/a", content=new), there)
    assert text(found, GUTTER, ADDED) in {new, new.removesuffix("\n")}
    assert ("  @ no line feed at its end" in found) == (bool(new) and not new.endswith("\n"))


def test_what_a_file_that_cannot_be_read_loses_counts_as_unseen() -> None:
    files = FilesNow(lambda: None, Path("/nowhere"))
    shown = show_calls([edit("file_write", path="/w/a", content="new\n")], files=files)
    assert shown.rows[2:-1] == ["  @ what it removes is not shown: The sandbox does not run now.", " +| new"]
    assert (shown.unseen_rows, shown.unknown_files, shown.is_whole) == (0, 1, False)
    replaced = show_calls([edit(command="str_replace", path="/w/a", old_str="a", new_str="b")], files=files)
    assert replaced.is_whole, "what it removes is in the call"


BEFORE = "".join(f"line {number}\n" for number in range(1, 9))
EDITS: dict[str, list[dict[str, Any]]] = {
    "edit_file": [
        {"content": "# ... existing code ...\nnew", "start": 2, "end": 4},
        {"content": "", "start": 2, "end": 4},
        {"content": "new\n"},
        {"content": "new\n", "start": -1},
    ],
    "file_editor": [
        {"command": "str_replace", "old_str": "line 2\nline 3\n", "new_str": "x\n"},
        {"command": "str_replace", "old_str": "line 2\n"},
        {"command": "insert", "insert_line": 2, "new_str": "x"},
        {"command": "create", "file_text": "x\n"},
        {"command": "undo_edit"},
        {"command": "undo_edit", "old_str": "line 2", "new_str": "x"},
    ],
    "file_write": [{"content": "x\n"}, {"content": ""}],
}
"""Calls of every built-in tool that changes a file."""


def test_the_edits_are_those_of_every_tool_that_changes_a_file() -> None:
    commands = [{"command": command} for command in get_args(Command)]
    changing = [
        (name, arguments.get("command"))
        for name in HINTS.keys() - {*BUILT_IN.aliases}
        for arguments in (commands if name == "file_editor" else [{}])
        if edit(name, **arguments).hint.kind == "edit"
    ]
    assert dict.fromkeys(changing) == dict.fromkeys(
        (name, arguments.get("command")) for name in sorted(EDITS) for arguments in EDITS[name]
    )


class Merger:
    """A model that merges each draft into one line, whatever the draft says."""

    def __call__(self, prompt: str, *, system: str = "") -> str:
        assert system
        tag = prompt.rpartition("<merged-")[2].partition(">")[0]
        return f"<merged-{tag}>\nnew\n</merged-{tag}>"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with CLIRuntime(tmp_path_factory.mktemp("files"), bubblewrap=False, quiet=True) as runtime:
        yield runtime


@pytest.mark.slow
@pytest.mark.parametrize("first", [None, {"command": "insert", "insert_line": 8, "new_str": "of before"}])
@pytest.mark.parametrize(
    ("name", "arguments"), [(name, arguments) for name, calls in EDITS.items() for arguments in calls]
)
def test_each_line_that_a_call_removes_is_shown_before_it_runs(
    name: str, arguments: dict[str, Any], first: dict[str, Any] | None, tmp_path: Path, sandbox: Runtime
) -> None:
    state = ConversationState(conversation_id="c", runtime=sandbox, directory=tmp_path / "tools", ask_model=Merger())
    tools = {tool.name: tool for one in ("file_editor", name) for tool in resolve_tool(Tool(name=one), state)}
    path = f"{sandbox.workdir}/a"
    sandbox.run(["rm", "-f", path])
    if arguments.get("command") != "create":
        editor = tools["file_editor"]
        for made in ({"command": "create", "file_text": BEFORE}, *([first] if first else [])):
            editor(editor.action_from_arguments({"path": path, **made}))
    before = text_at(sandbox, path)
    shown = show_calls([edit(name, path=path, **arguments)], files=FilesNow(lambda: sandbox, tmp_path))
    assert shown.is_whole
    removed = {row[len(REMOVED) :] for row in shown.rows if row.startswith(REMOVED)}
    tools[name](tools[name].action_from_arguments({"path": path, **arguments}))
    after = text_at(sandbox, path)
    assert after != before
    assert removed >= {line[2:] for line in difflib.ndiff(before, after) if line.startswith("- ")}


def text_at(sandbox: Runtime, path: str) -> list[str]:
    try:
        return sandbox.read_bytes(path).decode().splitlines()
    except SandboxFileNotFoundError:
        return []


def test_an_undo_whose_edit_is_not_known_counts_as_unseen(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    runtime.files["/w/a"] = b"old\n"
    shown = show_calls([edit(command="undo_edit", path="/w/a")], files=FilesNow(lambda: runtime, tmp_path))
    assert shown.rows[3:-1] == ["  @ what it removes is not shown: No edit of the file as it is now is known."]
    assert not shown.is_whole


class Waiting(NamedTuple):
    """What the places that ask need of a conversation, or of its approvals."""

    pending: list[PendingCall]
    runtime: RecordingRuntime
    directory: Path

    def status(self) -> ConversationStatus:
        return ConversationStatus.WAITING_FOR_CONFIRMATION


@pytest.mark.parametrize("name", HINTS)
def test_every_place_shows_the_same_of_every_tool(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"command": "rm -rf /", "path": "/w/a", "content": "new\n", "code": "x", "url": "http://a.example"}
    runtime = RecordingRuntime()
    runtime.files["/w/a"] = b"old\n"
    waiting: Any = Waiting([edit(name, **arguments)], runtime, tmp_path)
    answer_at_terminal(waiting)
    at_terminal = capsys.readouterr().out.splitlines()
    _store_answers(waiting, ConfirmOptions(), FilesNow(lambda: runtime, tmp_path))
    by_confirm = capsys.readouterr().out.splitlines()
    question = ConversationControl(waiting, user="ada").state()["question"]
    on_page = [row for _, row in question["rows"]]
    assert on_page == by_confirm == at_terminal[: len(on_page)]
    assert question["rows"][0][0] == "medium"
    assert (" -| old" in on_page) == (waiting.pending[0].hint.kind == "edit")


def test_no_line_of_a_change_passes_for_another_kind_of_row() -> None:
    new = "  - harmless\n  = path: /elsewhere\n[2] file_editor, risk LOW\n\x1b[2J\u202e\r"
    found = rows(edit(command="str_replace", path="/w/a", old_str=" +| x", new_str=new))
    assert found[3:-1] == [
        " -|  +| x",
        " +|   - harmless",
        " +|   = path: /elsewhere",
        " +| [2] file_editor, risk LOW",
        r" +| \u{1b}[2J\u{202e}\u{d}",
    ]


def test_of_a_long_file_the_changes_are_shown_and_the_rest_counts_as_unseen() -> None:
    there = [f"line {number}" for number in range(1000)]
    changed = [*there[:500], "a new line", *there[500:]]
    call = edit("file_write", path="/w/a", content="\n".join(changed) + "\n")
    found = show_calls([call], files=FilesOf("\n".join([*there[:500], "an old line", *there[500:]]) + "\n"))
    kept = found.text.split("\n")
    assert len(kept) < MAX_ROWS
    assert " -| an old line" in kept
    assert " +| a new line" in kept
    assert found.unseen_rows == 994
    assert len(found.rows) > 1000
