"""No test of this folder can reach a provider: keys are unset, and only loopback answers."""

import socket
import warnings

import pytest

from ohsandbox.llm import LLM
from ohsandbox.testing.provider import FakeClock

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def _guarded(connect):
    def guard(self, address):
        if self.family != socket.AF_UNIX and address[0] not in _LOOPBACK:
            raise AssertionError(f"a test tried to reach {address!r}")
        return connect(self, address)

    return guard


@pytest.fixture(autouse=True)
def no_real_provider(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "AZURE", "GROQ", "MISTRAL", "OPENROUTER", "DEEPSEEK"):
        for suffix in ("API_KEY", "API_BASE", "BASE_URL"):
            monkeypatch.delenv(f"{name}_{suffix}", raising=False)


@pytest.fixture(scope="session", autouse=True)
def litellm_loaded():
    """Import litellm once, with the warnings of its dependencies; what it does after that is under test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ohsandbox.llm import gateway  # noqa: F401


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def ask(clock):
    """Ask a provider once: the response."""

    def ask(provider, *, tools=(), on_event=None, messages=({"role": "user", "content": "hi"},), **changes):
        return LLM(provider.config(**changes), clock=clock).send(messages, tools, on_event=on_event)

    return ask
