"""A `TlsHost` in a thread of its own, to which the proxies of this process are led, whatever name they resolve."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from ohsandbox.network.proxy import proxy
from ohsandbox.network.proxy.upstream import Dialer, connected
from tests.network.credentials.tls_host import HOST, Seen, TlsHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from ohsandbox.network.proxy.upstream import Streams

PUBLIC = "93.184.215.14"
"""Any public address: no packet goes there."""


@contextlib.contextmanager
def played_host(
    patch: pytest.MonkeyPatch, directory: Path, *, name: str = HOST, answer: Callable[[Seen], bytes] | None = None
) -> Iterator[tuple[TlsHost, Path]]:
    """The host, and the PEM file of its authority, for `ca_bundle`."""
    host = TlsHost(name, answer)

    async def resolve(_: str, __: int) -> list[str]:
        return [PUBLIC]

    async def connect(_: str, __: int) -> Streams:
        return await connected("127.0.0.1", host.port)

    patch.setattr(proxy, "Dialer", lambda: Dialer(resolve=resolve, connect=connect, proxies={}))
    bundle = directory / "host.pem"
    bundle.write_bytes(host.authority.certificate)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(host.__aenter__(), loop).result(60)
    try:
        yield host, bundle
    finally:
        asyncio.run_coroutine_threadsafe(_end(host), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _end(host: TlsHost) -> None:
    await host.__aexit__()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
