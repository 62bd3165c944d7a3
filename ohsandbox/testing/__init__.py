"""What ohsandbox ships for tests of your own: a runtime without an engine, a model provider, the conformance suite."""

from ohsandbox.testing.runtime import FakeRuntime

__all__ = ["FakeRuntime"]
