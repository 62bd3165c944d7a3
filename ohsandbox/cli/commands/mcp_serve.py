"""`ohsandbox mcp serve`: the sandbox's tools for any MCP client. Stdout carries only the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ohsandbox.cli import entrypoint
from ohsandbox.cli.entrypoint import Terminated
from ohsandbox.cli.prompts.prompt import person_present
from ohsandbox.cli.rendering.text import progress_text, say
from ohsandbox.cli.sandbox.runtime import full_options, make_runtime, started_runtime
from ohsandbox.cli.sandbox.sandbox_ports import open_ports
from ohsandbox.cli.sandbox.setup_checkpoints import set_up
from ohsandbox.errors import UsageError
from ohsandbox.mcp_server import SandboxFactory, make_server
from ohsandbox.runtime.pool import SandboxPool
from ohsandbox.runtime.runtime_settings import DEFAULT_IMAGE
from ohsandbox.secrets.vault import look_up
from ohsandbox.tools import NEED_AGENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from mcp.server.lowlevel import Server

    from ohsandbox.cli.options.per_command import ServeOptions
    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.mcp_server import SandboxSession
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.tool_flags import ToolFlags

_MIN_IDLE_S = 1.0
"""Lower limit of the idle time in seconds: clients pause between calls."""
_IDLE_S = 1800.0
_MAX_SESSIONS = 8
_MIN_TOKEN_CHARS = 16
"""Shortest accepted token; a shorter one could be guessed."""


def serve(what: ServeOptions, where: SandboxOptions) -> int:
    """Serve until the client disconnects or a signal arrives."""
    if what.idle_timeout_s is not None and what.idle_timeout_s < _MIN_IDLE_S:
        raise UsageError(f"Invalid --idle-timeout {what.idle_timeout_s:g}: expected {_MIN_IDLE_S:g} second or more.")
    only_http = (("--max-sessions", what.max_sessions), ("--idle-timeout", what.idle_timeout_s))
    if what.http is None and (given := [flag for flag, value in only_http if value is not None]):
        raise UsageError(f"{given[0]} needs --http. Leave it out: over stdio there is one session, its client's.")
    person = what.http is not None and person_present()
    full, settings = full_options(where, what.settings, command="mcp serve", person=person)
    names = _tools(settings.tools, what)
    if what.token and what.http is None:
        raise UsageError("--token needs --http. Leave it out: over stdio, only the client that started this can call.")
    with _warm_pool(full, what.warm) if what.warm else contextlib.nullcontext() as pool:
        server = make_server(_factory(full, pool), names, instructions=_instructions(full), limits=settings.output)
        return _serve_stdio(server) if what.http is None else _serve_http(server, what)


def _tools(usual: ToolFlags, what: ServeOptions) -> list[str]:
    wanted = usual.switched(on=what.enable or (), off=what.disable or ()).names()
    for name in NEED_AGENT:
        if name in wanted and name not in usual.names():
            raise UsageError(f"Tool {name!r} needs an ohsandbox agent and its model. Remove it from --enable.")
    names = [name for name in wanted if name not in NEED_AGENT]
    if not names:
        raise UsageError("All tools are disabled. Remove some of --disable.")
    return names


def _warm_pool(full: SandboxOptions, size: int) -> SandboxPool:
    """Return a pool of started sandboxes in which the project's setup has run before a session needs one.

    Raises:
        UsageError: an option needs to know the session before the sandbox is made.
    """
    if full.workspace is not None:
        raise UsageError(
            "--warm and --workspace exclude each other: a directory is looked at, or copied, when its session begins. "
            "Leave one out."
        )
    if (option := "--attach" if full.attach else "--keep" if full.keep else None) is not None:
        raise UsageError(f"--warm and {option} exclude each other: a warm sandbox has no session yet. Leave one out.")
    if not full.backend.isolated:
        raise UsageError(f"--warm keeps containers, and --runtime {full.runtime} makes none. Leave one out.")
    return SandboxPool(
        make=partial(make_runtime, full), size=size, prepare=lambda runtime: set_up(runtime, full, say, is_new=True)
    )


def _factory(full: SandboxOptions, pool: SandboxPool | None) -> SandboxFactory:
    def make(tell: Callable[[str], None]) -> Runtime:
        return make_runtime(full, progress=lambda progress: tell(progress_text(progress)))

    @contextlib.contextmanager
    def start(runtime: Runtime) -> Iterator[Runtime]:
        with started_runtime(runtime, warn=say, setup=None if pool else full):
            open_ports(runtime, full, say, or_any=True)  # of several sessions only one can have a port
            name = str(getattr(runtime, "name", "") or runtime.id)
            yield runtime
        if full.keep:
            say(f"Container {name} is kept. Go on in it: --attach {name}")

    return SandboxFactory(make, start, None if pool is None else pool.get)


def _instructions(full: SandboxOptions) -> str:
    """Return what a client may tell its model about all tools together."""
    if not full.backend.isolated:
        return f"Tools that work on the user's machine itself, in {full.workspace or Path.cwd()}. All share its files."
    if full.attach:
        place = f"Tools that work in the container {full.attach}."
    else:
        reached = f"which reaches these hosts alone: {', '.join(full.allowed or ())}" if full.allowed else ""
        network = "with the internet" if full.network == "open" else reached or "without any network"
        place = f"Tools that work in a Linux container of image {full.image or DEFAULT_IMAGE}, {network}."
    if full.copies:
        place += " /workspace is a copy of a directory of the user; it is lost when the session ends."
    elif full.workspace is not None:
        place += " /workspace is a directory of the user; other files are lost when the session ends."
    elif not (full.keep or full.attach):
        place += " Its files are lost when the session ends."
    return f"{place} All tools share its files and processes, and see nothing else of the user's machine."


def _serve_stdio(server: Server[SandboxSession]) -> int:
    from ohsandbox.mcp_server.stdio import serve_stdio  # noqa: PLC0415 - only without --http

    if entrypoint.closed_streams & {0, 1}:
        raise UsageError("stdin or stdout is closed. Start this as an MCP client does, or with --http.")
    if sys.stdin.isatty():
        say("An MCP client is expected on stdin: put this command into its configuration. Ctrl-C ends it.")
    _run(lambda: serve_stdio(server))
    return 0


def _serve_http(server: Server[SandboxSession], what: ServeOptions) -> int:
    from ohsandbox.mcp_server.http import HttpGuard, HttpSessions, ListenAddress, is_loopback, listening, serve_http  # noqa: PLC0415 - only with --http

    wanted = ListenAddress.parse(str(what.http))
    token = _token(what.token) or secrets.token_urlsafe(32)
    sessions = HttpSessions(
        server,
        guard=HttpGuard(token),
        max_sessions=what.max_sessions or _MAX_SESSIONS,
        idle_timeout_s=what.idle_timeout_s or _IDLE_S,
    )
    with listening(wanted) as (listener, address):
        if what.token is None:
            say(f"Clients need the header `Authorization: Bearer {token}`; choose your own with --token.")
            # as Claude Code, Cursor and others read it
            entry = {"type": "http", "url": address.url, "headers": {"Authorization": f"Bearer {token}"}}
            say(f"For a client's configuration: {json.dumps({'mcpServers': {'sandbox': entry}})}")
        if not is_loopback(address.host):
            say(f"warning: {address.host} can be reached by others, and nothing is encrypted. Put TLS in front of it.")
        _run(lambda: serve_http(sessions, listener, ready=lambda: say(f"Serving {address.url}; Ctrl-C ends it.")))
    return 0


def _token(reference: str | None) -> str:
    if reference is None:
        return ""
    found = look_up("--token", reference, os.environ)
    if found.warning:
        say(f"warning: {found.warning}")
    if len(found.value) < _MIN_TOKEN_CHARS or not found.value.isascii() or not found.value.isprintable():
        raise UsageError(f"Invalid token: expected {_MIN_TOKEN_CHARS} or more printable ASCII characters.")
    return found.value


def _run(work: Callable[[], Awaitable[None]]) -> None:
    """Run work until it ends, or until a signal has arrived and work has cleaned up."""
    if (number := anyio.run(_until_signal, work)) is not None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


async def _until_signal(work: Callable[[], Awaitable[None]]) -> int | None:
    came: list[int] = []
    wanted = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        wanted.add(signal.SIGHUP)

    async def watch(scope: anyio.CancelScope) -> None:
        async for number in numbers:  # what comes during the clean-up must not cut it short
            came.append(number)
            scope.cancel()

    with anyio.open_signal_receiver(*wanted) as numbers:
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(watch, scope)
                await work()
            group.cancel_scope.cancel()
    return came[0] if came else None
