"""`ContainerNetwork`: the hosts that one container can reach, and the variables that name its proxy."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ohsandbox.arguments import expect_path, expect_texts, wrong
from ohsandbox.errors import SandboxFileError, SandboxRefused, UsageError
from ohsandbox.network.listeners import Listeners
from ohsandbox.private_files import read_regular
from ohsandbox.runtime.docker.config.selfcheck import outside_interfaces
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.network.proxy_clients import (
    JAVA_OPTIONS,
    NODE_PRELOAD_PATH,
    POLICY_PATHS,
    PROXY_VARIABLES,
    allowlist_description,
    browser_policy,
    node_preload,
    proxy_environment,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ohsandbox.network.audit import AuditLog, NetworkDecision
    from ohsandbox.network.tunnel.ports import PortConnection
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.network.allowlist import Allowlist
    from ohsandbox.runtime.docker.network.trust import CredentialSetup
    from ohsandbox.runtime.docker.runtime import DockerRuntime
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.process.worker import WorkerCall
    from ohsandbox.runtime.runtime_settings import NetworkMode

log = logging.getLogger(__name__)

_KEPT_DECISIONS = 1000
"""Maximum number of decisions of ended allowlists that are kept; older ones are replaced by sums."""
LIST_INTERFACES = b'while read -r ohs_k ohs_v;do case $ohs_k in *:*)echo "${ohs_k%%:*}";;esac;done </proc/net/dev'
"""Shell code that prints the interfaces of the sandbox, one per line."""
WORKER_WAIT_S = 0.2
"""Seconds to wait for the first worker process, which both writes the connector and reads files for callers. Each use
takes some milliseconds; another worker costs 0.05 s of CPU time."""
_ALLOWLIST = "ohsandbox.runtime.docker.network.allowlist"


class _OfThread(threading.local):
    """State of a thread: whether the processes that it starts must not wait for the allowlist."""

    is_starting = False
    is_connecting = False
    """Whether this thread is starting the connector."""


class ContainerNetwork:
    """The allowlist of one `DockerRuntime`, its credentials, and the log of its decisions.

    With another network there is no allowlist, and only connections through ports are logged.
    """

    adds_credentials = True
    """If false, the next allowlist adds no credentials."""

    def __init__(
        self,
        runtime: DockerRuntime,
        options: Callable[[], DockerOptions],
        *,
        credentials: Sequence[str] = (),
        ca_bundle: str | os.PathLike[str] | None = None,
        given: Mapping[str, str],
    ) -> None:
        """Store the arguments without starting anything.

        Args:
            runtime: the runtime that owns the container.
            options: returns the runtime's options as they are now.
            credentials: as `DockerRuntime` takes them.
            ca_bundle: a PEM file of authorities to trust in addition to the sandbox's own.
            given: the caller's variables, which take precedence.

        Raises:
            UsageError: an argument has a wrong type, a credential is invalid or its value is missing, or a variable
                contains the value.
        """
        expect_path("ca_bundle", ca_bundle)
        expect_texts("credentials", credentials)
        self._runtime = runtime
        self._read_options = options
        self._allowlist: Allowlist | None = None
        self._port_audit: AuditLog | None = None
        self._earlier: tuple[NetworkDecision, ...] = ()
        """Decisions of allowlists that have ended, for example by `set_network`."""
        self._here = _OfThread()
        self._listeners: Listeners[[NetworkDecision]] = Listeners()
        self._credentials: CredentialSetup | None = None
        if credentials:
            from ohsandbox.runtime.docker.network.trust import CredentialSetup  # noqa: PLC0415 - most sandboxes have no credentials

            bundle = None if ca_bundle is None else os.fspath(ca_bundle)
            self._credentials = CredentialSetup(credentials, ca_bundle=bundle, given=given)

    @property
    def _options(self) -> DockerOptions:
        return self._read_options()

    # --- rules ---

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of the allowlist in their canonical spelling; empty with another network."""
        if self._allowlist is not None:
            return self._allowlist.policy.rules
        return self._options.allow if self._options.network == "allowlist" else ()

    def allow(self, *rules: str) -> None:
        """See `DockerRuntime.allow`."""
        self._the_allowlist(rules).policy.allow(*rules)

    def disallow(self, *rules: str) -> None:
        """See `DockerRuntime.disallow`."""
        self._the_allowlist(rules).policy.disallow(*rules)

    def replace(self, rules: Sequence[str]) -> None:
        """Replace the rules of the allowlist, if there is one."""
        if self._allowlist is not None:
            policy = self._allowlist.policy
            policy.allow(*rules)  # add first, so that hosts of both lists stay reachable throughout
            policy.disallow(*{*policy.rules} - {*rules})

    def _the_allowlist(self, rules: tuple[str, ...]) -> Allowlist:
        if self._allowlist is None:
            network = self._options.network
            state = "is not started" if network == "allowlist" else f"has network {network!r}"
            shown = ", ".join(map(repr, rules[:3]))
            raise UsageError(
                f"The sandbox {state}, so its rules cannot be changed ({shown}). "
                "Start it, or set_network('allowlist', allow=[...])."
            )
        return self._allowlist

    def describe(self) -> str | None:
        """Return the description of the allowlist for a model; None with another network."""
        return (
            allowlist_description(self.rules, self._credential_hosts) if self._options.network == "allowlist" else None
        )

    # --- decisions ---

    def decisions(self) -> tuple[NetworkDecision, ...]:
        """See `DockerRuntime.network_decisions`."""
        audits = (self._port_audit, None if self._allowlist is None else self._allowlist.audit)
        found = [*self._earlier, *(one for audit in audits if audit is not None for one in audit.decisions)]
        return tuple(sorted(found, key=lambda one: one.time))

    def on_decision(self, listener: Callable[[NetworkDecision], object]) -> Callable[[], None]:
        """See `DockerRuntime.on_network_decision`."""
        return self._listeners.add(listener)

    def record_connection(self, one: PortConnection) -> None:
        """Log a connection through a port with the allowlist's decisions; without one, in a log of its own."""
        audit = self._port_audit if self._allowlist is None else self._allowlist.audit
        if audit is None:
            from ohsandbox.network.audit import AuditLog  # noqa: PLC0415 - most sandboxes have no allowlist

            audit = self._port_audit = AuditLog(self._options.conversation or self._runtime.name or None)
            audit.on_decision(self._listeners.notify)
        reason = "forwarded port of the sandbox" if one.protocol == "forward" else "exposed port of this machine"
        reason += f", which did not answer: {one.error}" if one.error else ""
        decision = audit.record("127.0.0.1", one.port, one.protocol, allowed=True, reason=reason)
        audit.finish(decision, sent_bytes=one.sent_bytes, received_bytes=one.received_bytes)

    def record_as(self, conversation: str) -> None:
        """Log the allowlist's decisions under this conversation from now on."""
        if self._allowlist is not None:
            self._allowlist.record_as(conversation)

    # --- life, from the start of a container to its end ---

    def prepare(self) -> None:
        """Import the allowlist's modules in the background, while the engine starts the container."""
        if self._options.network == "allowlist":
            threading.Thread(target=import_module, args=(_ALLOWLIST,), daemon=True).start()
        if self._credentials is not None:
            self._credentials.prepare()

    def open(self, container_name: str) -> None:
        """Create the allowlist, if the network is one; `listen` then makes it reachable in the sandbox."""
        if self._options.network != "allowlist":
            self._allowlist = None
        elif self._allowlist is None:
            from ohsandbox.runtime.docker.network.allowlist import Allowlist  # noqa: PLC0415 - most sandboxes of programs have no allowlist

            credentials = self._credentials_now
            self._allowlist = Allowlist(
                self._options.allow, name=self._options.conversation or container_name, listener=self._listeners.notify,
                interceptor=None if credentials is None else credentials.broker.interceptor,
            )  # fmt: skip

    def listen(self) -> None:
        """Start the connector in the background; the sandbox has been checked."""
        if self._allowlist is not None:
            self._allowlist.begin(self._runtime.tunnel)

    def restart(self) -> None:
        """Start the connector again after all processes of the sandbox were killed; the next program waits for it."""
        if self._allowlist is not None:
            self._allowlist.restart()

    def close(self) -> None:
        """Stop serving the sandbox; the decisions remain available."""
        ended, self._allowlist = self._allowlist, None
        if ended is not None:
            from ohsandbox.network.audit import summarized  # noqa: PLC0415 - most sandboxes have no allowlist

            ended.close()
            self._earlier = summarized((*self._earlier, *ended.audit.decisions), _KEPT_DECISIONS)
        if self._port_audit is not None:
            self._port_audit.close()

    # --- programs of the sandbox wait for the allowlist ---

    @property
    def is_awaited(self) -> bool:
        """Whether a process that this thread starts must wait for the allowlist."""
        return self._allowlist is not None and not self._here.is_starting

    @property
    def is_ready(self) -> bool:
        """Whether `wait` returns at once in every thread."""
        return self._allowlist is None or self._allowlist.was_tried

    @property
    def is_connecting(self) -> bool:
        """Whether this thread is starting the connector."""
        return self._here.is_connecting

    def wait(self) -> None:
        """Wait until the proxy is reachable, unless this thread is within `starting`."""
        if self._allowlist is not None and not self._here.is_starting:
            self._allowlist.wait()

    def worker_wait_s(self, call: WorkerCall) -> float:
        """See `Backend._worker_wait_s`."""
        is_beginning = self._allowlist is not None and self._allowlist.is_beginning
        return WORKER_WAIT_S if is_beginning and not call.is_program and call.user is None else 0.0

    @contextlib.contextmanager
    def starting(self, *, connector: bool = False) -> Iterator[None]:
        """Let this thread start processes, such as the connector, without waiting for the allowlist."""
        here = self._here
        before = here.is_starting, here.is_connecting
        here.is_starting, here.is_connecting = True, connector or here.is_connecting
        try:
            yield
        finally:
            here.is_starting, here.is_connecting = before

    def write_files(self) -> None:
        """Write the files that the variables name; Node and Java need them even if no host is reachable."""
        if self._options.network != "allowlist":
            return
        runtime = self._runtime
        runtime.write_bytes(NODE_PRELOAD_PATH, node_preload(), mode=0o644, user=runtime.connector_owner)
        if self._trusts_bundle:
            from ohsandbox.runtime.docker.network import trust  # noqa: PLC0415 - most sandboxes trust no further authority

            store = trust.java_trust_store_of(str(self._options.ca_bundle))
            runtime.write_bytes(trust.JAVA_TRUST_PATH, store, mode=0o644, user=runtime.connector_owner)

    def connect_proxy(self) -> socket.socket | None:
        """See `Backend.connect_proxy`."""
        return None if self._allowlist is None else self._allowlist.connect()

    def prepare_browser(self) -> None:
        """See `Backend.prepare_browser`."""
        if self._options.network != "allowlist":
            return
        authorities = b"" if self._credentials is None else self._credentials.broker.certificate
        if self._options.ca_bundle is not None:
            authorities += read_regular(Path(self._options.ca_bundle).expanduser(), follow=True)
        runtime = self._runtime
        for path in POLICY_PATHS:
            try:
                runtime.write_bytes(path, browser_policy(authorities), mode=0o644, user=runtime.connector_owner)
            except SandboxFileError as error:
                log.warning("Browsers in the sandbox will not reach what the list allows: %s", error)
                return

    # --- variables of processes ---

    def environment(self, exec_env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the sandbox's processes: exec_env with those of the previous network replaced."""
        kept = {name: value for name, value in exec_env.items() if name not in self._variable_names}
        return {**kept, **self._variables()}

    def variables_now(self, exec_env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to change in processes that run since before a change of the network; "" for unset ones.

        exec_env is the result of `environment`.
        """
        given = self._options.env
        return {
            name: exec_env.get(name, given.get(name, ""))
            for name in self._variable_names
            if name not in given or name == JAVA_OPTIONS
        }

    def _variables(self) -> Mapping[str, str]:
        """Return the variables that name the allowlist's proxy, and those with placeholders of credentials."""
        if self._options.network != "allowlist":
            return {}
        found = self._credentials_now
        java_options = ""
        if self._trusts_bundle or found is not None:
            from ohsandbox.runtime.docker.network import trust  # noqa: PLC0415 - most sandboxes trust no further authority

            java_options = trust.JAVA_TRUST_OPTION
        hosts = [service.name for service in self._options.services]
        variables = proxy_environment(self._options.env, java_options=java_options, hosts=hosts)
        return variables if found is None else {**variables, **found.variables()}

    @property
    def _variable_names(self) -> frozenset[str]:
        return frozenset(PROXY_VARIABLES) | frozenset(
            {} if self._credentials is None else self._credentials.variables()
        )

    @property
    def _trusts_bundle(self) -> bool:
        """Whether the caller's CA bundle is trusted without credentials; Java needs it in another format."""
        return self._options.ca_bundle is not None and self._credentials_now is None

    # --- credentials ---

    @property
    def secrets_outside(self) -> Mapping[str, str]:
        """The values of the credentials, by name; they never enter the sandbox."""
        return MappingProxyType({}) if self._credentials is None else self._credentials.outside

    def check_outside(self, variables: Mapping[str, str]) -> None:
        """Check that no variable of the sandbox contains the value of a credential.

        Raises:
            UsageError: a variable contains one.
        """
        if self._credentials is not None:
            self._credentials.check_outside(variables)

    def with_credential_hosts(self, allow: Sequence[str] | None) -> Sequence[str] | None:
        """Return the requested rules and those for the hosts of credentials; None if there are neither."""
        if isinstance(allow, str):
            raise wrong("allow", allow, f"Give a list, such as [{allow!r}].")
        return [*(allow or ()), *self._credential_hosts] if self._credential_hosts else allow or None

    def install_credentials(self, sandbox: Sandbox) -> None:
        """Make a container's programs trust the proxy for the hosts of credentials, if the network is the allowlist."""
        if self._credentials is not None and self._options.network == "allowlist":
            self._credentials.install(sandbox)

    @property
    def _credentials_now(self) -> CredentialSetup | None:
        return self._credentials if self.adds_credentials else None

    @property
    def _credential_hosts(self) -> tuple[str, ...]:
        return () if self._credentials_now is None else self._credentials_now.hosts


def change(container: Container, network: NetworkMode, allow: tuple[str, ...], interfaces: Callable[[], bytes]) -> None:
    """Connect a container to the bridge for network "open", or else disconnect it from all networks; idempotent.

    allow are addresses that "open" reaches in addition to the public ones. interfaces runs `LIST_INTERFACES` in the
    sandbox.

    Raises:
        SandboxRefused: the sandbox's interfaces do not show the change, or the rules cannot be set.
        SandboxUnavailable: the engine refuses the change.
    """
    with engine_errors(f"changing the network of sandbox {container.name!r} to {network!r}"):
        if network == "open":
            container.join_open_network(allow)
        else:
            container.leave_open_network()
    found = outside_interfaces(interfaces().decode(errors="replace").split())
    if bool(found) != (network == "open"):
        has = f"still has the interface {min(found)!r}" if found else "has no interface"
        raise SandboxRefused(
            f"The network of sandbox {container.name!r} should be {network!r}, but it {has}: its engine or OCI "
            "runtime cannot change it while it runs. Create a new sandbox with that network."
        )
