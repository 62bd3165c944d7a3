"""`FakeRuntime`: a real runtime without an engine, for tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.channel import Channel
from ohsandbox.runtime.local import CLIRuntime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from ohsandbox.errors import SandboxUnavailable
    from ohsandbox.runtime.channel import Chunk


class FakeRuntime(CLIRuntime):
    """Real shells in a temporary directory of this host; starts in milliseconds and prints no warning.

    `break_down(error)` makes every further operation fail as a sandbox that has gone away does.
    """

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        """Create the runtime; env is added to every process's environment."""
        self._scratch = tempfile.TemporaryDirectory(prefix="ohsandbox-fake-", ignore_cleanup_errors=True)
        super().__init__(Path(self._scratch.name), env=env, bubblewrap=False, quiet=True)
        self._broken: SandboxUnavailable | None = None

    def break_down(self, error: SandboxUnavailable) -> None:
        """Make every further operation fail with error, as in a sandbox that has gone away."""
        self._broken = error
        self._pool.discard_all()
        for name in self.list_sessions():
            self.close_session(name)

    def is_alive(self) -> bool:
        """Whether it was started, and is neither closed nor broken."""
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


class DescriptorlessRuntime(FakeRuntime):
    """A `FakeRuntime` whose channels have no file descriptors, as those of a websocket have none."""

    def open_channel(self, argv: Sequence[str], **options: Any) -> Channel:
        """See `Runtime.open_channel`."""
        return _Descriptorless(super().open_channel(argv, **options))


class _Descriptorless(Channel):
    """Another channel without its `filenos`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.pid = channel.pid

    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        return self._channel.read(timeout_s)

    def write(self, data: Buffer) -> None:
        self._channel.write(data)

    def close_stdin(self) -> None:
        self._channel.close_stdin()

    def wait(self, timeout_s: float | None = None) -> int:
        return self._channel.wait(timeout_s)

    def resize(self, columns: int, rows: int) -> bool:
        return self._channel.resize(columns, rows)

    def kill(self) -> None:
        self._channel.kill()

    def close(self) -> None:
        self._channel.close()
