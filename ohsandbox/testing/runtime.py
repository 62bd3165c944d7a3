"""`FakeRuntime`: a real runtime without an engine, for tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.runtime.local import CLIRuntime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.errors import SandboxUnavailable
    from ohsandbox.runtime.channel import Channel


class FakeRuntime(CLIRuntime):
    """Real shells in a directory of this host that is thrown away; starts in milliseconds and warns nobody.

    `break_down(error)` makes every further operation fail as a sandbox that has gone away does.
    """

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="ohsandbox-fake-", ignore_cleanup_errors=True)
        super().__init__(Path(self._scratch.name), bubblewrap=False, quiet=True)
        self._broken: SandboxUnavailable | None = None

    def break_down(self, error: SandboxUnavailable) -> None:
        """From now on the sandbox is gone."""
        self._broken = error
        self._pool.discard_all()
        for name in self.list_sessions():
            self.close_session(name)

    def start(self) -> Self:
        """Make the directory that sessions need."""
        super().start()
        return self

    def is_alive(self) -> bool:
        """Started, not closed, not broken."""
        return self._broken is None and super().is_alive()

    def open_channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
    ) -> Channel:
        """See `Runtime.open_channel`."""
        if self._broken is not None:
            raise self._broken
        return super().open_channel(argv, tty=tty, env=env, user=user, workdir=workdir)

    def _loss(self) -> SandboxUnavailable | None:
        return self._broken

    def _close(self) -> None:
        super()._close()
        self._scratch.cleanup()
