"""`SessionSandbox`: the sandbox of the open conversation, its ports, and its network, which can change at runtime."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.prompts.prompt import ask_yes_no
from ohsandbox.cli.rendering.text import progress_text
from ohsandbox.cli.sandbox.runtime import make_runtime, place_of, print_copy, print_kept, started_runtime
from ohsandbox.cli.sandbox.sandbox_ports import SandboxPorts, open_ports
from ohsandbox.cli.session.resume import save_options
from ohsandbox.cli.settings.run_settings import hide_secrets
from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.runtime.runtime_settings import HOST_BACKEND

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.cli.rendering.view import View
    from ohsandbox.cli.sandbox.early_start import EarlyStart
    from ohsandbox.conversation import Conversation
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.port_numbers import PortPair
    from ohsandbox.runtime.results import PullProgress
    from ohsandbox.runtime.runtime_settings import NetworkMode
    from ohsandbox.settings import Settings


class SessionSandbox:
    """A running sandbox: `runtime`, and its complete options, `where`."""

    def __init__(self, runtime: Runtime, where: SandboxOptions, ports: SandboxPorts) -> None:
        self.runtime = runtime
        self.where = where
        self.ports = ports
        self._directory: Path | None = None
        self._listed: tuple[str, ...] = ()
        """The allowlist before the network was set to another mode."""

    def save_in(self, directory: Path) -> None:
        """Save the options for a resume in the conversation's directory, unless it has them, and at each change."""
        self._directory = directory
        if self.runtime.resumed is None or self.runtime.resumed.how != "same":
            self.save()

    def save(self, **changed: Any) -> None:
        """Change options, and save them for a resume of the conversation."""
        self.where = replace(self.where, **changed)
        if self._directory is not None:
            save_options(self._directory, self.where, self.runtime)

    def listed(self, settings: Settings) -> tuple[str, ...]:
        """Return the allowlist to restore: the previous one, else that of the settings."""
        anew = replace(self.where, network=None, allowed=None)
        return (
            self.where.allowed
            or self._listed
            or anew.with_settings(settings.with_flags(network="allowlist")).allowed
            or ()
        )

    def set_network(self, network: NetworkMode, allowed: Sequence[str]) -> None:
        """Change the network. allowed is the complete allowlist, if network is the allowlist mode.

        Raises:
            UsageError: the network cannot be changed, or a rule is invalid.
            SandboxUnavailable: the engine refuses, or the sandbox is gone.
        """
        change = getattr(self.runtime, "set_network", None)
        if change is None or self.where.attach:
            raise UsageError("This sandbox's network is not ours to change: /net says why.")
        if self.where.network == "allowlist":
            self._listed = self.where.allowed or ()
        change(network, allow=allowed)
        self.save(network=network, allowed=tuple(allowed))

    def forward(self, pair: PortPair, *, or_any: bool) -> str:
        """Forward a port, see `SandboxPorts.forward`; the forward is kept for a resume."""
        told = self.ports.forward(pair, or_any=or_any)
        self.save(forward=self.ports.pairs)
        return told

    def close_forward(self, port: int) -> None:
        """See `SandboxPorts.close`."""
        self.ports.close(port)
        self.save(forward=self.ports.pairs)


def enter_sandbox(
    stack: contextlib.ExitStack,
    where: SandboxOptions,
    conversation: Conversation,
    settings: Settings,
    view: View,
    *,
    person: bool,
    is_resumed: bool,
    begun: EarlyStart | None = None,
) -> SessionSandbox:
    """Start a sandbox that the stack closes. Without an engine, ask the person whether to use this host.

    begun is the sandbox, if it is starting already.

    Raises:
        SandboxUnavailable: the sandbox cannot be started.
        UsageError: a port cannot be used; for a resumed conversation that is only reported.
    """
    began = time.monotonic() if begun is None else begun.began
    full, past = where.with_settings(settings), conversation.resume_state

    def show_line(line: str) -> None:
        view.status("")
        view.info(line)

    def show(progress: PullProgress) -> None:
        view.status(progress_text(progress))

    view.status("starting the sandbox")
    runtime = make_runtime(full, conversation.id, progress=show) if begun is None else begun.runtime
    hide_secrets(settings, conversation.secrets.hiding(runtime.outside_secrets))
    if begun is None:
        runtime.while_starting = conversation.agent.preload
    else:
        conversation.agent.preload()
    start = None if begun is None else partial(begun.finish, show)
    try:
        stack.enter_context(
            started_runtime(runtime, past=past, start=start, warn=view.warn, setup=full, tell=show_line)
        )
    except EngineUnavailable:
        view.status("")
        if not person or past.has_worked or where.runtime is not None or where.attach is not None:
            raise
        if not ask_yes_no("No Docker engine answers. Work on THIS HOST instead, with no container around the agent?"):
            raise
        host = SandboxOptions(runtime=HOST_BACKEND, workspace=where.workspace, host_workdir=where.host_workdir)
        runtime = stack.enter_context(started_runtime(make_runtime(host), warn=view.warn))
        full = replace(full, runtime=HOST_BACKEND)
    finally:
        view.status("")
    view.info(f"{place_of(runtime, full)}, ready in {time.monotonic() - began:.1f} s")
    stack.callback(print_kept, runtime, full, "run", view.info)
    if where.copies:
        print_copy(view, runtime, where)
    return SessionSandbox(runtime, full, open_ports(runtime, full, view.info, or_any=is_resumed))
