"""A command's whole output, kept in a file of the sandbox when it is too long to return."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.channel import Channel

SPOOL_BYTES = 64 * 1024 * 1024
"""The file's cap: a forgotten `yes` must not fill the sandbox's disk."""
FLUSH_S = 5.0

_SCRIPT = 'umask 077; mkdir -p "${1%/*}"; head -c "$2" >"$1"; cat >/dev/null'


class Spool:
    """Bytes in, a file in the sandbox out. What goes wrong leaves `path` None and disturbs nobody."""

    def __init__(self, open_channel: Callable[[list[str]], Channel], path: str) -> None:
        self._open_channel = open_channel
        self._wanted = path
        self._channel: Channel | None = None
        self._failed = False

    def write(self, data: bytes) -> None:
        """Add data; opens the file on the first call."""
        if self._failed:
            return
        try:
            if self._channel is None:
                self._channel = self._open_channel(["/bin/sh", "-c", _SCRIPT, "spool", self._wanted, str(SPOOL_BYTES)])
            self._channel.write(data)
        except (OhsandboxError, OSError):
            self._failed = True

    def finish(self) -> str | None:
        """Close the file and return its path; None when nothing was written or it could not be."""
        if self._channel is None:
            return None
        with contextlib.suppress(OhsandboxError, OSError, TimeoutError):
            self._channel.close_stdin()
            self._failed = self._channel.wait(FLUSH_S) != 0 or self._failed
        self._channel.close()
        return None if self._failed else self._wanted

    @property
    def path(self) -> str | None:
        """Where the bytes so far are."""
        return self._wanted if self._channel is not None and not self._failed else None
