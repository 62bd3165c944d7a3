"""No test of this folder can reach a provider: keys are unset, and only loopback answers."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ohsandbox.llm import LLM, ChatResponse, OnEvent
from ohsandbox.testing.provider import FakeClock, FakeProvider, text

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # as our own import of litellm: no list is fetched

Ask = Callable[..., ChatResponse]

_HERE = Path(__file__).parent
_NOT_OURS = ("ignore:.*`ReadOnly` qualifier:UserWarning",)
"""Warnings that litellm silences at its import, which pytest undoes for each test."""
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            for line in _NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(line))


def _guarded(connect: Callable[[socket.socket, Any], None]) -> Callable[[socket.socket, Any], None]:
    def guard(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in _LOOPBACK:
            raise ConnectionRefusedError(f"a test tried to reach {address!r}")
        return connect(self, address)

    return guard


@pytest.fixture(autouse=True)
def no_real_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "AZURE", "GROQ", "MISTRAL", "OPENROUTER", "DEEPSEEK"):
        for suffix in ("API_KEY", "API_BASE", "BASE_URL"):
            monkeypatch.delenv(f"{name}_{suffix}", raising=False)


@pytest.fixture(scope="session", autouse=True)
def litellm_loaded() -> None:
    """Import litellm once, with the warnings of its dependencies; what it does after that is under test.

    Its first answer imports 600 modules more: on a busy disk no test's time is enough for both.
    """
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch, FakeProvider(text("ok")) as provider:
        warnings.simplefilter("ignore")
        import_module("ohsandbox.llm.litellm_provider")
        patch.setattr("ohsandbox.llm.direct_provider.direct_provider", lambda _: None)
        LLM(provider.config(model="openai/gpt-4o"), clock=FakeClock()).send([{"role": "user", "content": "hi"}], [])


@pytest.fixture(params=["direct", pytest.param("litellm", marks=pytest.mark.slow)])
def each_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test twice: as providers are asked by default, and with litellm for all of them."""
    if request.param == "litellm":
        monkeypatch.setattr("ohsandbox.llm.direct_provider.direct_provider", lambda _: None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ask(clock: FakeClock) -> Ask:
    """Ask a provider once: the response."""

    def ask(
        provider: FakeProvider,
        *,
        tools: Sequence[dict[str, Any]] = (),
        on_event: OnEvent | None = None,
        messages: Sequence[dict[str, Any]] = ({"role": "user", "content": "hi"},),
        **changes: Any,
    ) -> ChatResponse:
        return LLM(provider.config(**changes), clock=clock).send(messages, tools, on_event=on_event)

    return ask
