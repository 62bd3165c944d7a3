"""Services at the command line: a trusted project's, of a run and its agent, and their list and log."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from ohsandbox.runtime.docker import DockerRuntime, Service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke, WriteScript

IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
COMPOSE = f"""\
services:
  web:
    image: {IMAGE}
    command: [python3, -m, http.server, "8000"]
    working_dir: /etc
    ports: ["80:8000"]
  app: {{image: {IMAGE}, command: "false", depends_on: [web]}}
"""
FETCH = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://web:8000/debian_version\").read().decode())'"


@pytest.mark.slow
@pytest.mark.docker
def test_a_trusted_projects_services_serve_its_agent(invoke: Invoke, project: Path, write_script: WriteScript) -> None:
    (project / "compose.yaml").write_text(COMPOSE)
    (project / ".ohsandbox.toml").write_text(
        f'image = "{IMAGE}"\nservices = "compose.yaml"\nservices_only = ["web"]\nnetwork = "none"\n'
    )
    model = write_script(("Ask it.", f"{FETCH}; env | grep -c _proxy"), ("Done.", None))
    untrusted = invoke("run", "task", "--model", model, "--image", IMAGE, "--json")
    assert "services are not used" in untrusted.err
    shown = invoke("trust", "--yes")
    assert '"name": "web"' in shown.out
    assert "services.web.ports: no port of this machine is opened" in shown.out
    without = invoke("exec", "--workspace", ".", "--no-services", "--", "cat", "/etc/hosts")
    assert (without.code, "web" in without.out) == (0, False)
    ended = invoke("run", "task", "--model", model, "--json")
    events = [json.loads(line) for line in ended.out.splitlines()]
    said = {one["type"]: one.get("data", {}) for one in events if "data" in one}
    assert "services: web at web:8000. Each name is 127.0.0.1" in said["system_message"]["content"]
    version, *rest = said["tool_result"]["result"]["output"].split("\n")
    assert version.partition(".")[0].isdigit()
    assert rest[1] == "0", "no proxy: its network is none"


@pytest.mark.docker
def test_services_are_listed_and_their_log_is_shown_without_its_controls(invoke: Invoke) -> None:
    assert invoke("services").out == "No services.\n"
    chatty = Service("chatty", image=IMAGE, command=["sh", "-c", "printf 'one\\n\\033[31mtwo\\n'; sleep 1000"])
    with DockerRuntime(IMAGE, services=[chatty]) as runtime:
        listed = json.loads(invoke("services", "list", "--json").out)
        assert [(one["sandbox"], one["name"], one["state"]) for one in listed] == [(runtime.name, "chatty", "running")]
        assert "chatty" in invoke("services", "list", runtime.name[:-2]).out
        assert invoke("services", "list", "nowhere").code == 2
        log = invoke("services", "logs", "chatty").out
        assert log.splitlines()[0] == "one"
        assert "\x1b" not in log
        assert invoke("services", "logs", "chatty", runtime.name, "--tail", "1").out.count("\n") == 1
        assert "does not exist" in invoke("services", "logs", "other").err
