"""Servers that misbehave."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.mcp import MCPProtocolError, MCPRefusedError, MCPServerGoneError, MCPTimeoutError, ServerState
from tests.mcp.conftest import call, odd, until

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
    assert f"[... {15_000_000 - DEFAULT_LIMITS.max_chars} of 15000000 characters left out here ...]" in said


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("bad_utf8", "caf\ufffd"),
        ("surrogate", "cut ? here"),
        ("noise", "quiet again"),
        ("deep", "still here"),
        ("stderr", "written"),
        ("huge_progress", "done"),
    ],
)
def test_odd_bytes_are_borne_with(servers: Servers, tool: str, answer: str) -> None:
    started = servers.odd("noisy")
    assert call(started, tool) == answer
    assert call(started, "echo", text="next") == "next"


@pytest.mark.parametrize(
    ("tool", "fault"),
    [
        ("unknown_ids", "100 malformed messages"),
        ("flood", "more than 1000 notifications"),
        ("prints", "more than 10000 lines"),
        ("megabytes", "more than 1 MB"),
    ],
)
def test_a_flood_drops_the_server(servers: Servers, monkeypatch: pytest.MonkeyPatch, tool: str, fault: str) -> None:
    monkeypatch.setattr("ohsandbox.mcp.streams.MAX_UNASKED_BYTES_PER_S", 1_000_000)  # a slow machine sends no 32 MB
    started = servers.odd()
    with pytest.raises(MCPServerGoneError, match=fault):
        call(started, tool)
    assert call(started, "echo", text="next") == "next"


def test_a_flood_while_nothing_is_asked_ends_the_server(servers: Servers) -> None:
    started = servers.odd()
    pid, runs = call(started, "flood_later"), True
    deadline = time.monotonic() + 60
    while runs and time.monotonic() < deadline:
        runs = servers.runtime.run(["test", "-e", f"/proc/{pid}"]).exit_code == 0
    assert not runs
    assert started.status()[0].state is ServerState.ENDED
    assert call(started, "echo", text="back") == "back"


@pytest.mark.parametrize(("part", "times"), [("9", 5000), ("{},", 4_000_000), ("[", 300)])
def test_an_answer_of_no_use_fails_its_call_at_once_and_in_bounded_memory(
    servers: Servers, part: str, times: int
) -> None:
    started = servers.odd()
    started.wait()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MCPProtocolError, match="the answer "):
        call(started, "result", part=part, times=times)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB
    assert call(started, "echo", text="next") == "next"


def test_a_list_without_an_end_is_cut_and_told_in_a_few_lines(servers: Servers) -> None:
    started = servers.odd("pages")
    assert len(started.tools()) == 128
    assert "1024 tools" in started.status()[0].refused["(further tools)"]
    assert servers.kinds().count("refused") <= 11


def test_tools_that_change_without_end_are_not_looked_at(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.mcp.server.MAX_RELISTS", 1)
    started = servers.odd()
    call(started, "grow")
    until(servers, "tools_changed")
    call(started, "change")
    call(started, "echo", text="x")
    assert any("further changes are not looked at" in event.message for event in servers.events)
    assert "withheld" not in servers.kinds()


def test_noise_is_told_when_the_server_dies(servers: Servers) -> None:
    started = servers.odd()
    call(started, "noise")
    with pytest.raises(MCPServerGoneError, match=r"300 lines were not messages, the last: (.|\n)*log line 299"):
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


def test_a_secret_is_masked_wherever_a_server_tells_it(servers: Servers) -> None:
    started = servers({"odd": odd(env={"KEY": "${K}"}), "other": odd(include=["echo"])}, variables={"K": "12345678"})
    assert call(started, "tell") == 'told\n{"[value of K]": 1}'
    assert call(started, "result", part="12345678") == '{"a": ["[value of K]"]}'
    assert call(started, "other__echo", text="12345678") == "[value of K]"  # it can read its neighbour's environment
    assert "[value of K]" in str(servers.events)
    assert "12345678" not in str(servers.events)


def test_a_server_that_does_not_read_is_stopped(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.mcp.process.MAX_UNREAD_BYTES", 1_500_000)
    started = servers({"odd": odd(timeout=0.3)})
    with pytest.raises(MCPTimeoutError):
        started.call("odd", "hang", {})
    with pytest.raises(MCPTimeoutError):
        started.call("odd", "echo", {"text": "x" * 1_000_000})
    with pytest.raises(MCPServerGoneError, match="does not read its input"):
        started.call("odd", "echo", {"text": "x" * 1_000_000})
