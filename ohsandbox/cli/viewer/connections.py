"""Which connections a live page takes: none of another user, and few that have not shown the token.

The token keeps others from reading. But what they send costs this process time, and what they hold open takes a place
that the person's page needs.
"""

from __future__ import annotations

import os
import socket
import struct

BACKLOG = 4096
"""Connections that the kernel keeps for us; when they are too many, a browser's is tried again only after a second.
It is Linux' own largest number (net.core.somaxconn since 5.4)."""
BATCH = 4
"""Connections that are taken in a row, before those that are there are served."""
MAX_NEWCOMERS = 64
"""Largest number of connections that have not shown the token. More than a few of BATCH, so that a request that arrives
with its connection is read before others take its place."""


class PageListener(socket.socket):
    """A listening socket whose `accept` closes what is not the person's.

    On Linux the kernel tells the user of a connection. Elsewhere, and of a connection whose other end the kernel does
    not know, anybody's is taken; the oldest that has not shown the token is closed for the next one.
    """

    def __init__(self, host: str, port: int) -> None:
        """Listen. port: 0 chooses a free one. Raises OSError, and OverflowError for what is no port."""
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((host, port))
            self.listen()
        except BaseException:
            self.close()
            raise
        self._newcomers: dict[tuple[str, int], socket.socket] = {}

    def listen(self, _backlog: int = 0, /) -> None:
        """Listen with BACKLOG: asyncio gives the number of connections that it takes in a row."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection.

        Raises:
            BlockingIOError: none waits, or many were closed in a row and the rest is left for the next call.
        """
        for _ in range(BATCH):
            connection, client = super().accept()
            if _is_closed(connection) or user_of(client, connection.getsockname()) not in {None, 0, os.geteuid()}:
                connection.close()
                continue
            self._newcomers = {at: one for at, one in self._newcomers.items() if one.fileno() >= 0}
            self._newcomers[client] = connection
            if len(self._newcomers) > MAX_NEWCOMERS:
                self._newcomers.pop(next(iter(self._newcomers))).shutdown(socket.SHUT_RDWR)
            return connection, client
        raise BlockingIOError

    def keep(self, client: tuple[str, int]) -> None:
        """Keep the connection of a client that has shown the token, as long as it likes."""
        self._newcomers.pop(client, None)


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed it already, and sent nothing."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


# --- the user of a connection ---------------------------------------------------------------------

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_ESTABLISHED = 1
_ANY = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_ADDRESS = struct.Struct("=4s12x")
_COOKIE = struct.Struct("=III")
_STATE_AT, _USER_AT = _HEADER.size + 1, _HEADER.size + 4 + 48 + 12
"""Offsets of `idiag_state` and `idiag_uid` in a reply: a header, `struct inet_diag_msg` (linux/inet_diag.h)."""
NO_USER = -1


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the id of the user who opened an IPv4 connection, which one request to the kernel tells (sock_diag(7)).

    Returns:
        NO_USER if the client has closed its end, which belongs to nobody then and is shown as root's; None if the
        kernel does not answer (macOS, gVisor) or does not know the client's end (WSL2 mirrors those of Windows).
    """
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY) + _PORTS.pack(client[1], server[1])
    body += _ADDRESS.pack(socket.inet_aton(client[0])) + _ADDRESS.pack(socket.inet_aton(server[0]))
    body += _COOKIE.pack(0, _ANY, _ANY)  # any interface, no cookie
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body)
            reply = kernel.recv(4096)
        kind = _HEADER.unpack_from(reply)[1]
        if kind != _SOCK_DIAG_BY_FAMILY:
            return None
        user: int = struct.unpack_from("=I", reply, _USER_AT)[0]
    except (AttributeError, OSError, struct.error):
        return None
    return user if reply[_STATE_AT] == _ESTABLISHED else NO_USER
