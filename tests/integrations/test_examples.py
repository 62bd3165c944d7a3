"""The examples of docs/integrations.md are run as they stand, with models that are scripted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import set_tracing_disabled
from langchain_core.messages import AIMessage
from minisweagent.environments import get_environment
from pydantic_ai.models.test import TestModel

from tests.integrations.scripted import ScriptedChatModel, ScriptedModel, deep_call

IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.docker


def _example(section: str, language: str = "python") -> str:
    [text] = re.findall(rf"^## {section}$.*?^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text).replace("python:3.12", IMAGE)


def _work(section: str, model: Any) -> Any:
    names: dict[str, Any] = {}
    exec(_example(section), names)
    return names["work"](model)


def test_deepagents() -> None:
    model = ScriptedChatModel(messages=iter([deep_call("execute", command="echo $((6 * 7))"), AIMessage("Done.")]))
    result = _work("LangChain deepagents", model)
    assert [message.content for message in result["messages"]][-2].startswith("42\n")


def test_swe_rex() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _example("SWE-ReX and SWE-agent")], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split("\n") == ["hello, world, from /tmp", "", "Linux", "", ""]


def test_mini_swe_agent() -> None:
    config = yaml.safe_load(_example("mini-swe-agent", "yaml"))["environment"]
    environment = get_environment(config)
    try:
        assert environment.execute({"command": "echo $PAGER"})["output"] == "cat\n"
    finally:
        environment.cleanup()


def test_pydantic_ai() -> None:
    assert "[Exit code 127" in _work("pydantic-ai", TestModel(call_tools=["execute_bash"]))  # it calls `a`


def test_openai_agents() -> None:
    set_tracing_disabled(disabled=True)
    assert _work("OpenAI Agents", ScriptedModel([("execute_bash", '{"command": "true"}')])) == "done"
