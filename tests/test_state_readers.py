"""What lies in the state directory is read without waiting and within a bound, whatever somebody put in its place."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.interactive.input import InputHistory
from ohsandbox.cli.prompts import remembered
from ohsandbox.cli.session.approvals import kept_policy
from ohsandbox.cli.session.resume import SANDBOX_NAME, stored_options
from ohsandbox.cli.settings.model import SERVER_NAME, with_kept_server
from ohsandbox.cli.viewer.hosting import ADDRESS_NAME, hosted_at
from ohsandbox.conversation.storage import noted_container
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.mcp.tool_pinning import Pins
from ohsandbox.persistence.blobs import Blobs
from ohsandbox.persistence.layout import CONTAINER_NOTE_NAME, METADATA_NAME
from ohsandbox.persistence.recency import JOURNAL_NAME, written_order
from ohsandbox.private_files import read_regular
from ohsandbox.project import trust
from ohsandbox.project.registry import _kept_layer
from ohsandbox.runtime.docker.checkpoints import checkpoint_images, setups
from ohsandbox.runtime.docker.images import build
from ohsandbox.runtime.docker.mounts import caches
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.workspace import branch_git, changes
from ohsandbox.runtime.workspace.branches import find_branches
from ohsandbox.runtime.workspace.copy_selection import select_files
from ohsandbox.settings import Settings
from ohsandbox.settings_file import read_object
from ohsandbox.tools.file_editor.history import EditHistory
from ohsandbox.tools.task_tracker import FILE_NAME, TaskTrackerExecutor
from tests.patterns import modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGED = "a file of this package or of an installed one"
KERNEL = "a file of the kernel"
NAMED = "a file that a person names for this call: it may be a pipe, <(...)"
CHECKED = "a descriptor, or a file that was just seen to be regular and whose size is limited or read in pieces"
INSIDE = "runs in the sandbox"
EXCEPTIONS = {
    "cli.app._commit": PACKAGED,
    "cli.entrypoint.prepare_streams": "one of the process's own streams",
    "cli.interactive.attachments._read": CHECKED,
    "cli.settings.model_check.providers": PACKAGED,
    "cli.settings.run_settings.instructions_of": NAMED,
    "evaluation.agents.predictions.PredictionsAgent._patch": NAMED,
    "evaluation.formats.inputs.read_lines": CHECKED,
    "evaluation.masking._mask_file": CHECKED,
    "evaluation.processors._busy_s": KERNEL,
    "evaluation.processors._waiting_s": KERNEL,
    "evaluation.task.Task.digest": CHECKED,
    "html_page.open_templates": PACKAGED,
    "llm.model_list.model_list": PACKAGED,
    "llm.scripted._read": NAMED,
    "mcp.config.MCPConfig.load": NAMED,
    "mcp_server.stdio._claim_pipes": "one of the process's own streams",
    "network.open_addresses.own_addresses": KERNEL,
    "private_files.read_regular": "the function itself",
    "runtime.docker.engine.own_container.own_id": KERNEL,
    "runtime.files.transfer._add_file": CHECKED,
    "runtime.files.unpack._copy": "a file of a directory that only this process writes",
    "runtime.workspace.git_layout._index": CHECKED,
    "secrets.vault._from_file": NAMED,
    "tool.plugins._entries": PACKAGED,
    "tools.browser._in_sandbox.actions.check_readable": INSIDE,
    "tools.driver.Driver.__init__": PACKAGED,
    "tools.driver_bootstrap": INSIDE,
}
"""Where files are read in another way than by `read_regular`, or `open_regular` for what is read in pieces."""

SAFE_FLAGS = ("DIRECTORY", "O_NONBLOCK", "O_PATH", "_PASS", "_FILE", "NEW_FILE", "O_TMPFILE", "O_WRONLY", "_SAFELY")
OTHERS = re.compile(r"(?i)\bfiles\(|__file__|_SCRIPTS|_FOLDER|/proc/|(runtime|sandbox|_started\(\))\.read_bytes$")
"""What is read is a file of the package, of the kernel, or of a sandbox."""


def _reads(call: ast.Call) -> bool:
    """Whether a call reads a file, or opens one for reading, by a path."""
    match call.func:
        case ast.Attribute(attr="read_text" | "read_bytes"):
            return not OTHERS.search(ast.unparse(call.func))
        case ast.Attribute(value=ast.Name(id="os"), attr="open"):
            text = ast.unparse(call)
            return not any(flag in text for flag in SAFE_FLAGS)
        case ast.Attribute(value=ast.Name(id="tarfile")):
            return False
        case ast.Name(id="open") | ast.Attribute(attr="open"):
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            texts = [
                value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
            ]
            modes = [text for text in texts if re.fullmatch(r"[rwaxbt+]{1,3}", text)]
            is_file = isinstance(call.func, ast.Name) or bool(modes)
            return is_file and not any(re.fullmatch(r"[wax][bt]*", mode) for mode in modes)
    return False


def _places() -> Iterator[str]:
    for module, path in modules().items():
        source = path.read_bytes()
        if module.startswith("ohsandbox.testing") or not re.search(rb"open\(|\.read_(text|bytes)\(", source):
            continue
        pending: list[tuple[str, ast.AST]] = [(module.removeprefix("ohsandbox."), ast.parse(source))]
        while pending:
            name, node = pending.pop()
            for child in ast.iter_child_nodes(node):
                is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                pending.append((f"{name}.{getattr(child, 'name', '')}" if is_named else name, child))
            if isinstance(node, ast.Call) and _reads(node):
                yield name


def test_files_are_read_by_one_function_that_neither_waits_nor_reads_without_end() -> None:
    assert sorted(set(_places())) == sorted(EXCEPTIONS)


# --- each reader, with something else in its file's place -----------------------------------------


_watched: list[list[str]] = []


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    for names in _watched if event == "open" else ():
        names.append(str(arguments[0]).rpartition("/")[2])


sys.addaudithook(_note_opened)


@contextlib.contextmanager
def _opened_names() -> Iterator[list[str]]:
    """The names of all files that are opened meanwhile."""
    _watched.append([])
    try:
        yield _watched[0]
    finally:
        _watched.clear()


def _in_time(call: Callable[[], Any]) -> None:
    """Call it; what it returns or refuses does not matter, only that it ends."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except (OhsandboxError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)  # a read takes microseconds
    if thread.is_alive():
        pytest.fail("the reader still waits")
    if raised:
        raise raised[0]


class _Engine:
    """What readers of records ask of an engine: its address."""

    class address:  # noqa: N801 - as the engine's attribute
        url = "unix:///x"


ENGINE: Any = _Engine
LEASE, BUILD, TAG = "a" * 32, "b" * 32, "20260101-000000-00000000"
READERS: dict[str, Callable[[Path], object]] = {
    "settings.json": read_object,
    "trusted.json": lambda _: trust.trusted(),
    "c/confirm": lambda path: kept_policy(path.parent),
    f"c/{SANDBOX_NAME}": lambda path: stored_options(path.parent),
    f"c/{SERVER_NAME}": lambda path: with_kept_server(Settings(), path.parent),
    f"c/{ADDRESS_NAME}": lambda path: hosted_at(path.parent),
    f"c/{CONTAINER_NOTE_NAME}": lambda path: noted_container(path.parent),
    f"c/{METADATA_NAME}": lambda path: FileConversationStore(path.parent.parent).load("c"),
    f"c/blobs/{'0' * 64}": lambda path: Blobs(path.parent.parent)._read("0" * 64),
    f"c/{FILE_NAME}": lambda path: TaskTrackerExecutor(path.parent)._load(),
    "c/editor/seen.json": lambda path: EditHistory(path.parent).edits("/f"),
    "c/editor/000000000001.edit": lambda path: EditHistory(path.parent).edits("/f"),
    JOURNAL_NAME: lambda path: written_order(path.parent),
    "answers.json": lambda path: remembered._read(path.name),
    "history": lambda path: [*InputHistory(path, str).load_history_strings()],
    "pins.json": Pins,
    f"checkpoints/{TAG}": lambda _: checkpoint_images.all_records(),
    "setups/x/setup.json": lambda path: setups._found(ENGINE, path.parent),
    "caches/key": lambda _: caches._key(),
    "caches/ohsandbox-cache-x.json": lambda _: [*caches._records(ENGINE)],
    f"leases/{LEASE}": lambda path: lease.read(path.name),
    "branches/x/branch.json": lambda _: find_branches(),
    "branches/gitconfig": lambda _: branch_git.environment({}),
    f"builds/{BUILD}": lambda _: build.records(ENGINE),
    "changes/x.json": changes._read,
    "x.json": lambda path: _kept_layer(path.parent, path),
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_in_place_of_a_file_of_ours_holds_no_reader(name: str, state: Path) -> None:
    path = state / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.mkfifo(path)
    with _opened_names() as names:
        _in_time(lambda: READERS[name](path))
    assert path.name in names


def test_the_index_of_a_repository_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    os.mkfifo(tmp_path / ".git" / "index")
    with pytest.raises(UsageError, match=r"index of .* it is not a regular file"):
        select_files(tmp_path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 1024**3)  # a file with a hole takes no room


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, _socket, _long, lambda path: path.symlink_to("/etc/hostname")],
    ids=["fifo", "directory", "socket", "long", "link"],
)  # fmt: skip
def test_only_a_short_regular_file_is_read(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "f")
    with pytest.raises(OSError, match=r"regular file|symbolic link|such device|Is a directory|over 16777216 bytes"):
        read_regular(tmp_path / "f")


def test_a_device_that_never_ends_is_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="regular file"):
        read_regular(tmp_path / "f", follow=True)


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10)
    assert read_regular(tmp_path / "f", limit_bytes=10) == b"x" * 10
    with pytest.raises(OSError, match="over 9 bytes"):
        read_regular(tmp_path / "f", limit_bytes=9)
