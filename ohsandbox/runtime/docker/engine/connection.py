"""Connecting to a Docker engine: its address, the connection, and the errors when no engine answers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import EngineUnavailable, OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.engine.error_mapping import NO_ENGINE_REMEDY, engine_errors, foreign_errors
from ohsandbox.runtime.docker.engine.own_container import own_id
from ohsandbox.runtime.process.cancellation import check_not_cancelled, once_cancelled

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from ohsandbox.runtime.docker.engine.own_container import OwnMount
    from ohsandbox.runtime.docker.engine.ssh_tunnel import SshTunnel

CONNECT_TIMEOUT_S = 8.0
"""Limit for an engine that accepts the connection and never answers; an idle one answers in 2 ms."""
_CALL_TIMEOUT_S = 120.0
"""Limit per API call. Starting a container took 0.24 s alone and 3 s beside seven others on two cores; disks can be
slow."""

MAX_IDLE_CONNECTIONS = 64
"""The largest number of requests observed at once; urllib3 warns about each connection beyond it."""


class EngineAddress(NamedTuple):
    """The address of an engine, and where it was configured."""

    url: str
    tls: Any
    """A docker.tls.TLSConfig, or None."""
    source: str
    """Where it was configured: 'DOCKER_HOST', "context 'desktop-linux'", 'default'."""
    context: str = "default"
    """The docker client's name for it, and for its builder."""

    @property
    def is_local(self) -> bool:
        """Whether it is a socket file of this machine; the engine then most likely shares our processors and files."""
        return "unix://" in self.url

    def __str__(self) -> str:
        return f"{self.url} (from {self.source})"


class Engine:
    """A connected engine. `api` is docker-py's low-level client; wrap its calls in `engine_errors`.

    A failed call then raises SandboxUnavailable.
    """

    def __init__(
        self,
        api: Any,
        address: EngineAddress,
        *,
        is_podman: bool = False,
        while_starting: Callable[[], object] | None = None,
    ) -> None:
        self.api = api
        self.address = address
        self.is_podman = is_podman
        """Whether the engine is Podman, according to its answer to a ping."""
        self.own_mounts: tuple[OwnMount, ...] | None = None
        """Mounts of the container in which this process runs, once they have been queried."""
        self._info: dict[str, Any] | None = None
        self.while_starting = while_starting
        """Called before the engine is asked to start a container, for which it takes 0.2 s."""

    @property
    def api_version(self) -> str:
        """The negotiated API version, such as '1.41'."""
        return str(self.api.api_version)

    def cpu_count(self) -> int:
        """Return the number of processors of the engine's machine; the engine refuses larger NanoCpus (400)."""
        if self.address.is_local:
            return os.cpu_count() or 1
        with engine_errors("asking the engine for its processors"):
            return int(self.api.info()["NCPU"])

    def info(self) -> dict[str, Any]:
        """Return the engine's information about itself and its machine, queried once."""
        if self._info is None:
            with engine_errors("asking the engine about itself"):
                self._info = dict(self.api.info())
        return self._info

    def has_our_kernel(self) -> bool:
        """Whether containers run on this machine's kernel, so that inode numbers agree; false for Docker Desktop."""
        return self.address.is_local and self.info().get("KernelVersion") == os.uname().release

    @contextlib.contextmanager
    def cancellable(self, cancel: threading.Event | None, doing: str) -> Iterator[None]:
        """Map engine errors as `engine_errors(doing)`; setting cancel aborts the requests made in the block.

        The engine stops a pull or a build when its client disconnects.

        Raises:
            CallCancelledError: cancel was set before the end of the block.
        """
        check_not_cancelled(cancel, doing)
        answers: list[Any] = []
        hooks = self.api.hooks["response"]
        hooks.append(hook := lambda answer, *_, **__: answers.append(answer))

        def abort() -> None:
            for answer in answers:
                with contextlib.suppress(AttributeError, OSError):  # close() would not wake the thread that reads it
                    answer.raw.connection.sock.shutdown(socket.SHUT_RDWR)

        try:
            with once_cancelled(cancel, abort), engine_errors(doing):
                yield
        except SandboxUnavailable:
            check_not_cancelled(cancel, doing)
            raise
        finally:
            hooks.remove(hook)
        check_not_cancelled(cancel, doing)

    def close(self) -> None:
        """Close pooled connections. Calling it twice is fine."""
        self.api.close()


def connect(
    environ: Mapping[str, str] | None = None,
    *,
    while_starting: Callable[[], object] | None = None,
    on_reconnect: Callable[[str], object] | None = None,
) -> Engine:
    """Connect to the engine that DOCKER_HOST, the Docker context, or the default socket names.

    Args:
        environ: the variables; None takes those of this process.
        while_starting: called before the engine is asked to start a container.
        on_reconnect: called with a sentence after the connection to an engine on another machine was lost and restored.

    Raises:
        EngineUnavailable: nothing answers within 8 s, after up to 30 s to connect over ssh; or the engine is too old.
            The message holds address and remedy.
        UsageError: the address is malformed, or names a context that does not exist.
    """
    address = find_address(os.environ if environ is None else environ)
    try:
        api = _client(address, on_reconnect)
        is_podman = _negotiate(api, address)
    except OhsandboxError:
        raise
    except foreign_errors() as error:
        raise _unavailable(error, address) from error
    api.timeout = _CALL_TIMEOUT_S
    return Engine(api, address, is_podman=is_podman, while_starting=while_starting)


def find_address(environ: Mapping[str, str]) -> EngineAddress:
    """Return the address in the docker client's order: DOCKER_HOST, DOCKER_CONTEXT, current context, default.

    Raises:
        UsageError: the address is malformed, or names a context that does not exist.
    """
    from docker.context import ContextAPI  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    from docker.context.config import get_current_context_name  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    from docker.utils import kwargs_from_env  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine

    with _usage_errors():
        if environ.get("DOCKER_HOST"):
            arguments = kwargs_from_env(dict(environ))
            return EngineAddress(arguments["base_url"], arguments.get("tls"), "DOCKER_HOST")
        name = environ.get("DOCKER_CONTEXT") or get_current_context_name()
        if name == "default":
            return EngineAddress("unix:///var/run/docker.sock", None, "default")
        context = ContextAPI.get_context(name)
    if context is None or not context.Host:  # docker-py falls back to the default socket here: the wrong engine
        raise UsageError(
            f"Docker context {name!r} is not there.", remedy="Run `docker context ls`, or unset DOCKER_CONTEXT."
        )
    return EngineAddress(context.Host, context.TLSConfig, f"context {name!r}", name)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn docker-py's errors on a malformed address or TLS setting into UsageError."""
    try:
        yield
    except OhsandboxError:
        raise
    except Exception as error:
        raise UsageError(
            f"The Docker settings cannot be used: {error}.",
            remedy="Correct DOCKER_HOST, DOCKER_CERT_PATH or the context.",
        ) from error


def _client(address: EngineAddress, on_reconnect: Callable[[str], object] | None) -> Any:
    """Return docker-py's client of an address; a request with the engine's API version needs `_negotiate` first."""
    import docker  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    from docker.constants import MINIMUM_DOCKER_API_VERSION as MINIMUM  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    from docker.utils import parse_host  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine

    from ohsandbox.runtime.docker.engine.credential_helpers import use_host_programs  # noqa: PLC0415 - imports docker

    with _usage_errors():
        url = parse_host(address.url, tls=bool(address.tls))
    tunnel: SshTunnel | None = None
    if url.startswith("ssh://"):
        from ohsandbox.runtime.docker.engine.ssh_tunnel import tunnel_to  # noqa: PLC0415 - most engines are local

        tunnel = tunnel_to(address.url)
        url = f"unix://{tunnel.open()}"
    elif url.startswith("http+unix://"):
        # a plain OSError says more than docker-py's, which also leaks the failed socket
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(CONNECT_TIMEOUT_S)
            knock.connect("/" + url.removeprefix("http+unix://").lstrip("/"))
    api = docker.APIClient(base_url=url, tls=address.tls or False, version=MINIMUM, timeout=CONNECT_TIMEOUT_S)
    api.trust_env = False
    use_host_programs(api)
    if "unix://" in url:
        from ohsandbox.runtime.docker.engine.unix_transport import OnePoolAdapter  # noqa: PLC0415 - imports docker

        def report() -> None:
            if on_reconnect is not None:
                on_reconnect(f"The connection to {address.url} was lost and restored")

        adapter = OnePoolAdapter(url, CONNECT_TIMEOUT_S, MAX_IDLE_CONNECTIONS, tunnel=tunnel, on_reconnect=report)
        api.mount("http+docker://", adapter)
    return api


def _negotiate(api: Any, address: EngineAddress) -> bool:
    """Have a client use the engine's own API version; return whether the engine is Podman.

    requests lets REQUESTS_CA_BUNDLE and a proxy of the environment override a client's own CA, and docker-py's
    constructor would connect that way. Neither setting is meant for the engine, so the version is requested afterwards,
    without them.
    """
    try:
        # the ping's header has the version in 1 ms; GET /version takes 10 ms, as engine 20.10 asks all its components
        pinged = api.get(f"{api.base_url}/_ping", timeout=api.timeout)
        api_version = pinged.headers.get("Api-Version") if pinged.ok else None
        api._version = _checked_version(  # noqa: SLF001 - docker-py sets it in its constructor only
            {"ApiVersion": api_version} if api_version else api.version(api_version=False), address
        )
    except BaseException:
        api.close()
        raise
    return "Libpod-API-Version" in pinged.headers


def _checked_version(answer: Any, address: EngineAddress) -> str:
    """Return the API version in an engine's answer.

    Raises:
        EngineUnavailable: the server is not an engine, or is too old for docker-py.
    """
    from docker.constants import MINIMUM_DOCKER_API_VERSION as MINIMUM  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    from docker.utils import version_lt  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine

    version = answer.get("ApiVersion") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not re.fullmatch(r"[0-9]+\.[0-9]+", version):
        raise EngineUnavailable(f"The server at {address} is not a Docker engine.", remedy=NO_ENGINE_REMEDY)
    if version_lt(version, MINIMUM):
        raise EngineUnavailable(
            f"The Docker engine at {address} is too old: it speaks API {version}, {MINIMUM} is needed.",
            remedy="Upgrade the engine (20.10 or newer).",
        )
    return version


def _unavailable(error: BaseException, address: EngineAddress) -> OhsandboxError:
    """Return a one-line error for a failed connect: cause, address, remedy."""
    text = str(error)
    remedy = NO_ENGINE_REMEDY
    if own_id() is not None and address.is_local:
        path = _socket_path(address)
        remedy = f"Start this container with `-v {path}:{path}`, or point DOCKER_HOST at an engine."
    if "Permission denied" in text or "PermissionError" in text:
        if own_id() is not None and (group := _group_of_socket(address)) is not None:
            return EngineUnavailable(
                f"Permission denied at {address}: it belongs to group {group}.",
                remedy=f"Start this container with `--group-add {group}`.",
            )
        return EngineUnavailable(
            f"Permission denied at {address}.",
            remedy="Run `sudo usermod -aG docker $USER` and log in again, or use a rootless engine.",
        )
    if "timed out" in text.lower() or "timeout" in text.lower():
        why = f"it accepts but does not answer within {CONNECT_TIMEOUT_S:.0f} s"
    elif "No such file" in text or "FileNotFound" in text:
        why = "the socket does not exist"
    elif "refused" in text:
        why = "connection refused"
    elif match := re.search(r"certificate verify failed: [^()]+|SSLError\([^()]+", text):
        why = match[0].strip()
    else:
        why = " ".join(text.split())[:200]
    return EngineUnavailable(f"No Docker engine answers at {address}: {why}.", remedy=remedy)


def _socket_path(address: EngineAddress) -> str:
    return address.url.split("unix://", 1)[1] or "/var/run/docker.sock"


def _group_of_socket(address: EngineAddress) -> int | None:
    try:
        return Path(_socket_path(address)).stat().st_gid if address.is_local else None
    except OSError:
        return None


def socket_mode(address: EngineAddress) -> str | None:
    """Return uid, gid and mode of a local engine's socket, as `0:999 0660`; None if it is not a local file."""
    if not address.is_local:
        return None
    try:
        stats = Path(_socket_path(address)).stat()
    except OSError:
        return None
    return f"{stats.st_uid}:{stats.st_gid} {stat.S_IMODE(stats.st_mode):04o}"
