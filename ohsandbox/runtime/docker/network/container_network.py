"""`ContainerNetwork`: what one container reaches, and how its programs are led there."""

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
from ohsandbox.network.listeners import NetworkListeners
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.monitoring.selfcheck import outside_interfaces
from ohsandbox.runtime.docker.network.proxy_variables import (
    JAVA_OPTIONS,
    NODE_PRELOAD_PATH,
    PROXY_VARIABLES,
    node_preload,
    proxy_environment,
    told_network,
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
"""As many decisions `decisions` tells, over all changes of the network."""
LIST_INTERFACES = b'while read -r ohs_k ohs_v;do case $ohs_k in *:*)echo "${ohs_k%%:*}";;esac;done </proc/net/dev'
"""Worker shell: the interfaces of the sandbox, a line each."""
WORKER_WAIT_S = 0.2
"""What writes the connector and who looks at files meanwhile share the first process, a worker: each has it for some
milliseconds, and another one takes 0.05 s of a processor."""
_ALLOWLIST = "ohsandbox.runtime.docker.network.allowlist"


class _OfThread(threading.local):
    """Whether this thread starts what the wait is for, or what runs nothing yet."""

    is_starting = False
    is_connecting = False
    """It starts the connector itself."""


class ContainerNetwork:
    """The allowlist of one `DockerRuntime` with the credentials that it adds, and the record of what was decided.

    With another network it holds no list, and records the connections of ports alone.
    """

    adds_credentials = True
    """False leaves the credentials out of the next list."""

    def __init__(
        self,
        runtime: DockerRuntime,
        options: Callable[[], DockerOptions],
        *,
        credentials: Sequence[str] = (),
        ca_bundle: str | os.PathLike[str] | None = None,
        given: Mapping[str, str],
    ) -> None:
        """Begin nothing yet.

        Args:
            runtime: whose container it is.
            options: returns the runtime's options as they are now.
            credentials: as `DockerRuntime` takes them.
            ca_bundle: a PEM file that is trusted beside the sandbox's own authority.
            given: the caller's variables, which win over ours.

        Raises:
            UsageError: an argument has another type, a credential is none or lacks its value, or a variable has it.
        """
        expect_path("ca_bundle", ca_bundle)
        expect_texts("credentials", credentials)
        self._runtime = runtime
        self._read_options = options
        self._allowlist: Allowlist | None = None
        self._port_audit: AuditLog | None = None
        self._earlier: tuple[NetworkDecision, ...] = ()
        """Of lists that have ended, as by `set_network`."""
        self._here = _OfThread()
        self._listeners: NetworkListeners[[NetworkDecision]] = NetworkListeners()
        self._credentials: CredentialSetup | None = None
        if credentials:
            from ohsandbox.runtime.docker.network.trust import CredentialSetup  # noqa: PLC0415 - most sandboxes have none

            bundle = None if ca_bundle is None else os.fspath(ca_bundle)
            self._credentials = CredentialSetup(credentials, ca_bundle=bundle, given=given)

    @property
    def _options(self) -> DockerOptions:
        return self._read_options()

    # --- what is reached ---

    @property
    def rules(self) -> tuple[str, ...]:
        """Those of the allowlist, as they are shown; empty with another network."""
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
        """Have these rules alone on the list, where there is one."""
        if self._allowlist is not None:
            policy = self._allowlist.policy
            policy.allow(*rules)  # first, so that what both lists have never lacks
            policy.disallow(*{*policy.rules} - {*rules})

    def _the_allowlist(self, rules: tuple[str, ...]) -> Allowlist:
        if self._allowlist is None:
            network = self._options.network
            state = "is not started" if network == "allowlist" else f"has network {network!r}"
            shown = ", ".join(map(repr, rules[:3]))
            raise UsageError(
                f"The sandbox {state}, so its list cannot take {shown}. "
                "Remedy: start it, or set_network('allowlist', allow=[...])."
            )
        return self._allowlist

    def describe(self) -> str | None:
        """What a model is told of the allowlist; None with another network."""
        return told_network(self.rules, self._credential_hosts) if self._options.network == "allowlist" else None

    # --- what was decided ---

    def decisions(self) -> tuple[NetworkDecision, ...]:
        """See `DockerRuntime.network_decisions`."""
        audits = (self._port_audit, None if self._allowlist is None else self._allowlist.audit)
        found = [*self._earlier, *(one for audit in audits if audit is not None for one in audit.decisions)]
        return tuple(sorted(found, key=lambda one: one.time))

    def on_decision(self, listener: Callable[[NetworkDecision], object]) -> Callable[[], None]:
        """See `DockerRuntime.on_network_decision`."""
        return self._listeners.add(listener)

    def record_connection(self, one: PortConnection) -> None:
        """Keep a port's connection with the decisions of the list; in a log of its own where there is no list."""
        audit = self._port_audit if self._allowlist is None else self._allowlist.audit
        if audit is None:
            from ohsandbox.network.audit import AuditLog  # noqa: PLC0415 - as `_ALLOWLIST`

            audit = self._port_audit = AuditLog(self._options.conversation or self._runtime.name or None)
            audit.on_decision(self._listeners.tell)
        reason = "forwarded port of the sandbox" if one.protocol == "forward" else "exposed port of this machine"
        reason += f", which did not answer: {one.error}" if one.error else ""
        decision = audit.record("127.0.0.1", one.port, one.protocol, allowed=True, reason=reason)
        audit.finish(decision, sent_bytes=one.sent_bytes, received_bytes=one.received_bytes)

    def record_as(self, conversation: str) -> None:
        """Keep decisions of the list under this conversation from now on."""
        if self._allowlist is not None:
            self._allowlist.record_as(conversation)

    # --- from the start of a container to its end ---

    def prepare(self) -> None:
        """Begin what needs no container, while the engine starts it: the list's modules are imported."""
        if self._options.network == "allowlist":
            threading.Thread(target=import_module, args=(_ALLOWLIST,), daemon=True).start()
        if self._credentials is not None:
            self._credentials.prepare()

    def open(self, container_name: str) -> None:
        """Have a list from now on, if the options name one; `listen` leads the sandbox's connections to it."""
        if self._options.network != "allowlist":
            self._allowlist = None
        elif self._allowlist is None:
            from ohsandbox.runtime.docker.network.allowlist import Allowlist  # noqa: PLC0415 - most sandboxes of programs have none

            credentials = self._credentials_now
            self._allowlist = Allowlist(
                self._options.allow, name=self._options.conversation or container_name, listener=self._listeners.tell,
                interceptor=None if credentials is None else credentials.broker.interceptor,
            )  # fmt: skip

    def listen(self) -> None:
        """Lead the connections of a sandbox that is checked to its list, beside what is done there next."""
        if self._allowlist is not None:
            self._allowlist.begin(self._runtime.tunnel)

    def restart(self) -> None:
        """Every process of the sandbox was ended, the list's connector among them: the next program waits for it."""
        if self._allowlist is not None:
            self._allowlist.restart()

    def close(self) -> None:
        """Serve no process inside any more."""
        ended, self._allowlist = self._allowlist, None
        if ended is not None:
            from ohsandbox.network.audit import shortened  # noqa: PLC0415 - as `_ALLOWLIST`

            ended.close()
            self._earlier = shortened((*self._earlier, *ended.audit.decisions), _KEPT_DECISIONS)
        if self._port_audit is not None:
            self._port_audit.close()

    # --- programs of the sandbox, and when they find the list ---

    @property
    def is_awaited(self) -> bool:
        """Whether what this thread starts next has to find the list served."""
        return self._allowlist is not None and not self._here.is_starting

    @property
    def is_ready(self) -> bool:
        """Whether `wait` returns at once."""
        return self._allowlist is None or self._allowlist.was_tried

    @property
    def is_connecting(self) -> bool:
        """Whether this thread starts the connector itself."""
        return self._here.is_connecting

    def wait(self) -> None:
        """Return once a program that is started by this thread finds the proxy from its first moment on."""
        if self._allowlist is not None and not self._here.is_starting:
            self._allowlist.wait()

    def worker_wait_s(self, call: WorkerCall) -> float:
        """See `Backend._worker_wait_s`."""
        is_beginning = self._allowlist is not None and self._allowlist.is_beginning
        return WORKER_WAIT_S if is_beginning and not call.is_program and call.user is None else 0.0

    @contextlib.contextmanager
    def starting(self, *, connector: bool = False) -> Iterator[None]:
        """What this thread starts meanwhile waits for no list: it runs nothing yet, or is the connector itself."""
        here = self._here
        before = here.is_starting, here.is_connecting
        here.is_starting, here.is_connecting = True, connector or here.is_connecting
        try:
            yield
        finally:
            here.is_starting, here.is_connecting = before

    def write_files(self) -> None:
        """Write the files that our variables name: Node and Java need them where nothing is reached, too."""
        if self._options.network != "allowlist":
            return
        runtime = self._runtime
        runtime.write_bytes(NODE_PRELOAD_PATH, node_preload(), mode=0o644, user=runtime.connector_owner)
        if self._trusts_bundle:
            from ohsandbox.runtime.docker.network import trust  # noqa: PLC0415 - as `_ALLOWLIST`

            store = trust.java_trust_store_of(str(self._options.ca_bundle))
            runtime.write_bytes(trust.JAVA_TRUST_PATH, store, mode=0o644, user=runtime.connector_owner)

    def connect_proxy(self) -> socket.socket | None:
        """See `Backend.connect_proxy`."""
        return None if self._allowlist is None else self._allowlist.connect()

    def prepare_browser(self) -> None:
        """See `Backend.prepare_browser`."""
        if self._options.network != "allowlist":
            return
        from ohsandbox.runtime.docker.network.browser_policy import POLICY_PATHS, browser_policy  # noqa: PLC0415 - most have none

        authorities = b"" if self._credentials is None else self._credentials.broker.certificate
        if self._options.ca_bundle is not None:
            authorities += Path(self._options.ca_bundle).expanduser().read_bytes()
        runtime = self._runtime
        for path in POLICY_PATHS:
            try:
                runtime.write_bytes(path, browser_policy(authorities), mode=0o644, user=runtime.connector_owner)
            except SandboxFileError as error:
                log.warning("Browsers in the sandbox will not reach what the list allows: %s", error)
                return

    # --- variables of processes ---

    def environment(self, exec_env: Mapping[str, str]) -> dict[str, str]:
        """The variables of a sandbox's processes: exec_env with ours of its network, without those of another."""
        kept = {name: value for name, value in exec_env.items() if name not in self._variable_names}
        return {**kept, **self._variables()}

    def variables_now(self, exec_env: Mapping[str, str]) -> dict[str, str]:
        """Those that lead a process of the network before to this one's proxy, or nowhere; "" where there is none.

        exec_env is what `environment` returns.
        """
        given = self._options.env
        return {
            name: exec_env.get(name, given.get(name, ""))
            for name in self._variable_names
            if name not in given or name == JAVA_OPTIONS
        }

    def _variables(self) -> Mapping[str, str]:
        """The variables that lead processes to the list, and to the placeholders of credentials."""
        if self._options.network != "allowlist":
            return {}
        found = self._credentials_now
        java_options = ""
        if self._trusts_bundle or found is not None:
            from ohsandbox.runtime.docker.network import trust  # noqa: PLC0415 - as `_ALLOWLIST`

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
        """The caller's CA bundle alone is trusted, and Java reads it in a form of its own."""
        return self._options.ca_bundle is not None and self._credentials_now is None

    # --- credentials ---

    @property
    def secrets_outside(self) -> Mapping[str, str]:
        """The values of the credentials by name, which never enter the sandbox."""
        return MappingProxyType({}) if self._credentials is None else self._credentials.outside

    def check_outside(self, variables: Mapping[str, str]) -> None:
        """Refuse variables of the sandbox that have such a value.

        Raises:
            UsageError: one has.
        """
        if self._credentials is not None:
            self._credentials.check_outside(variables)

    def with_credential_hosts(self, allow: Sequence[str] | None) -> Sequence[str] | None:
        """The rules that were asked for with those that the credentials need; None where there are none."""
        if isinstance(allow, str):
            raise wrong("allow", allow, f"a list, such as [{allow!r}]")
        return [*(allow or ()), *self._credential_hosts] if self._credential_hosts else allow or None

    def install_credentials(self, sandbox: Sandbox) -> None:
        """Have a container's programs trust what answers for the hosts of the credentials, where it has the list."""
        if self._credentials is not None and self._options.network == "allowlist":
            self._credentials.install(sandbox)

    @property
    def _credentials_now(self) -> CredentialSetup | None:
        return self._credentials if self.adds_credentials else None

    @property
    def _credential_hosts(self) -> tuple[str, ...]:
        return () if self._credentials_now is None else self._credentials_now.hosts


def change(container: Container, network: NetworkMode, interfaces: Callable[[], bytes]) -> None:
    """Leave every network but the one that is wanted, and join that. A call that was cut off can be repeated.

    interfaces runs `LIST_INTERFACES` in the sandbox.

    Raises:
        SandboxRefused: the engine says that it is done, and the interfaces do not show it; or no rules can be set.
        SandboxUnavailable: the engine refuses.
    """
    with engine_errors(f"changing the network of sandbox {container.name!r} to {network!r}"):
        if network == "open":
            container.join_open_network()
        else:
            container.leave_open_network()
    found = outside_interfaces(interfaces().decode(errors="replace").split())
    if bool(found) != (network == "open"):
        has = f"still the interface {min(found)!r}" if found else "no interface"
        raise SandboxRefused(
            f"The network of sandbox {container.name!r} is to be {network!r}, and it has {has}: its engine or OCI "
            "runtime cannot change it while it runs. Remedy: make a new one with that network."
        )
