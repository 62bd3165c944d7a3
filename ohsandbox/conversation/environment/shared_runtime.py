"""`SharedRuntime`: the sandbox of another runtime, with separate sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ohsandbox.runtime.base import Runtime

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Mapping, Sequence

    from ohsandbox.errors import SandboxUnavailable
    from ohsandbox.runtime.channel import Channel
    from ohsandbox.schema import Observation


class SharedRuntime(Runtime):
    """The lender's sandbox and files, with sessions and interrupts of its own.

    A session "main" here is not the lender's "main". Closing ends the sessions that were made here, with their
    programs; the sandbox stays.
    """

    def __init__(self, lender: Runtime, *, user: str | int | None = None) -> None:
        """Create it without starting anything. user is the default for processes and files; None is the lender's."""
        super().__init__()
        self._lender, self._user = lender, user
        self.state_dir = lender.state_dir
        self.private_processes = lender.private_processes
        self._added_env = dict(lender._added_env)  # noqa: SLF001 - a runtime asks its like

    @property
    def id(self) -> str:
        """Id of the shared sandbox."""
        return self._lender.id

    @property
    def scratch_dir(self) -> str:
        """Directory of the shared sandbox for larger files."""
        return self._lender.scratch_dir

    @property
    def workdir(self) -> str:
        """Working directory of the shared sandbox."""
        return self._lender.workdir

    def start(self) -> Self:
        """Start the shared sandbox."""
        self._lender.start()
        return self

    def is_alive(self) -> bool:
        """Whether the shared sandbox is alive."""
        return self._lender.is_alive()

    def describe(self) -> dict[str, str]:
        """Return the facts about the shared sandbox, and the user of this runtime."""
        return self._lender.describe() | ({} if self._user is None else {"user": str(self._user)})

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
        user = self._user if user is None else user
        return self._lender.open_channel(argv, tty=tty, env=env, user=user, workdir=workdir)

    @property
    def generation(self) -> int:
        """Generation of the shared sandbox."""
        return self._lender.generation

    def recover(self, failure: SandboxUnavailable, generation: int | None = None) -> str:
        """Recover the sandbox, which is the owner's as well."""
        notice = self._lender.recover(failure, generation)
        self._forget()
        return notice

    def restart(self, failure: SandboxUnavailable) -> str:
        """Restart the sandbox, which is the owner's as well."""
        notice = self._lender.restart(failure)
        self._forget()
        return notice

    def ran_out_of_memory(self) -> str:
        """Return as `Runtime.ran_out_of_memory`; the owner and this runtime share the count."""
        return self._lender.ran_out_of_memory()

    def hold(self) -> None:
        """Keep the shared sandbox from being stopped as idle."""
        self._lender.hold()

    def connect_proxy(self) -> socket.socket | None:
        """Connect to the proxy of the shared sandbox."""
        return self._lender.connect_proxy()

    def prepare_browser(self) -> None:
        """Let the owner prepare the browser: it knows the sandbox's network."""
        self._lender.prepare_browser()

    def get_tools(self) -> list[dict[str, Any]]:
        """Return the tools of the shared sandbox."""
        return self._lender.get_tools()

    def execute_tool(
        self, name: str, arguments: Mapping[str, Any], *, cancel: threading.Event | None = None
    ) -> Observation:
        """Run the common tools in this runtime's own sessions; the owner of the sandbox runs all others."""
        ours = {tool["name"] for tool in super().get_tools()}
        if name in ours:
            return super().execute_tool(name, arguments, cancel=cancel)
        return self._lender.execute_tool(name, arguments)

    def _loss(self) -> SandboxUnavailable | None:
        return self._lender._loss()  # noqa: SLF001 - a runtime asks its like

    def _close(self) -> None:
        """Leave the sandbox running for its owner."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only the owner's kind of runtime has."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._lender, name)
