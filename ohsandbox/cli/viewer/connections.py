"""Who may hold a connection to the page: nobody but its user, and nobody for long without asking anything.

A token keeps others from reading. But a server has only so many connections, and every user of the machine can open
them, so that no page of the person's would get one.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

SILENT_S = 5.0
"""A browser sends its request with the connection; some open a second one ahead, and open it again."""
_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _USER = 1, 2, 7
"""Columns of the kernel's table of sockets."""


class PageProtocol(H11Protocol):
    """Ends a connection of another user at once, where the system tells whose it is; a silent one after SILENT_S."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        client, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if user_of(client, server) not in {None, 0, os.geteuid()}:
            transport.abort()
        else:
            self.loop.call_later(SILENT_S, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id that opened an IPv4 connection of this machine; None where the system has no such table (macOS)."""
    row = [_as_in_table(client), _as_in_table(server)]
    try:
        lines = _TABLE.read_text("ascii").splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines)
    return next((int(cells[_USER]) for cells in found if cells[_LOCAL : _REMOTE + 1] == row), None)


def _as_in_table(address: tuple[str, int]) -> str:
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
