"""Tests that are coroutines, run under the event loops that the async methods promise."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import anyio
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine


def on(*backends: str) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run the test, a coroutine, once under each of asyncio and trio."""

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(test)
        def run(backend: str, **fixtures: Any) -> None:
            if backend == "trio":
                pytest.importorskip("trio", minversion="0.32")  # what anyio needs
            anyio.run(partial(test, **fixtures), backend=backend)

        signature = inspect.signature(test)
        backend = inspect.Parameter("backend", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = signature.replace(parameters=[backend, *signature.parameters.values()])  # type: ignore[attr-defined]
        marked: Callable[..., None] = pytest.mark.parametrize("backend", backends)(run)
        return marked

    return decorated


on_each = on("asyncio", "trio")


@contextlib.asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """A list that grows by one at each turn of asyncio's loop, as long as nobody holds it up."""
    turns: list[None] = []

    async def count() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    beside = asyncio.create_task(count())
    try:
        yield turns
    finally:
        beside.cancel()
