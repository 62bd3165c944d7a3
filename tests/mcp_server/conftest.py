"""`ohsandbox mcp serve` as a process, talked to line by line, and an image by whose name its containers are found."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "ohsandbox", "mcp", "serve")
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


class Served:
    """A server over stdio, and we are its client."""

    def __init__(self, *options: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )

    def begin(self) -> Any:
        """Shake hands; the server's `initialize` result."""
        self.send(id=0, method="initialize", params=INITIALIZE)
        result = self.receive()["result"]
        self.send(method="notifications/initialized")
        return result

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, number: int, tool: str, **arguments: Any) -> None:
        """Call a tool, and do not wait; a number of 100 and more asks for progress."""
        meta = {"_meta": {"progressToken": number}} if number >= 100 else {}
        self.send(id=number, method="tools/call", params={"name": tool, "arguments": arguments, **meta})

    def cancel(self, number: int) -> None:
        self.send(method="notifications/cancelled", params={"requestId": number})

    def receive(self) -> Any:
        """The next line, which is a message."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def answer(self, number: int) -> Any:
        """The result of a request, whatever comes before it."""
        while (message := self.receive()).get("id") != number:
            pass
        return message["result"]

    def until_it_runs(self, number: int) -> None:
        """Wait for progress of that call which tells that its command runs, and has printed nothing."""
        while "has run for" not in (message := self.receive())["params"]["message"]:
            pass
        assert message["params"]["progressToken"] == number

    def bash(self, number: int, command: str) -> str:
        """A command's output."""
        self.ask(number, "execute_bash", command=command)
        return str(self.answer(number)["structuredContent"]["output"])


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OHSANDBOX_")}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def serve(home: dict[str, str]) -> Iterator[Callable[..., Served]]:
    """`serve(*options)` is a server over stdio; its client goes at the end of the test."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str) -> Served:
            served = Served(*options, env=home)
            stack.callback(_end, served.process)
            return served

        yield begin


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


class Named:
    """An image of the test's own name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def containers(self) -> list[str]:
        """The containers that were made from it by that name, running or not."""
        return _docker("ps", "-aq", "--filter", f"label=ohsandbox.image={self.name}").split()


@pytest.fixture(scope="session")
def image() -> Iterator[Named]:
    name = f"ohsandbox-test-serving:{secrets.token_hex(6)}"
    _docker("tag", os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian"), name)
    named = Named(name)
    yield named
    assert named.containers() == []
    _docker("rmi", "--no-prune", name)


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


class OverHTTP:
    """A server over HTTP."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.token = ""
        self.url = ""
        self.entry: dict[str, Any] = {}
        """Of the printed configuration."""
        assert process.stderr is not None
        while not self.url:
            line = process.stderr.readline()
            assert line, "it ended before it served"
            self.token = self.token or "".join(re.findall(r"Bearer ([\w-]+)", line))
            if "configuration: " in line:
                self.entry = json.loads(line.partition("configuration: ")[2])["mcpServers"]["sandbox"]
            self.url = "".join(re.findall(r"Serving (http\S+);", line))

    @property
    def headers(self) -> dict[str, str]:
        """What a client of ours sends."""
        return {"accept": "application/json, text/event-stream", "authorization": f"Bearer {self.token}"}


@pytest.fixture
def serve_http(home: dict[str, str]) -> Iterator[Callable[..., OverHTTP]]:
    """`serve_http(*options)` is a server on a free port of this machine."""
    started: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> OverHTTP:
        command = [*COMMAND, "--http", "0", *options]
        started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=home))
        return OverHTTP(started[-1])

    yield begin
    for process in started:
        process.terminate()
        process.communicate(timeout=60)
