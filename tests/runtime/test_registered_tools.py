"""`execute_tool` knows the tools that an agent has, where they need no more than a runtime."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox import Action, TextObservation, ToolDefinition, register_tool
from ohsandbox.schema import ErrorObservation
from ohsandbox.schema.execution import FunctionExecutor
from ohsandbox.testing import FakeRuntime
from ohsandbox.tool import unregister_tool
from ohsandbox.tools.glob import GlobObservation
from ohsandbox.tools.grep import GrepObservation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with FakeRuntime() as started:
        yield started


def test_observations_have_their_types(runtime: Runtime) -> None:
    runtime.write_bytes("a/b.py", b"x = 1\n")
    files = runtime.execute_tool("glob", {"pattern": "**/*.py"})
    lines = runtime.execute_tool("grep", {"pattern": "x"})
    assert isinstance(files, GlobObservation)
    assert isinstance(lines, GrepObservation)
    assert files.files == (f"{runtime.workdir}/a/b.py",)
    assert lines.matches == ((f"{runtime.workdir}/a/b.py", 1, "x = 1"),)


def test_a_python_kernel_stays_until_the_runtime_is_closed(runtime: Runtime) -> None:
    assert not runtime.execute_tool("execute_ipython_cell", {"code": "x = 6"}).is_error
    assert "42" in str(runtime.execute_tool("execute_ipython_cell", {"code": "x * 7"}))
    assert not runtime.execute_tool("task_tracker", {"command": "view"}).is_error


def test_a_cancelled_cell_ends(runtime: Runtime) -> None:
    runtime.execute_tool("execute_ipython_cell", {"code": "import time"})
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    found = runtime.execute_tool("execute_ipython_cell", {"code": "time.sleep(300)", "timeout": 600}, cancel=stop)
    assert "KeyboardInterrupt" in str(found)
    late = runtime.execute_tool("glob", {"pattern": "*"}, cancel=stop)
    assert late == ErrorObservation(message="Cancelled before it began.")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("finish", ". It needs a conversation; a runtime alone has: BashTool, BrowserTool, browser, execute_bash"),
        ("delegate", ". It needs a conversation"),
        ("edit_file", ". It needs a conversation"),
        ("globb", ". Did you mean 'glob'?"),
        ("nope", ""),
    ],
)
def test_what_needs_a_conversation_is_unknown_and_the_message_says_what_there_is(
    runtime: Runtime, name: str, hint: str
) -> None:
    unknown = runtime.execute_tool(name, {})
    assert isinstance(unknown, ErrorObservation)
    assert unknown.message.startswith(f"Unknown tool: {name}{hint}")
    assert unknown.message.count("\n") == 0
    assert name not in runtime.registered_tools.names()
    assert {"browser", "execute_bash", "file_editor", "glob", "task_tracker"} <= {*runtime.registered_tools.names()}


def test_wrong_arguments_are_an_answer(runtime: Runtime) -> None:
    found = runtime.execute_tool("glob", {"patern": "*"})
    assert isinstance(found, ErrorObservation)
    assert "patern" in found.message


def test_a_registered_tool_of_ones_own_is_found(runtime: Runtime) -> None:
    class Shout(Action):
        text: str

    def shout(action: Shout) -> TextObservation:
        return TextObservation(text=action.text.upper())

    tool = ToolDefinition(name="shout", description="Shout.", action_type=Shout, executor=FunctionExecutor(shout))
    register_tool("shout", tool)
    try:
        assert runtime.execute_tool("shout", {"text": "hi"}) == TextObservation(text="HI")
    finally:
        unregister_tool("shout")


def test_a_runtime_alone_imports_no_tool_before_one_is_called() -> None:
    program = (
        "import sys\n"
        "from ohsandbox.testing import FakeRuntime\n"
        "with FakeRuntime() as runtime:\n"
        "    assert 'ohsandbox.tools' not in sys.modules\n"
        "    print(runtime.execute_tool('glob', {'pattern': '*'}).total)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"
