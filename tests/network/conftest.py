"""The connector on this machine, and servers for it to reach."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.network import programs
from ohsandbox.network.tunnel.tunnel import Tunnel
from ohsandbox.runtime.local import LocalChannel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ohsandbox.runtime import Channel

FOLDER = Path(programs.__file__).parent
EMULATORS = {"x86_64": ["qemu-x86_64-static"], "aarch64": ["qemu-aarch64-static"]}


def command(program: Path, machine: str) -> list[str]:
    """The words that run a connector for that machine here; the test is skipped where this one cannot."""
    if machine == platform.machine():
        return [str(program)]
    if (emulator := shutil.which(EMULATORS[machine][0])) is None:
        pytest.skip(f"no emulator for {machine} (Debian: qemu-user-static)")
    return [emulator, str(program)]


@pytest.fixture(scope="session", params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=["checked in", "built"])
def argv(request: pytest.FixtureRequest, machine: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A connector that runs here: of each machine, as it ships and as its source is now."""
    if request.param == "checked in":
        return command(FOLDER / f"connector-{machine}", machine)
    if shutil.which(f"{machine}-linux-gnu-gcc") is None:
        pytest.skip(f"no compiler for {machine} (Debian: gcc-{machine.replace('_', '-')}-linux-gnu)")
    out = tmp_path_factory.mktemp("connector")
    subprocess.run([FOLDER / "build", machine], check=True, env={**os.environ, "OUT": str(out)})
    return command(out / f"connector-{machine}", machine)


@pytest.fixture
def opened() -> list[Channel]:
    """The channels to connectors that the tunnel has started, the last one last."""
    return []


@pytest.fixture
async def tunnel(argv: list[str], opened: list[Channel]) -> AsyncIterator[Tunnel]:
    def open_channel() -> Channel:
        opened.append(LocalChannel(argv, tty=False, env={}, workdir="/"))
        return opened[-1]

    made = Tunnel(open_channel)
    yield made
    await made.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., object]]:
    """`await serve(handler)` is a server of this machine, and returns its port; handlers end before the test does."""
    servers: list[asyncio.Server] = []
    tasks: set[asyncio.Future[None]] = set()

    async def begin(handler: Callable[..., Coroutine[None, None, None]], host: str = "127.0.0.1") -> int:
        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.ensure_future(finish(handler, reader, writer)))

        servers.append(await asyncio.start_server(answer, host, 0))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield begin
    for server in servers:
        server.close()
    await asyncio.gather(*tasks)


async def finish(
    handler: Callable[..., Coroutine[None, None, None]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Run a handler and close what it served; its client may be gone."""
    with contextlib.suppress(ConnectionError):
        await handler(reader, writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
