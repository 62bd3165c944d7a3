"""`ohsandbox net`, what is told of blocked hosts, and the network of options, settings and sessions."""

from __future__ import annotations

import json
import os
import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest

from ohsandbox.cli.commands.net import remove_old_logs
from ohsandbox.cli.commands.top import Survey
from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.sandbox.network_words import (
    MAX_HOSTS_COUNTED,
    MAX_HOSTS_TOLD,
    BlockedHosts,
    blocked_reported_at_end,
    network_words,
)
from ohsandbox.network.audit import AuditLog, NetworkDecision, audit_logs, audit_path
from ohsandbox.paths import conversations_dir
from ohsandbox.settings import Settings
from tests.cli.commands.test_top import FakeEngine, _sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime
    from tests.cli.conftest import Invoke, WriteScript

BLOCKED = "is not on the list of allowed hosts"


def blocked(host: str, port: int = 443, **facts: Any) -> NetworkDecision:
    return NetworkDecision(0.0, host, port, facts.pop("protocol", "https"), reason=BLOCKED, **facts)


@pytest.fixture
def logged() -> str:
    """The log of a sandbox that asked for two hosts."""
    with closing(AuditLog("sandbox-1")) as log:
        for _ in range(2):
            good = log.record("good.example.org", 443, "https", allowed=True, reason="is allowed", rule="*.example.org")
            log.finish(good, sent_bytes=1000, received_bytes=2_000_000)
        log.record("evil\x1b]0;x\x07.example.org", 8443, "https", allowed=False, reason=BLOCKED)
    return "sandbox-1"


# --- ohsandbox net -----------------------------------------------------------------------------------


def test_decisions_are_told_by_host_the_newest_first_and_foreign_text_is_inert(invoke: Invoke, logged: str) -> None:
    ended = invoke("net", logged)
    assert ended.code == 0
    assert "\x1b" not in ended.out
    heading, first, second, *_ = ended.out.splitlines()
    assert heading.split() == ["HOST", "DECISION", "TIMES", "SENT", "RECEIVED", "AGO", "WHY"]
    assert "blocked" in first
    assert ":8443" in first
    assert BLOCKED in first
    assert second.split()[:7] == ["good.example.org", "allowed", "2", "2", "kB", "4", "MB"]
    assert second.endswith("by *.example.org")


def test_the_last_is_meant_where_none_is_named_and_json_has_every_decision(invoke: Invoke, logged: str) -> None:
    found = json.loads(invoke("net", "--json").out)
    assert [(one["allowed"], one["sent_bytes"]) for one in found] == [(True, 1000), (True, 1000), (False, 0)]
    assert invoke("net", logged[:-2]).code == 0


def test_what_is_not_known_is_one_line(invoke: Invoke, logged: str) -> None:
    with closing(AuditLog("sandbox-2")) as log:
        log.record("a.example.org", 443, "https", allowed=False, reason=BLOCKED)
    several, unknown = invoke("net", logged[:-1]), invoke("net", "other")
    assert (several.code, several.err.count("\n")) == (2, 1)
    assert "is the beginning of 2: sandbox-2, sandbox-1" in several.err
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "'other' names none that is known" in unknown.err


def test_without_any_log_a_line_says_so(invoke: Invoke) -> None:
    assert "No sandbox has asked the network for anything yet" in invoke("net").err


def test_the_command_is_for_a_host_that_a_rule_would_open(invoke: Invoke) -> None:
    with closing(AuditLog("sandbox-3")) as log:
        for host in ("a.example.org", "b.example.org"):
            log.record(host, 443, "https", allowed=False, reason=BLOCKED)
        log.record("b.example.org", 443, "https", allowed=True, reason="is allowed", rule="b.example.org")
        log.record("c.example.org", 443, "https", allowed=True, reason="cannot be resolved")
        log.record("d.example.org", 80, "http", allowed=False, reason="has a credential, which is only sent encrypted")
    shown = invoke("net", "sandbox-3").out
    assert "To allow one: /net allow a.example.org in" in shown
    decided = [tuple(line.split()[:2]) for line in shown.splitlines()]
    assert {("b.example.org", "allowed"), ("c.example.org", "failed"), ("d.example.org", "blocked")} <= {*decided}
    told = BlockedHosts(command="/net allow").add(
        NetworkDecision(0.0, "d.example.org", 80, "http", reason="has a credential, which is only sent encrypted")
    )
    assert "Allow it" not in str(told)


def test_a_log_goes_with_its_conversation_and_an_old_one_of_a_sandbox_with_time(
    invoke: Invoke, write_script: WriteScript, logged: str
) -> None:
    ended = invoke("run", "hi", "--json", "--runtime", "cli", "--model", write_script(("x", None)))
    conversation = json.loads(ended.out.splitlines()[-1])["conversation_id"]
    with closing(AuditLog(conversation)) as log:
        log.record("a.example.org", 443, "https", allowed=False, reason=BLOCKED)
    os.utime(audit_path(conversation), (0, 0))
    assert remove_old_logs() == []
    os.utime(audit_path(logged), (0, 0))
    assert remove_old_logs() == [logged]
    assert [*audit_logs()] == [conversation]
    assert invoke("conversations", "delete", conversation, "--yes").code == 0
    assert [*audit_logs()] == []


def test_top_counts_the_hosts_that_were_blocked(logged: str) -> None:
    engine = FakeEngine(_sandbox(1)._replace(name=logged))
    survey = Survey(conversations_dir(), opener=lambda: engine)  # type: ignore[arg-type, return-value] # what it uses
    survey.ask_engine()
    survey.read_logs()
    assert [row.blocked for row in survey.rows()] == [1]


# --- blocked hosts while an agent works --------------------------------------------------------------------


def test_a_host_is_told_once_with_the_command_that_allows_it_then_counted() -> None:
    hosts = BlockedHosts(command="/net allow")
    line = hosts.add(blocked("a.example.org"))
    assert line == f"Blocked: a.example.org ({BLOCKED}). Allow it: /net allow a.example.org"
    assert hosts.add(blocked("a.example.org")) is None
    assert "/net allow a.example.org:8443" in str(hosts.add(blocked("a.example.org", 8443)))
    assert hosts.add(NetworkDecision(0.0, "b.example.org", 443, "https", allowed=True)) is None
    assert [*hosts.counts()] == ["Blocked in all: a.example.org 2 times"]
    assert [*hosts.counts()] == []


def test_a_program_that_asks_for_a_thousand_hosts_fills_no_terminal() -> None:
    hosts = BlockedHosts(command="/net allow")
    told = [line for number in range(1000) if (line := hosts.add(blocked(f"h{number}.example.org")))]
    assert len(told) == MAX_HOSTS_TOLD
    assert [*hosts.counts()] == [f"Blocked, too: {1000 - MAX_HOSTS_TOLD} other hosts. `ohsandbox net` lists them."]


def test_a_program_that_asks_for_ever_more_hosts_fills_no_memory() -> None:
    hosts = BlockedHosts(command="/net allow")
    listeners: list[Callable[[NetworkDecision], None]] = []
    for number in range(MAX_HOSTS_COUNTED + 500):
        hosts.add(blocked(f"h{number}.example.org"))
    assert len(hosts._counts) == MAX_HOSTS_COUNTED
    assert "at least 9980 other hosts" in next(hosts.counts())

    class AskingSandbox:
        def on_network_decision(self, listener: Callable[[NetworkDecision], None]) -> Callable[[], None]:
            listeners.append(listener)
            return listeners.clear

    told: list[str] = []
    with blocked_reported_at_end(cast("Runtime", AskingSandbox()), "--allow", told.append):
        gone = weakref.ref(again := blocked("a.example.org"))
        listeners[0](again)
        del again
        assert gone() is None  # nothing is kept of a decision but the line that tells of it
    assert told == [f"Blocked: a.example.org ({BLOCKED}). Allow it: --allow a.example.org"]
    assert listeners == []


def test_a_name_cannot_write_a_command_of_its_own() -> None:
    line = BlockedHosts(command="/net allow").add(blocked("a; rm -rf \x1b[2J~"))
    assert "\x1b" not in str(line)
    assert "'a; rm -rf" in str(line)


@pytest.mark.docker
@pytest.mark.parametrize("flags", [(), ("--network", "allowlist", "--allow", "b.example.org")])
def test_exec_tells_at_its_end_what_was_blocked(invoke: Invoke, image: str, flags: tuple[str, ...]) -> None:
    fetch = "import urllib.request as u; u.urlopen('http://a.example.org/')"
    ended = invoke("exec", "--image", image, *flags, "--", "python3", "-c", fetch)
    assert ended.code == 1
    assert "HTTP Error 403: Blocked by the sandbox: a.example.org" in ended.err
    assert f"Blocked: a.example.org ({BLOCKED}). Allow it: ohsandbox exec --allow a.example.org" in ended.err
    closed = invoke("exec", "--image", image, "--network", "none", "--", "python3", "-c", fetch)
    assert "Blocked" not in closed.err


# --- options and settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "flags", "network", "allowed"),
    [
        ({}, {}, "allowlist", ("packages",)),
        ({}, {"allow": ["a.example.org"]}, "allowlist", ("packages", "a.example.org")),
        ({"allow": ["b.example.org"]}, {"allow": ["a.example.org"]}, "allowlist", ("b.example.org", "a.example.org")),
        ({"allow": []}, {}, "allowlist", ()),
        ({"network": "none"}, {}, "none", ()),
        ({"network": "none"}, {"allow": ["a.example.org"]}, "allowlist", ("a.example.org",)),
        ({"network": "none"}, {"network": "allowlist"}, "allowlist", ("packages",)),
        ({"network": "open"}, {}, "open", ()),
        ({"network": "open"}, {"allow": ["a.example.org"]}, "allowlist", ("packages", "a.example.org")),
        ({}, {"network": "open"}, "open", ()),
        ({}, {"network": "none"}, "none", ()),
        ({}, {"allowed": ("b.example.org",)}, "allowlist", ("b.example.org",)),
        ({}, {"allowed": (), "allow": ["a.example.org"]}, "allowlist", ("a.example.org",)),
        ({}, {"attach": "name"}, "allowlist", ()),
    ],
)
def test_flags_add_to_the_list_of_the_settings(
    settings: dict[str, Any], flags: dict[str, Any], network: str, allowed: tuple[str, ...]
) -> None:
    full = SandboxOptions(**flags).checked().with_settings(Settings(**settings))
    assert (full.network, full.allowed) == (network, allowed)


def test_the_network_is_told_in_words() -> None:
    assert network_words("none", ()) == "none"
    assert network_words("allowlist", ()) == "allowlist, which is empty"
    assert network_words("allowlist", ("packages", "a.example.org")) == "packages, a.example.org"
    assert network_words("allowlist", tuple("abcdef")) == "a, b, c, d and 2 more"
