"""A client that nobody here wrote: the command line of the protocol's own inspector (npm)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mcp_server.conftest import Named, OverHTTP

VERSION = "0.16.8"
"""The last that runs on Node 20, which Debian and CI have."""
PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
PLACE = Path(__file__).parents[2] / ".cache" / "mcp" / f"inspector-{VERSION}"
PROGRAM = PLACE / "node_modules" / ".bin" / "mcp-inspector"

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow("downloads a program of Node; other clients are in test_stdio.py, test_http.py and tests/e2e"),
]


@pytest.fixture(scope="module")
def inspector() -> str:
    if shutil.which("npm") is None:
        missing = "npm is not here: install Node 20 or newer"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    if not PROGRAM.exists():
        package = f"@modelcontextprotocol/inspector@{VERSION}"
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(PLACE), package]
        subprocess.run(command, check=True, capture_output=True, timeout=110)
    return str(PROGRAM)


def inspect(inspector: str, home: dict[str, str], *arguments: str) -> Any:
    """What one request of it gave."""
    done = subprocess.run(
        [inspector, "--cli", *arguments], check=False, capture_output=True, text=True, env=home, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_lists_and_calls_by_the_configuration_of_the_page(
    inspector: str, image: Named, home: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    text = next(text for text in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL) if '"serve"' in text)
    path = f"{Path(sys.executable).parent}:{home['PATH']}"
    entry = json.loads(text.replace("python:3.12", image.name))["mcpServers"]["sandbox"]
    config.write_text(json.dumps({"mcpServers": {"sandbox": {**entry, "env": {"PATH": path}}}}))
    server = ("--config", str(config), "--server", "sandbox")
    tools = inspect(inspector, home, *server, "--method", "tools/list")["tools"]
    assert "execute_bash" in [tool["name"] for tool in tools]
    call = ("--method", "tools/call", "--tool-name", "execute_bash", "--tool-arg", "command=echo $((6 * 7))")
    result = inspect(inspector, home, *server, *call)
    assert (result["isError"], result["structuredContent"]["output"]) == (False, "42\n")
    assert image.containers() == []


def test_it_calls_over_http(
    inspector: str, image: Named, home: dict[str, str], serve_http: Callable[..., OverHTTP]
) -> None:
    home["MY_TOKEN"] = "a token of sixteen"
    served = serve_http("--image", image.name, "--token", "env:MY_TOKEN")
    header = ("--transport", "http", "--header", f"Authorization: Bearer {home['MY_TOKEN']}")
    call = ("--method", "tools/call", "--tool-name", "file_write", "--tool-arg", "path=a b", "content=text")
    result = inspect(inspector, home, served.url, *header, *call)
    assert result["content"][0]["text"] == "Wrote 4 bytes to a b."
