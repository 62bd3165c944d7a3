"""README.md is true: its code runs, and prints what it says."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ohsandbox import CLIRuntime, Conversation
from ohsandbox.mcp import MCPConfig
from ohsandbox.settings import Settings
from ohsandbox.tool import unregister_tool
from tests.fakes import FakeModel, answer, call, results_of

README = Path(__file__).parents[1] / "README.md"
IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
RUN_BY_OTHER_TESTS = ("pip install", "ohsandbox init", "ohsandbox run", "ohsandbox shell", "ohsandbox eval")
"""Installing is what CI does first; a run and an evaluation need a key, a shell a terminal: tests/cli has them."""


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


def _blocks() -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, text.replace("python:3.12", IMAGE)) for language, text in found]


def _texts(language: str) -> list[str]:
    return [block.text for block in _blocks() if block.language == language]


def _shell_lines() -> list[str]:
    lines = "".join(_texts("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if not line.startswith(RUN_BY_OTHER_TESTS)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OHSANDBOX_HOME")


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.docker
def test_the_first_lines_of_python_print_what_the_first_screen_says() -> None:
    ended = _run([sys.executable, "-c", _texts("python")[0]])
    assert (ended.returncode, ended.stdout.split()) == (0, _texts("text")[0].split()), ended.stderr


@pytest.mark.docker
@pytest.mark.parametrize("number", range(1, len(_texts("python"))))
def test_the_other_blocks_of_python_run(number: int) -> None:
    ended = _run([sys.executable, "-c", _texts("python")[number]])
    assert ended.returncode == 0, ended.stderr


def test_a_tool_of_your_own_takes_twenty_lines_and_an_agent_can_call_it(tmp_path: Path) -> None:
    [text] = [text for text in _texts("python") if "register_tool" in text]
    assert len([line for line in text.splitlines() if line.strip()]) <= 20
    names: dict[str, Any] = {}
    exec(text, names)
    (tmp_path / "three.txt").write_text("1\n2\n3\n")
    model = FakeModel(answer("", call("count_lines", {"path": "three.txt"})))
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        conversation = Conversation(names["agent"].with_llm(model), runtime, tmp_path / "conversations")
        with conversation:
            conversation.run("How long is it?")
            [result] = results_of(conversation)
    unregister_tool("count_lines")
    assert json.loads(result["output"]) == {"lines": 3}


@pytest.mark.docker
@pytest.mark.parametrize("line", _shell_lines())
def test_a_line_of_shell_runs(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "ohsandbox"
    more = ["--image", IMAGE] if words[0] == "demo" else []
    ended = _run([sys.executable, "-m", "ohsandbox", *words, *more])
    assert ended.returncode == 0, ended.stderr


def test_the_settings_are_settings() -> None:
    for text in _texts("json"):
        settings = Settings.model_validate(json.loads(text))
        assert settings.model or MCPConfig.parse(settings.mcp_config or {}).servers


def test_the_first_screen_holds_install_code_and_output() -> None:
    screen = README.read_text(encoding="utf-8").split("\n")[:24]
    for part in ("pip install", "ohsandbox demo", "```python", "```text", "OK"):
        assert any(part in line for line in screen), part
