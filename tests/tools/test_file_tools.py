"""`file_read` and `file_write` in their three places. F numbers are those of the adversarial list."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxFileError, ToolError
from ohsandbox.schema import text_of
from ohsandbox.tools.file_read import make_file_read_tool
from ohsandbox.tools.file_write import make_file_write_tool

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import ConversationState

ENOUGH_CHARS = 31_000


class Files:
    """Both tools of a conversation."""

    def __init__(self, state: ConversationState, folder: str) -> None:
        self.folder = folder
        self.runtime: Runtime = state.require_runtime()
        self._read = make_file_read_tool(conv_state=state)
        self._write = make_file_write_tool(conv_state=state)

    def read(self, name: str = "f", **arguments: Any) -> str:
        action = self._read.action_from_arguments({"path": f"{self.folder}/{name}", **arguments})
        return text_of(self._read(action))

    def write(self, content: str, name: str = "f") -> str:
        action = self._write.action_from_arguments({"path": f"{self.folder}/{name}", "content": content})
        return text_of(self._write(action))

    def put(self, data: bytes) -> None:
        self.runtime.write_bytes(f"{self.folder}/f", data)

    def sh(self, script: str) -> str:
        result = self.runtime.run(["sh", "-c", script], workdir=self.folder)
        assert result.exit_code == 0, result.stderr
        return result.stdout.decode()


@pytest.fixture
def files(state: ConversationState, folder: str) -> Files:
    return Files(state, folder)


@pytest.mark.parametrize("text", ["", "a", "a\n\n", "a\r\nb\nc", "\ufeffé\n", "\x0c\u2028\x85\x1c\n"])
def test_text_comes_back_as_it_was_written(files: Files, text: str) -> None:
    files.write(text)
    assert files.read() == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("\ufeffé\n".encode("utf-16-le"), "é\n"),
        (b"# coding: cp1251\n\xef\n", "# coding: cp1251\nп\n"),
        (b"caf\xe9\n", "caf\ufffd\n"),
    ],
)
def test_what_a_file_declares_is_decoded_and_nothing_is_guessed(files: Files, data: bytes, text: str) -> None:
    files.put(data)
    assert files.read() == text


def test_lines_end_at_line_feeds_only_as_for_head(files: Files) -> None:
    files.put("a\x0cb\u2028c\x85d\n2\n3\r\n4".encode())
    for first, last in ((1, 1), (2, 2), (2, 3), (3, 4), (4, 9)):
        assert files.read(view_range=[first, last]) == files.sh(f"tail -n +{first} f | head -n {last - first + 1}")


def test_long_line_is_cut_and_says_how_to_go_on(files: Files) -> None:
    files.put(b"short\n" + b"x" * 5_000_000 + b"\nend\n")
    text = files.read(view_range=[2, -1])
    assert len(text) < ENOUGH_CHARS
    assert "sed -n 2p FILE | cut -c 30001-60000" in text
    assert files.read(view_range=[3, 3]) == "end\n"


def test_lines_of_a_huge_file_are_found_in_the_sandbox(files: Files) -> None:
    files.sh("yes hello | head -c 60000000 > f")  # F10
    assert files.read(view_range=[9_000_000, 9_000_001]) == "hello\nhello\n"
    assert len(files.read()) < ENOUGH_CHARS
    assert "in a file of 60000000 bytes" in files.read()
    files.sh("rm f; dd if=/dev/zero of=f bs=1 count=0 seek=15000000000 2>/dev/null")
    with pytest.raises(ToolError, match="a binary file of 15000000000 bytes"):
        files.read()
    files.sh("rm f")


@pytest.mark.parametrize(
    ("make", "number"),
    [("mkfifo f", errno.EINVAL), ("ln -s /dev/zero f", errno.EINVAL), ("mkdir f", errno.EISDIR)],
)
def test_what_is_no_file_is_neither_read_nor_written(files: Files, make: str, number: int) -> None:
    files.sh(make)  # F20 F22 F24
    with pytest.raises(SandboxFileError) as read:
        files.read()
    with pytest.raises(SandboxFileError) as written:
        files.write("x")
    assert (read.value.errno, written.value.errno) == (number, number)


def test_written_file_has_its_parents_and_keeps_mode_and_link(files: Files) -> None:
    assert files.write("é\n", "a/b/c").startswith("Wrote 3 bytes to ")  # F26
    files.sh("chmod 640 a/b/c; ln -s a/b/c link; ln a/b/c hard")
    files.write("new\n", "link")
    assert files.sh("readlink link; cat a/b/c hard") == "a/b/c\nnew\né\n"  # F30
    assert files.sh("ls -l a/b/c").startswith("-rw-r-----")


@pytest.mark.parametrize("name", ["a b", "a\nb", "'", "$(touch pwned)", "-rf", "*", "e\u0301"])
def test_names_are_literal(files: Files, name: str) -> None:
    files.write("x", name)  # F12
    assert files.read(name) == "x"
    assert [entry.name for entry in files.runtime.list_dir(files.folder)] == [name]
