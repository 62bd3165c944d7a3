"""`file_editor` in its three places. F numbers are those of the adversarial list."""

from __future__ import annotations

import errno
import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import SandboxFileError, ToolArgumentsError
from ohsandbox.state import ConversationState
from tests.tools.editing import Editor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("a b", "a\nb", "it's", '"', "$(touch pwned)", "`id`", "a;b", "-rf", "*", "~", "e\u0301", "\\n", "tab\t", "é")


@pytest.fixture
def editor(state: ConversationState, folder: str) -> Editor:
    return Editor(state, folder)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Editor]:
    """One place is enough where the bytes are ours alone."""
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        state = ConversationState(conversation_id="c", runtime=runtime, directory=tmp_path / "memory")
        yield Editor(state, str(tmp_path))


# --- bytes that nobody edited -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param(b"a\nb", "b", "c", b"a\nc", id="F3 no final newline"),
        pytest.param(b"a\nb\n\n\n", "a\n", "", b"b\n\n\n", id="trailing newlines"),
        pytest.param(b"a\r\nb\r\nc\r\n", "a\nb", "a\nx\ny", b"a\r\nx\r\ny\r\nc\r\n", id="F4 CRLF"),
        pytest.param(b"a\r\nb\nc\r\nd", "a\nb\nc\nd", "a\nb2\nc\nd", b"a\r\nb2\nc\r\nd", id="F4 mixed"),
        pytest.param(b"a\r\nb\nc\n", "a", "a\nn", b"a\r\nn\r\nb\nc\n", id="F4 new line by its neighbour"),
        pytest.param(b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n", id="literal carriage return"),
        pytest.param(b"\xef\xbb\xbfa\nb\n", "a", "c", b"\xef\xbb\xbfc\nb\n", id="F5 byte order mark"),
        pytest.param("\ufeffa é\n".encode("utf-16-le"), "é", "ü", "\ufeffa ü\n".encode("utf-16-le"), id="UTF-16-LE"),
        pytest.param("\ufeffa é\n".encode("utf-16-be"), "a", "ü", "\ufeffü é\n".encode("utf-16-be"), id="UTF-16-BE"),
        pytest.param("\ufeffa é\n".encode("utf-32-le"), "a", "ü", "\ufeffü é\n".encode("utf-32-le"), id="UTF-32"),
        pytest.param(b"caf\xe9 \x81\x80\xff\nx\n", "café", "thé", b"th\xe9 \x81\x80\xff\nx\n", id="F7 latin-1"),
        pytest.param(
            "привет мир\n".encode("cp1251"), "мир", "дом", "привет дом\n".encode("cp1251"), id="cp1251 proven"
        ),
        pytest.param("日本語\n".encode("euc_jp"), "本", "木", "日木語\n".encode("euc_jp"), id="EUC-JP proven"),
        pytest.param(
            b"# coding: koi8-r\nx = '\xd0\xd2'\n", "пр", "рп", b"# coding: koi8-r\nx = '\xd2\xd0'\n", id="declared"
        ),
        pytest.param(
            "é\n".encode() + b"\xff\xfe!\n", "!", "?", "é\n".encode() + b"\xff\xfe?\n", id="UTF-8 with others"
        ),
        pytest.param(
            "éß".encode() + b"\xffa\xfe", "\ufffda\ufffd", "\ufffdb\ufffd", "éß".encode() + b"\xffb\xfe", id="kept"
        ),
        pytest.param(
            b"a\x0cb\x1c\xc2\x85c\xe2\x80\xa8d\rz\n", "d", "e", b"a\x0cb\x1c\xc2\x85c\xe2\x80\xa8e\rz\n", id="odd"
        ),
    ],
)
def test_edit_changes_no_other_byte_and_undo_brings_all_back(
    local: Editor, before: bytes, old: str, new: str, after: bytes
) -> None:
    local.write(before)
    assert local.replace(old, new) == after
    local.do("undo_edit")
    assert local.read() == before


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb", 2, "c", b"a\nb\nc"),
        (b"a\nb", 2, "c\n", b"a\nb\nc"),
        (b"a\nb\n", 2, "c", b"a\nb\nc\n"),
        (b"a\nb\n", 0, "c\nd", b"c\nd\na\nb\n"),
        (b"a\nb", 1, "", b"a\n\nb"),
        (b"a\r\nb", 1, "c\nd", b"a\r\nc\r\nd\r\nb"),
        (b"a\r\nb", 2, "c", b"a\r\nb\r\nc"),
        (b"a\r\nb\nc\n", 2, "x", b"a\r\nb\nx\nc\n"),
        (b"", 0, "a", b"a\n"),
    ],
)
def test_text_is_inserted_as_whole_lines_after_the_line(
    local: Editor, before: bytes, line: int, new: str, after: bytes
) -> None:
    local.write(before)
    local.do("insert", insert_line=str(line), new_str=new)
    assert local.read() == after


def test_line_past_the_end_is_refused_with_the_range(local: Editor) -> None:
    local.write(b"a\nb")
    assert "Give 0 to 2" in local.refusal("insert", insert_line=3, new_str="x")
    with pytest.raises(ToolArgumentsError, match="insert_line"):
        local.do("insert", insert_line=-1, new_str="x")
    assert local.read() == b"a\nb"


def test_character_that_the_encoding_lacks_is_refused_by_name(local: Editor) -> None:
    local.write(b"caf\xe9\n")
    assert "U+4E2D" in local.refusal("str_replace", old_str="caf", new_str="\u4e2d")
    assert "signs \ufffd" in _of_mostly_utf8(local)


def _of_mostly_utf8(editor: Editor) -> str:
    editor.write("é".encode() + b"\xff\n", "g")
    return editor.refusal("str_replace", "g", old_str="\ufffd", new_str="\ufffd\ufffd")


def test_encoding_that_is_asked_for_is_remembered_while_the_file_stays_the_same(local: Editor) -> None:
    local.write("мир\n".encode("koi8-r"))
    assert "мир" not in local.say("view")
    assert "мир" in local.say("view", encoding="koi8-r")
    assert local.replace("мир", "Мир и труд") == "Мир и труд\n".encode("koi8-r")
    local.do("undo_edit")
    assert "мир" in local.say("view")
    assert "'nonsense' is not known" in local.refusal("view", encoding="nonsense")


@pytest.mark.parametrize("name", ["iso2022_jp", "utf-7", "punycode", "idna", "unicode_escape", "rot13", "zlib", "../x"])
def test_encoding_with_state_or_worse_is_taken_from_nobody(local: Editor, name: str) -> None:
    data = b"# coding: " + name.encode() + b"\na \xff\xfe\n"
    local.write(data)
    assert "is not known" in local.refusal("str_replace", old_str="a ", new_str="x", encoding=name)
    assert local.replace("a ", "b ") == data.replace(b"a ", b"b ")


# --- the file stays what it is ----------------------------------------------------------------


def test_mode_and_symlink_stay_and_a_hard_link_keeps_the_old_text(editor: Editor) -> None:
    editor.write(b"old\n", "target")
    editor.sh("chmod 640 target; ln target other; ln -s target f")
    assert editor.replace("old", "new") == b"new\n"
    assert editor.sh("ls -l target").startswith("-rw-r-----")
    assert editor.sh("readlink f; cat other") == "target\nold\n"  # F30


@pytest.mark.parametrize("name", NAMES)
def test_names_are_literal(editor: Editor, name: str) -> None:
    editor.do("create", f"in {name}/{name}", file_text="1\n")
    assert editor.replace("1", "2", f"in {name}/{name}") == b"2\n"
    assert "\t2" in editor.say("view", f"in {name}/{name}")
    assert f"in {name}/" in editor.say("view", "") or "$'" in editor.say("view", "")
    editor.do("undo_edit", f"in {name}/{name}")
    editor.do("undo_edit", f"in {name}/{name}")
    assert editor.sh("find . -type f") == ""  # F12


@pytest.mark.parametrize("command", ["view", "str_replace", "insert", "undo_edit"])
@pytest.mark.parametrize(
    ("make", "number"),
    [
        ("mkfifo f", errno.EINVAL),
        ("ln -s /dev/zero f", errno.EINVAL),
        ("ln -s /dev/tty f", errno.EINVAL),
        ("ln -s nowhere f", errno.ENOENT),
        ("ln -s f f", errno.ELOOP),
        (":", errno.ENOENT),
    ],
)
def test_what_is_no_file_is_refused_at_once(editor: Editor, command: str, make: str, number: int) -> None:
    editor.do("create", "f", file_text="x")
    editor.sh(f"rm f; {make}")  # F17 F20 F22 F41
    with pytest.raises(SandboxFileError) as caught:
        editor.do(command, old_str="x", insert_line=0, new_str="y")
    assert caught.value.errno == number


def test_socket_is_refused(local: Editor) -> None:
    import socket  # noqa: PLC0415 - here only

    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(local.folder, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/f")  # F21; the path itself may be longer than a socket's may be
        os.close(here)
        assert "a socket" in local.refusal("view")
        assert "exists already" in local.refusal("create", file_text="x")


def test_directory_is_viewed_and_never_edited(editor: Editor) -> None:
    editor.sh("mkdir f")
    for command in ("str_replace", "insert"):
        with pytest.raises(IsADirectoryError):  # F24
            editor.do(command, old_str="x", insert_line=0, new_str="y")
    assert "is a directory" in editor.refusal("create", file_text="x")
    assert "names a directory" in editor.refusal("create", "f/", file_text="x")


@pytest.mark.docker
@pytest.mark.parametrize("image", ["debian", "busybox"])
def test_file_that_may_not_be_written_stays_and_has_no_undo(tmp_path: Path, image: str) -> None:
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import

    with DockerRuntime(f"ohsandbox-base:{image}", user="1000") as runtime:  # F25: root may write anything
        editor = Editor(ConversationState(conversation_id="c", runtime=runtime, directory=tmp_path), "/tmp/d")
        editor.write(b"old\n")
        editor.sh("chmod 444 f; mkdir no; chmod 555 no; mkdir dark; chmod 0 dark")
        for command, name in (("str_replace", "f"), ("create", "no/f"), ("create", "dark/f"), ("view", "dark/f")):
            with pytest.raises(PermissionError):
                editor.do(command, name, old_str="old", file_text="x")
        assert "permission denied" in editor.refusal("view", "dark")
        assert editor.sh("cat f; ls -A no") == "old\n"
        assert "No edit" in editor.refusal("undo_edit")


@pytest.mark.docker
def test_full_disk_leaves_the_old_text(tmp_path: Path) -> None:
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import

    with DockerRuntime("ohsandbox-base:busybox") as runtime:
        editor = Editor(ConversationState(conversation_id="c", runtime=runtime, directory=tmp_path), "/dev/shm")
        editor.write(b"old\n")
        editor.sh("dd if=/dev/zero of=fill bs=65536 2>/dev/null; true")
        with pytest.raises(SandboxFileError) as caught:  # F28
            editor.do("str_replace", old_str="old", new_str="new" * 100_000)
        assert caught.value.errno == errno.ENOSPC
        assert editor.read() == b"old\n"
        assert editor.sh("ls -A") == "f\nfill\n"
        assert "No edit" in editor.refusal("undo_edit")


# --- create and undo --------------------------------------------------------------------------


def test_created_file_has_its_parents_and_is_gone_after_undo(editor: Editor) -> None:
    said = editor.say("create", "a/b/f", file_text="x\r\ny")
    assert "2 lines, 4 bytes" in said
    assert editor.read("a/b/f") == b"x\r\ny"  # F26
    assert "exists already" in editor.refusal("create", "a/b/f", file_text="z")
    assert "Removed" in editor.say("undo_edit", "a/b/f")
    assert editor.sh("find . -type f") == ""
    editor.sh("ln -s nowhere g")
    assert "symlink" in editor.refusal("create", "g", file_text="z")


def test_edits_are_undone_one_by_one_and_by_a_resumed_conversation(editor: Editor) -> None:
    editor.do("create", file_text="0\n")
    for number in range(20):
        editor.replace(str(number), str(number + 1))
    resumed = Editor(editor.state, editor.folder)
    for number in reversed(range(20)):
        assert resumed.say("undo_edit").endswith(f"\t{number}")
    resumed.do("undo_edit")
    assert editor.sh("ls") == ""
    assert "No edit" in Editor(editor.state, editor.folder).refusal("undo_edit")


def test_memory_without_a_directory_ends_with_the_tool(local: Editor) -> None:
    state = ConversationState(conversation_id="c", runtime=local.runtime)
    first = Editor(state, local.folder)
    first.do("create", file_text="x")
    assert "No edit" in Editor(state, local.folder).refusal("undo_edit")
    first.do("undo_edit")
    assert "f" not in local.sh("ls").split()


def test_undo_memory_is_bounded_and_its_oldest_goes_first(local: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.tools.file_editor.history.MAX_EDITS", 3)
    local.do("create", file_text="0")
    for number in range(5):
        local.replace(str(number), str(number + 1))
    monkeypatch.setattr("ohsandbox.tools.file_editor.history.MAX_BYTES", 10)
    local.do("create", "g", file_text="0" * 100)
    local.replace("0" * 100, "1", "g")
    assert local.state.directory is not None
    assert len(list((local.state.directory / "file_editor").glob("*.edit"))) == 1
    local.do("undo_edit", "g")
    assert local.read("g") == b"0" * 100


def test_damaged_memory_is_left_aside(local: Editor) -> None:
    local.do("create", file_text="x")
    assert local.state.directory is not None
    memory = local.state.directory / "file_editor"
    (memory / "seen.json").write_text('{"a": 1}')
    (memory / "000000000009.edit").write_bytes(b"{")
    resumed = Editor(local.state, local.folder)
    assert "Removed" in resumed.say("undo_edit")


def test_memory_that_cannot_be_kept_is_said(local: Editor) -> None:
    assert local.state.directory is not None
    local.state.directory.write_text("in the way")
    assert "it is not on disk" in local.say("create", file_text="x")
    assert "Removed" in local.say("undo_edit")


# --- what changed meanwhile -------------------------------------------------------------------


def test_edit_is_refused_when_the_file_changed_since_it_was_seen(editor: Editor) -> None:
    editor.write(b"a\nb\n")
    editor.do("view")
    editor.sh("cp -p f was; echo c >> f; touch -r was f")  # the time says nothing
    for again in (editor, Editor(editor.state, editor.folder)):
        assert "View it again" in again.refusal("str_replace", old_str="a", new_str="x")
        assert "View it again" in again.refusal("insert", insert_line=0, new_str="x")
    assert editor.read() == b"a\nb\nc\n"
    editor.do("view", view_range=[3, 3])
    assert editor.replace("a", "x") == b"x\nb\nc\n"


def test_undo_is_refused_when_it_would_lose_a_change(editor: Editor) -> None:
    editor.do("create", file_text="a\n")
    editor.sh("echo b >> f")
    assert "would lose" in editor.refusal("undo_edit")
    editor.do("view")
    assert "would lose" in editor.refusal("undo_edit")
    assert editor.read() == b"a\nb\n"


def test_touched_file_and_file_never_seen_are_edited(editor: Editor) -> None:
    editor.write(b"a\n")
    assert editor.replace("a", "b") == b"b\n"
    editor.sh("touch f")
    assert editor.replace("b", "c") == b"c\n"


def test_edit_that_was_noted_and_never_made_does_not_stand_in_the_way(local: Editor) -> None:
    local.do("create", file_text="a\n")
    real = local.runtime.write_bytes
    local.runtime.write_bytes = _crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        local.do("str_replace", old_str="a", new_str="b")
    local.runtime.write_bytes = real  # type: ignore[method-assign]
    assert "Removed" in Editor(local.state, local.folder).say("undo_edit")


def _crash(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_text_left_out_is_deletion(local: Editor) -> None:
    local.write(b"ab")
    local.do("str_replace", old_str="a")
    assert local.read() == b"b"
    local.do("str_replace", old_str="b", new_str=None)
    assert local.read() == b""


# --- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "said"), [("", "x", "empty"), ("a", "a", "the same"), ("a", "\0", "a NUL")])
def test_replacement_without_sense_is_refused(local: Editor, old: str, new: str, said: str) -> None:
    local.write(b"a\n")
    assert said in local.refusal("str_replace", old_str=old, new_str=new)


def test_person_sees_a_coloured_diff_and_the_log_short_facts(local: Editor) -> None:
    local.write(b"a\nb\nc\n")
    observation = local.do("str_replace", old_str="b", new_str="x\ny")
    assert observation.diff == "@ line 1\n a\n-b\n+x\n+y\n c"
    assert (observation.old_lines, observation.new_lines) == (3, 4)
    shown = observation.visualize
    assert {str(span.style) for span in shown.spans} >= {"red", "green"}
    assert json.loads(observation.model_dump_json())["command"] == "str_replace"


def test_diff_and_answer_of_a_huge_edit_are_bounded(local: Editor) -> None:
    local.write(b"".join(b"%d\n" % number for number in range(50_000)))
    every = local.read().decode()
    observation = local.do("str_replace", old_str=every, new_str=every.replace("7", "seven"))
    assert len(observation.diff) < 400 * 210
    assert "@ 99600 more lines" in observation.diff
    assert len(observation.text) < 8_000


@pytest.mark.slow
def test_20_mb_file_is_edited(editor: Editor) -> None:
    data = b"".join(itertools.islice((b"line %d\n" % number for number in itertools.count()), 1_700_000))
    editor.write(data)  # F34; its time is a row of tests/bench
    assert editor.replace("line 1600000\n", "LINE\n") == data.replace(b"line 1600000\n", b"LINE\n")
    editor.do("undo_edit")
    assert editor.read() == data
    editor.sh("rm f")
