"""Servers that misbehave: the M cases of ADVERSARIAL.md that need a server."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.mcp import MCPProtocolError, MCPRefusedError, MCPServerGoneError, MCPTimeoutError
from ohsandbox.mcp.observation import MAX_RESULT_CHARS
from tests.mcp.conftest import call, odd

if TYPE_CHECKING:
    from tests.mcp.conftest import Servers


def test_an_endless_line_drops_the_server_in_bounded_memory(servers: Servers) -> None:
    started = servers({"odd": odd(), "other": odd()})
    started.wait()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with pytest.raises(MCPServerGoneError, match="a line of more than 16 MB"):
        call(started, "odd__endless")
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB
    assert call(started, "other__echo", text="fine") == "fine"
    assert call(started, "odd__echo", text="back") == "back"


def test_a_large_answer_comes_whole_and_is_cut_for_the_model(servers: Servers) -> None:
    said = call(servers.odd(), "big", bytes=15_000_000)
    assert f"[... {15_000_000 - MAX_RESULT_CHARS} of 15000000 characters left out here ...]" in said


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("bad_utf8", "caf\ufffd"),
        ("surrogate", "cut ? here"),
        ("noise", "quiet again"),
        ("deep", "still here"),
        ("stderr", "written"),
    ],
)
def test_odd_bytes_are_borne_with(servers: Servers, tool: str, answer: str) -> None:
    started = servers.odd("noisy")
    assert call(started, tool) == answer
    assert call(started, "echo", text="next") == "next"


@pytest.mark.parametrize(("tool", "fault"), [("unknown_ids", "100 malformed messages"), ("flood", "more than 1000")])
def test_a_flood_drops_the_server(servers: Servers, tool: str, fault: str) -> None:
    started = servers.odd()
    with pytest.raises(MCPServerGoneError, match=fault):
        call(started, tool)
    assert call(started, "echo", text="next") == "next"


def test_noise_is_told_when_the_server_dies(servers: Servers) -> None:
    started = servers.odd()
    call(started, "noise")
    with pytest.raises(MCPServerGoneError, match=r"300 lines were no messages, the last: (.|\n)*log line 299"):
        call(started, "die")


def test_a_refusal_is_told_without_its_colours(servers: Servers) -> None:
    with pytest.raises(MCPRefusedError, match=r"no such thing \(code -32602\)") as refused:
        call(servers.odd(), "refuse")
    assert refused.value.code == -32602


def test_an_answer_in_the_wrong_form_is_told(servers: Servers) -> None:
    with pytest.raises(MCPProtocolError, match="content: Input should be a valid list"):
        call(servers.odd(), "no_result")


def test_a_secret_in_last_words_is_masked(servers: Servers) -> None:
    entry: dict[str, Any] = {"command": "sh", "args": ["-c", 'echo "bad key $KEY" >&2; exit 9'], "env": {"KEY": "${K}"}}
    started = servers({"odd": entry}, variables={"K": "sk-very-secret"})
    started.wait()
    assert "bad key [value of K]" in started.missing()
    assert "sk-very-secret" not in str(servers.events) + started.missing()


def test_a_server_that_does_not_read_is_stopped(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.mcp.process.MAX_UNREAD_BYTES", 1_500_000)
    started = servers({"odd": odd(timeout=0.3)})
    with pytest.raises(MCPTimeoutError):
        started.call("odd", "hang", {})
    with pytest.raises(MCPTimeoutError):
        started.call("odd", "echo", {"text": "x" * 1_000_000})
    with pytest.raises(MCPServerGoneError, match="does not read its input"):
        started.call("odd", "echo", {"text": "x" * 1_000_000})
