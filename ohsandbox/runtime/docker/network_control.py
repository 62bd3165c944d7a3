"""`NetworkControl`: what a `DockerRuntime` says of its network, and what its owner changes of it while it runs."""

from __future__ import annotations

import contextlib
import logging
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ohsandbox.arguments import wrong
from ohsandbox.errors import SandboxFileError, UsageError
from ohsandbox.network.listeners import NetworkListeners
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.docker.proxy_variables import (
    JAVA_OPTIONS,
    NODE_PRELOAD_PATH,
    PROXY_VARIABLES,
    node_preload,
    proxy_environment,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ohsandbox.errors import SandboxUnavailable
    from ohsandbox.network.audit import AuditLog, NetworkDecision
    from ohsandbox.network.tunnel.ports import PortConnection, Ports
    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.docker.allowlist import Allowlist
    from ohsandbox.runtime.docker.options import DockerOptions
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.docker.trust import CredentialSetup
    from ohsandbox.runtime.process.worker import CallResult, Exchange, WorkerCall
    from ohsandbox.secrets import Secrets


T = TypeVar("T")
log = logging.getLogger(__name__)

KEPT_DECISIONS = 1000
"""As many decisions `network_decisions` tells, over all changes of the network."""
WORKER_WAIT_S = 0.2
"""What writes the connector and who looks at files meanwhile share the first process, a worker: each has it for some
milliseconds, and another one takes 0.05 s of a processor."""
_ALLOWLIST = "ohsandbox.runtime.docker.allowlist"


class _OfThread(threading.local):
    """Whether this thread starts what the wait is for, or what runs nothing yet."""

    is_starting = False
    is_connecting = False
    """It starts the connector itself."""

    @contextlib.contextmanager
    def starting(self, *, connector: bool = False) -> Iterator[None]:
        before = self.is_starting, self.is_connecting
        self.is_starting, self.is_connecting = True, connector or self.is_connecting
        try:
            yield
        finally:
            self.is_starting, self.is_connecting = before


class NetworkControl(Runtime):
    """The part of a `DockerRuntime` that keeps its allowlist."""

    _options: DockerOptions
    _unchecked: bool
    """The sandbox is new, or was started again: no process of it has been checked yet."""

    def __init__(self) -> None:
        super().__init__()
        self._allowlist: Allowlist | None = None
        self._port_audit: AuditLog | None = None
        self._earlier: tuple[NetworkDecision, ...] = ()
        """Of lists that have ended, as by `set_network`."""
        self._here = _OfThread()
        self._decision_listeners: NetworkListeners[[NetworkDecision]] = NetworkListeners()
        self._credentials: CredentialSetup | None = None
        self.adds_credentials = True
        """False leaves the credentials out of the next list that `set_network` makes."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """The rules of the allowlist, as they are shown; empty with another network."""
        if self._allowlist is not None:
            return self._allowlist.policy.rules
        return self._options.allow if self._options.network == "allowlist" else ()

    def allow(self, *rules: str) -> None:
        """Add rules to the allowlist, at once: "host", "*.host", "host:port", "private:host" or "packages".

        Raises:
            UsageError: a rule is none, or the network is another one; nothing has changed.
        """
        self._the_allowlist(rules).policy.allow(*rules)
        self._rules_changed()

    def disallow(self, *rules: str) -> None:
        """Take rules off the allowlist, at once; connections that no other rule allows end.

        Raises:
            UsageError: one is not on it, or the network is another one; nothing has changed.
        """
        self._the_allowlist(rules).policy.disallow(*rules)
        self._rules_changed()

    def network_decisions(self) -> tuple[NetworkDecision, ...]:
        """What the sandbox asked its allowlist for and what was decided: the last 1,000, the oldest first.

        Those before are summed up by host, at most 1,000 of them: `count` is over 1 there.

        Connections through `forward` and `expose_host` are among them, after their end; without an allowlist, too.
        """
        audits = (self._port_audit, None if self._allowlist is None else self._allowlist.audit)
        found = [*self._earlier, *(one for audit in audits if audit is not None for one in audit.decisions)]
        return tuple(sorted(found, key=lambda one: one.time))

    def on_network_decision(self, listener: Callable[[NetworkDecision], object]) -> Callable[[], None]:
        """Call listener with each decision, in the proxy's thread, so it must return at once; returns what ends that.

        It may be given at any time, also before the sandbox is started.
        """
        return self._decision_listeners.add(listener)

    def channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
    ) -> Channel:
        """See `Backend.channel`. It is for shells and workers, which run nothing before they are told to."""
        self._bring_in_list()
        with self._here.starting():
            opened = super().channel(argv, tty=tty, env=env, user=user)
        self._wait_for_proxy()
        return opened

    def _begin_call(self, call: WorkerCall) -> Exchange | None:
        is_late = call.is_program and self._allowlist is not None and not self._allowlist.was_tried
        return None if is_late else super()._begin_call(call)

    def _call_once(self, call: WorkerCall, begun: Exchange | None = None) -> CallResult:
        if call.is_program:
            self._wait_for_proxy()
            return super()._call_once(call, begun)
        with self._here.starting():  # our own, as of a file
            return super()._call_once(call, begun)

    def _worker_wait_s(self, call: WorkerCall) -> float:
        is_beginning = self._allowlist is not None and self._allowlist.is_beginning
        return WORKER_WAIT_S if is_beginning and not call.is_program and call.user is None else 0.0

    def _open_connector(self) -> Channel:
        with self._here.starting(connector=True):
            if self._options.network == "allowlist":  # first: Node and Java need them where nothing is reached, too
                self.write_bytes(NODE_PRELOAD_PATH, node_preload(), mode=0o644, user=self.connector_owner)
                if self._trusts_bundle:
                    from ohsandbox.runtime.docker import trust  # noqa: PLC0415 - as `_ALLOWLIST`

                    store = trust.java_trust_store_of(str(self._options.ca_bundle))
                    self.write_bytes(trust.JAVA_TRUST_PATH, store, mode=0o644, user=self.connector_owner)
            return super()._open_connector()

    def connect_proxy(self) -> socket.socket | None:
        """See `Backend.connect_proxy`."""
        return None if self._allowlist is None else self._allowlist.connect()

    def prepare_browser(self) -> None:
        """See `Backend.prepare_browser`."""
        if self._options.network != "allowlist":
            return
        from ohsandbox.runtime.docker.browser_policy import POLICY_PATHS, browser_policy  # noqa: PLC0415 - most have none

        authorities = b"" if self._credentials is None else self._credentials.broker.certificate
        if self._options.ca_bundle is not None:
            authorities += Path(self._options.ca_bundle).expanduser().read_bytes()
        for path in POLICY_PATHS:
            try:
                self.write_bytes(path, browser_policy(authorities), mode=0o644, user=self.connector_owner)
            except SandboxFileError as error:
                log.warning("Browsers in the sandbox will not reach what the list allows: %s", error)
                return

    def with_recovery(self, attempt: Callable[[], T], failing: type[SandboxUnavailable]) -> T:
        """See `Backend.with_recovery`; the connector, which is started again and again, restarts no sandbox."""
        return attempt() if self._here.is_connecting else super().with_recovery(attempt, failing)

    def _wait_for_proxy(self) -> None:
        """A program finds the proxy from its first moment on."""
        self._bring_in_list()
        if self._allowlist is not None and not self._here.is_starting:
            self._allowlist.wait()

    def _bring_in_list(self) -> None:
        """Before a program: have a new sandbox's first process be a worker of ours, behind which the connector comes.

        The engine takes twice as long for two first processes at a time, and who wants a file needs no connector.
        """
        if self._allowlist is not None and self._unchecked and not self._here.is_starting:
            self.snippet(b":")

    def _first_process_checked(self) -> None:
        """Lead the connections of a new sandbox to its list, beside what is done there next."""
        if self._allowlist is not None:
            self._allowlist.begin(self.tunnel)

    def _while_starting(self) -> None:
        """What is begun while the engine starts the container: the list's modules are imported."""
        if self._options.network == "allowlist":
            threading.Thread(target=import_module, args=(_ALLOWLIST,), daemon=True).start()
        if self._credentials is not None:
            self._credentials.prepare()
        if self.while_starting is not None:
            self.while_starting()

    # --- ports ---

    @property
    def _ports(self) -> Ports:
        ports = super()._ports
        ports.on_connection = self._record_connection
        return ports

    def _record_connection(self, one: PortConnection) -> None:
        """Keep it with the decisions of the list; in a log of its own where there is no list."""
        audit = self._port_audit if self._allowlist is None else self._allowlist.audit
        if audit is None:
            from ohsandbox.network.audit import AuditLog  # noqa: PLC0415 - as `_ALLOWLIST`

            audit = self._port_audit = AuditLog(self._options.conversation or getattr(self, "name", None) or None)
            audit.on_decision(self._decision_listeners.tell)
        reason = "forwarded port of the sandbox" if one.protocol == "forward" else "exposed port of this machine"
        reason += f", which did not answer: {one.error}" if one.error else ""
        decision = audit.record("127.0.0.1", one.port, one.protocol, allowed=True, reason=reason)
        audit.finish(decision, sent_bytes=one.sent_bytes, received_bytes=one.received_bytes)

    def _begin_allowlist(self, name: str) -> None:
        """Lead connections of the sandbox to the list, if it has one; name is the container's."""
        if self._options.network != "allowlist":
            self._allowlist = None
            return
        if self._allowlist is None:
            from ohsandbox.runtime.docker.allowlist import Allowlist  # noqa: PLC0415 - most sandboxes of programs have none

            name = self._options.conversation or name
            self._allowlist = Allowlist(
                self._options.allow, name=name, listener=self._decision_listeners.tell,
                interceptor=None if self._credentials_now is None else self._credentials_now.broker.interceptor,
            )  # fmt: skip
        if not self._unchecked:
            self._allowlist.begin(self.tunnel)

    def _end_allowlist(self) -> None:
        """Serve no process inside any more."""
        ended, self._allowlist = self._allowlist, None
        if ended is not None:
            from ohsandbox.network.audit import shortened  # noqa: PLC0415 - as `_ALLOWLIST`

            ended.close()
            self._earlier = shortened((*self._earlier, *ended.audit.decisions), KEPT_DECISIONS)
        if self._port_audit is not None:
            self._port_audit.close()

    # --- credentials ---

    def give_secrets(self, secrets: Secrets) -> None:
        """See `Backend.give_secrets`.

        Raises:
            UsageError: a secret is a credential, which stays outside.
        """
        if self._credentials is not None:
            self._credentials.check_outside(secrets.environment())
        super().give_secrets(secrets)

    def _use_credentials(self, flags: Sequence[str], *, ca_bundle: str | None, given: Mapping[str, str]) -> None:
        if flags:
            from ohsandbox.runtime.docker.trust import CredentialSetup  # noqa: PLC0415 - most sandboxes have none

            self._credentials = CredentialSetup(flags, ca_bundle=ca_bundle, given=given)
            self.outside_secrets = self._credentials.outside
            self.give_secrets(self.secrets)

    @property
    def _credentials_now(self) -> CredentialSetup | None:
        return self._credentials if self.adds_credentials else None

    @property
    def _credential_hosts(self) -> tuple[str, ...]:
        return () if self._credentials_now is None else self._credentials_now.hosts

    def _with_credential_hosts(self, allow: Sequence[str] | None) -> Sequence[str] | None:
        """The rules that were asked for with those that the credentials need; None where there are none."""
        if isinstance(allow, str):
            raise wrong("allow", allow, f"a list, such as [{allow!r}]")
        return [*(allow or ()), *self._credential_hosts] if self._credential_hosts else allow or None

    def _install_credentials(self, sandbox: Sandbox) -> None:
        """Have a container's programs trust what answers for the hosts of the credentials, where it has the list."""
        if self._credentials is not None and self._options.network == "allowlist":
            self._credentials.install(sandbox)

    def _proxy_variables(self) -> Mapping[str, str]:
        """The variables that lead processes to the list, and to the placeholders of credentials."""
        if self._options.network != "allowlist":
            return {}
        found = self._credentials_now
        java_options = ""
        if self._trusts_bundle or found is not None:
            from ohsandbox.runtime.docker import trust  # noqa: PLC0415 - as above

            java_options = trust.JAVA_TRUST_OPTION
        hosts = [service.name for service in self._options.services]
        variables = proxy_environment(self._options.env, java_options=java_options, hosts=hosts)
        return variables if found is None else {**variables, **found.variables()}

    @property
    def _trusts_bundle(self) -> bool:
        """The caller's CA bundle alone is trusted, and Java reads it in a form of its own."""
        return self._options.ca_bundle is not None and self._credentials_now is None

    @property
    def _proxy_variable_names(self) -> frozenset[str]:
        return frozenset(PROXY_VARIABLES) | frozenset(
            {} if self._credentials is None else self._credentials.variables()
        )

    # --- the list ---

    def _replace_rules(self, rules: Sequence[str]) -> None:
        policy = self._the_allowlist(()).policy
        policy.allow(*rules)  # first, so that what both lists have never lacks
        policy.disallow(*{*policy.rules} - {*rules})
        self._rules_changed()

    def _lead_processes(self, exec_env: Mapping[str, str]) -> None:
        """Have open shells lead their next command to the proxy, or nowhere; workers are started anew."""
        given = self._options.env
        change = {
            name: exec_env.get(name, given.get(name, ""))
            for name in self._proxy_variable_names
            if name not in given or name == JAVA_OPTIONS
        }
        with self._lock:
            for shell in self._shells.values():
                shell.set_env(change)
        self._pool.discard_all()

    def _rules_changed(self) -> None:
        self._options = self._options.model_copy(update={"allow": self.allowed})

    def _the_allowlist(self, rules: tuple[str, ...]) -> Allowlist:
        if self._allowlist is None:
            state = (
                "is not started" if self._options.network == "allowlist" else f"has network {self._options.network!r}"
            )
            shown = ", ".join(map(repr, rules[:3]))
            raise UsageError(
                f"The sandbox {state}, so its list cannot take {shown}. "
                "Remedy: start it, or set_network('allowlist', allow=[...])."
            )
        return self._allowlist
