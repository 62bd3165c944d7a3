"""What one conversation loads: the core, without the rooms that only some conversations enter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox.testing.provider import FakeProvider, calls, text

PACKAGE = Path(ohsandbox.__file__).parent

CONVERSATION = """
import json, os, sys
from pathlib import Path
from ohsandbox import Agent, Conversation, DockerRuntime, LLMConfig, open_model
model = open_model(LLMConfig(model="openai/fake", base_url=sys.argv[1], api_key="test-key-of-no-value"))
with Conversation(Agent(model), DockerRuntime(sys.argv[2])) as conversation:
    answer = conversation.run("Write 42 to a file.").answer
loaded = [module.__file__ for name, module in list(sys.modules.items()) if name.split(".")[0] == "ohsandbox"]
print(json.dumps([answer, loaded]))
"""
OPTIONAL = (
    "cli", "compat", "evaluation", "integrations", "mcp_server", "project", "testing", "conversation/approvals/rules",
    "conversation/cost", "llm/scripted", "llm/text_calls", "mcp/servers", "network/proxy", "network/tunnel",
    "runtime/docker/images/build", "runtime/docker/mounts/guard", "runtime/docker/resume",
    "runtime/docker/services/pods", "runtime/docker/services/service_checkpoints", "runtime/ssh", "timetravel/fork",
    "timetravel/snapshots/restore", "timetravel/undo", "timetravel/workspace_diff",
    "tools/browser/impl",
)  # fmt: skip
"""What the first conversation that needs it loads."""


@pytest.mark.docker
def test_a_conversation_loads_the_core_alone(tmp_path: Path) -> None:
    image = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
    with FakeProvider(calls(("execute_bash", {"command": "echo 42 >a"})), text("It is there.")) as provider:
        ended = subprocess.run(
            [sys.executable, "-c", CONVERSATION, provider.base_url, image],
            env={**os.environ, "OHSANDBOX_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    answer, files = json.loads(ended.stdout.splitlines()[-1])
    loaded = {Path(file).relative_to(PACKAGE).with_suffix("").as_posix() for file in files if file}
    assert answer == "It is there."
    assert {name for name in OPTIONAL if not ((PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file())} == set()
    assert {name for name in loaded for room in OPTIONAL if name == room or name.startswith(f"{room}/")} == set()
