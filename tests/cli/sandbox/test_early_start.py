"""The sandbox of a task starts while the run imports what works in it: what that spares, and what it may not cost."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.options.per_command import RunOptions
from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.sandbox.early_start import EarlyStart, begin_early
from ohsandbox.errors import EngineUnavailable
from ohsandbox.runtime.docker import container
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.engine.unix_transport import OnePoolAdapter
from ohsandbox.runtime.docker.labels import CONVERSATION_LABEL
from ohsandbox.runtime.docker.network import container_network
from ohsandbox.settings import Settings
from ohsandbox.testing.provider import FakeProvider, text

if TYPE_CHECKING:
    from tests.cli.conftest import Invoke

PLAIN: dict[str, Any] = {"model": "openai/fake", "network": "none"}


@pytest.mark.parametrize(
    "given",
    [
        {"secrets": {"A": "env:A"}}, {"instructions": "missing.md"}, {"mcpServers": {"a": {"command": "b"}}},
        {"max_cost_usd": 1.0}, {"tools": {"enable_cmd": False}}, {"model": "scripted:missing.json"},
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_what_is_read_or_checked_later_starts_no_sandbox_before(given: dict[str, Any]) -> None:
    task = RunOptions(task="x")
    assert begin_early(task, Settings(**PLAIN), SandboxOptions()) is not None
    assert begin_early(task, Settings(**PLAIN | given), SandboxOptions()) is None


def test_a_sandbox_that_is_kept_starts_when_its_run_can_tell_so() -> None:
    assert begin_early(RunOptions(task="x"), Settings(**PLAIN), SandboxOptions(keep=True)) is None


def test_nothing_starts_before_a_person_has_said_what_to_do() -> None:
    assert begin_early(RunOptions(), Settings(**PLAIN), SandboxOptions()) is None


@pytest.mark.usefixtures("no_engine")
def test_an_engine_that_does_not_answer_is_told_to_who_waits() -> None:
    with EarlyStart(SandboxOptions(network="none")) as begun, pytest.raises(EngineUnavailable):
        begun.finish(lambda _: None)


@pytest.mark.docker
def test_a_sandbox_that_nobody_took_is_removed(image: str) -> None:
    with pytest.raises(KeyboardInterrupt), EarlyStart(SandboxOptions(image=image, network="none")) as begun:
        raise KeyboardInterrupt
    engine = connect()
    label = f"{CONVERSATION_LABEL}={begun.conversation_id}"
    assert engine.api.containers(all=True, filters={"label": label}) == []
    engine.close()


@pytest.mark.docker
def test_a_run_makes_twelve_calls_of_the_engine_before_its_model_is_asked(
    invoke: Invoke, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the first request its time; what starts the connector goes on beside it."""
    asked: list[str] = []
    send = OnePoolAdapter.send

    def noted(self: OnePoolAdapter, request: Any, *arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name != "ohsandbox-network-call":
            path = re.sub("[0-9a-f]{64}", "ID", request.path_url.partition("?")[0])
            asked.append(f"{request.method} {re.sub('^/v[0-9.]+', '', path)}")
        return send(self, request, *arguments, **options)

    monkeypatch.setattr(OnePoolAdapter, "send", noted)
    monkeypatch.setattr(container_network, "WORKER_WAIT_S", 30.0)  # on a busy machine, too
    monkeypatch.setattr(container, "_images_looked_at", set())
    with FakeProvider(text("Done.")) as provider:
        where = "--model", "openai/fake", "--base-url", provider.base_url, "--api-key", "none"
        ended = invoke("run", "Say done.", "--no-tui", "--image", image, *where)
    assert ended.code == 0, ended.err
    look = "GET /containers/ID/json"
    start = ["POST /containers/create", *["HEAD /containers/ID/archive"] * 3, "POST /containers/ID/start", look]
    worker = ["POST /containers/ID/exec", "POST /exec/ID/start"]
    assert asked == ["GET /_ping", f"GET /images/{image}/json", *start, *worker, look, look, "DELETE /containers/ID"]
