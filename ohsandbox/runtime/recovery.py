"""`RecoveringBackend`: a backend that is restarted after a failure, and runs internal shell code through workers."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ohsandbox.errors import (
    EngineUnavailable,
    ImageUnavailable,
    OhsandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxRefused,
    SandboxUnavailable,
)
from ohsandbox.runtime.backend import Backend
from ohsandbox.runtime.channel import FIRST_SIGNAL_CODE
from ohsandbox.runtime.process.cancellation import ProcessTree
from ohsandbox.runtime.process.worker import (
    UNCOUNTED,
    CallCancelled,
    CallInterrupted,
    CallResult,
    CallTimedOut,
    Exchange,
    WorkerCall,
    WorkerPool,
    WorkerUnusable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.process.worker import Worker
    from ohsandbox.secrets import Secrets

T = TypeVar("T")

_COUNT = re.compile(rb"\b\d{1,18}\b")
MIB = 1024 * 1024
_UNLIMITED_BYTES = 2**60

SNIPPET_TIMEOUT_S = 30.0
"""Time limit of the runtime's internal calls, so that even a frozen sandbox gives an error in bounded time."""

_STARVED_S = 1.0
"""Seconds for which a sandbox at its limit of processes or memory may fail to start one before it is restarted. A
restart takes 0.3 s and ends all processes, and the peak of a parallel build may pass meanwhile."""
_STARVED_PAUSE_S = 0.1
KILL_PATIENCE_S = 10.0
"""Seconds for killing the processes of a call one by one, from a shell in the sandbox, before the sandbox is restarted.
It takes 10 ms, but up to 160 s if a fork bomb leaves no room for that shell."""

REAP_S = 5.0
"""Seconds for an engine to report a process's exit code: milliseconds after its streams have ended, on a busy engine
a second."""
LOSS_SETTLES_S = 0.3
"""Seconds for which `_loss` is polled after a failure that a loss may have caused."""


class RecoveringBackend(Backend):
    """A sandbox that is restarted once after a failure, by the first call that notices it."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = WorkerPool(lambda argv, user: self.channel(argv, env=self.environment(), user=user))
        self._running: dict[Worker, Exchange] = {}
        """Running calls, by worker."""
        self._ended: set[Worker] = set()
        """Workers whose calls `close` has ended."""
        self._lock = threading.RLock()
        self._notices: list[str] = []
        self._oom_kills = 0
        self._generation = 0
        self._served = False
        """Whether a process has been started in the sandbox, so that its image can run one."""
        self._damage = ""
        """The error message after a restart that did not help; "" if there was none."""

    def give_secrets(self, secrets: Secrets) -> None:
        """Give these variables to new shells and `run` from now on, and mask them in the output of shells.

        Each process gets them when it starts; they are never stored in an image, label, argument or container. The
        results of `run` and `read_bytes` are not masked, since they may be written back.
        """
        secrets = secrets.hiding(self.outside_secrets)
        changed = secrets.environment() != self.secrets.environment()
        self.secrets = secrets
        if changed:
            self._pool.discard_all()

    # --- recovery of a failed sandbox ------------------------------------------------------------------

    def channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
    ) -> Channel:
        """Open a channel, after recovering a sandbox that is dead or cannot start a process.

        Raises:
            SandboxUnavailable: the sandbox cannot be recovered, or starts no process even then; its files are kept.
        """
        with self._starting():
            return self.with_recovery(partial(self.open_channel, argv, tty=tty, env=env, user=user), SandboxUnavailable)

    def _starting(self) -> AbstractContextManager[None]:
        """Context in which `channel` starts a shell or a worker, which run nothing until they are told to."""
        return contextlib.nullcontext()

    def with_recovery(self, attempt: Callable[[], T], failing: type[SandboxUnavailable]) -> T:
        """Call attempt(); retry while the sandbox may only be short of processes, and again after recovering it.

        Raises:
            SandboxUnavailable: the sandbox cannot be recovered, or `failing` is raised even after that.
        """
        generation, until = self._generation, time.monotonic() + _STARVED_S
        recovered, restarted = False, False
        while True:
            try:
                result = attempt()
            except SandboxRefused:
                raise
            except failing as failure:
                # runc may fail at the first process of a container that was just started
                patient = time.monotonic() < until and (recovered or (self._served and self._loss() is None))
                if not patient:
                    with self._lock:  # another thread may be recovering it, since after this attempt began
                        is_stale = recovered and generation != self._generation
                        generation = self._generation if recovered else generation
                    if is_stale:
                        until = time.monotonic() + _STARVED_S
                        continue
                    if recovered and (restarted or self._loss() is not None):
                        raise self._unrecovered_error(failure) from failure
                    # recovered but only joined: after `docker restart`, engine 20.10 may have unmounted the files, and
                    # each exec fails until the container is killed and started
                    restarted = self.recover_from(failure, generation)
                    recovered, until, generation = True, time.monotonic() + _STARVED_S, self._generation
                    continue
            else:
                if not recovered:
                    self._served, self._damage = True, ""
                return result
            time.sleep(_STARVED_PAUSE_S)

    def recover_from(self, failure: SandboxUnavailable, generation: int) -> bool:
        """Recover a sandbox that failed in this generation: it is dead, or cannot start a process.

        Returns:
            Whether it was restarted here; a sandbox that another party has started again is only joined.

        Raises:
            SandboxUnavailable: it cannot be restarted, or an earlier restart did not help; or failure itself, if the
                sandbox has never started a process, so that its image is at fault.
        """
        with self._lock:
            if generation != self._generation:  # another thread has recovered it meanwhile
                return False
            alive = self._loss() is None
            if alive and self._damage:
                raise SandboxUnavailable(self._damage) from failure
            at_fault = alive or isinstance(failure, ImageUnavailable)
            if at_fault and not self._served and not self._generation:  # a recovered one has started a process before
                raise failure
            self._notices.append(self.restart(failure))
            return alive

    def _unrecovered_error(self, failure: SandboxUnavailable) -> SandboxUnavailable:
        """Return the error after a restart that did not help: its current `_loss`, or failure with a remedy."""
        if isinstance(loss := self._loss(), SandboxGone | SandboxPaused | EngineUnavailable):
            return loss
        self._damage = (
            f"The sandbox {self.id[:12]} was restarted and still cannot start a process: {failure.fact} Its files are "
            "kept, but what a process needs was removed or replaced in them. Go back with `ohsandbox undo`, or make a "
            "new sandbox."
        )
        return SandboxUnavailable(self._damage)

    @property
    def generation(self) -> int:
        """Number of restarts of the sandbox; processes of an earlier generation have ended."""
        return self._generation

    def recover(self, failure: SandboxUnavailable, generation: int | None = None) -> str:
        """Recover the sandbox after a failure; return what happened, as a sentence.

        generation is the one in which the failed process was started; None is the current one.

        Raises:
            SandboxUnavailable: it cannot be recovered; or failure itself, if the sandbox is usable.
        """
        with self._lock:
            if generation is not None and generation != self.generation:  # another thread has recovered it
                return "The sandbox was restarted: files are kept; processes, variables and /run are lost."
            if self._loss_soon() is None:
                raise failure
            notice = self._revive()
            self._forget()
            return notice

    def restart(self, failure: SandboxUnavailable) -> str:
        """Restart a sandbox in which no shell starts; return what was lost, as a sentence."""
        with self._lock:
            notice = self._restart() if self._loss() is None else self.recover(failure)
            self._forget()
            return notice

    def _forget(self) -> None:
        """Discard the state of the sandbox before a restart: its workers, and the counters of its cgroup."""
        self._pool.discard_all()
        self._oom_kills = 0
        self._generation += 1

    def check_alive(self) -> None:
        """Raise SandboxUnavailable if the sandbox has ended; its processes may have ended before it is reported."""
        if (loss := self._loss_soon()) is not None:
            raise loss

    def _loss_soon(self) -> SandboxUnavailable | None:
        """Return `_loss`, polled for LOSS_SETTLES_S; a backend that can be certain sooner overrides this."""
        deadline = time.monotonic() + LOSS_SETTLES_S
        while (loss := self._loss()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return loss

    def take_notices(self) -> str | None:
        """Return and clear the notices about the sandbox, for the next result; None if there are none."""
        notices, self._notices = self._notices, []
        return "; ".join(notices) or None

    def _notices_after(self, known: Sequence[str], count: int) -> str | None:
        """Return, and keep, the notices that came since `_notices` was known with count items; None if none came."""
        fresh = [*known[count:], *(self._notices if self._notices is not known else ())]
        return "; ".join(fresh) or None

    def ran_out_of_memory(self) -> str:
        """Return how much memory was too little, if the OOM killer has struck since the last call; else ""."""
        if not self.private_processes:
            return ""
        with contextlib.suppress(SandboxUnavailable), self._lock:
            count, limit_bytes, *_ = [int(word) for word in _COUNT.findall(self.snippet(b"ohs_oom").stdout)] + [0, 0]
            before, self._oom_kills = self._oom_kills, count
            limit = f"{limit_bytes / MIB:,.0f} MiB" if 0 < limit_bytes < _UNLIMITED_BYTES else "what this machine has"
            return limit if count > before else ""
        return ""

    # --- calls --------------------------------------------------------------------------------

    def snippet(
        self,
        body: bytes,
        *,
        user: str | int | None = None,
        limit_bytes: int = 65536,
        timeout_s: float = SNIPPET_TIMEOUT_S,
        recovers: bool = True,
    ) -> CallResult:
        """Run worker shell code for the runtime itself; recovers: restart a sandbox in which it cannot run.

        Raises:
            SandboxUnavailable: the sandbox did not answer.
        """
        try:
            call = WorkerCall(body, user=user, limit_bytes=limit_bytes, timeout_s=timeout_s)
            return self._call(call) if recovers else self._call_once(call)
        except CallTimedOut:
            raise self._loss() or SandboxUnavailable(
                f"The sandbox {self.id} did not answer in {timeout_s:g} s; see `ohsandbox ps`"
            ) from None

    def _begin_call(self, call: WorkerCall) -> Exchange | None:
        """Send a call from an event loop's thread, for `_call`; return None, and do not send it, if it might block."""
        if (exchange := self._pool.begin(call._replace(user=self._worker_user(call.user)))) is not None:
            self._running[exchange.worker] = exchange
        return exchange

    def _call(self, call: WorkerCall, begun: Exchange | None = None) -> CallResult:
        """Run a call to its end; begun is a call that has been sent already."""
        first = [begun]
        outcome = self.with_recovery(lambda: self._call_once(call, first.pop() if first else None), WorkerUnusable)
        return self._call_once(call._replace(to_end=True)) if outcome.status == UNCOUNTED else outcome

    def _call_once(self, call: WorkerCall, begun: Exchange | None = None) -> CallResult:
        call = call._replace(user=self._worker_user(call.user))
        exchange = begun or Exchange(self._pool.acquire(call.user, wait_s=self._worker_wait_s(call)), call)
        worker = exchange.worker
        if call.mark:
            self._running[worker] = exchange
        try:
            if begun is None:
                worker.send(exchange)
            outcome = worker.finish(exchange)
        except (CallTimedOut, CallCancelled):
            self._kill_call(exchange)
            raise
        except CallInterrupted as died:
            if loss := self._loss():
                raise loss from None
            self._check_not_ended(worker)
            if (code := self._exit_code(exchange)) < FIRST_SIGNAL_CODE or worker.read_nothing:  # else it was killed
                raise self._loss_soon() or worker.not_served(code, died.outcome) from None
            return died.outcome._replace(status=str(code))
        except SandboxUnavailable as failure:
            worker.retired = True
            raise self._loss() or failure from None
        except BaseException:
            worker.retired = True
            self._kill_call(exchange)
            raise
        else:
            self._check_not_ended(worker)
            return outcome
        finally:
            self._running.pop(worker, None)
            self._ended.discard(worker)
            self._pool.give_back(worker, call.user)

    def _exit_code(self, exchange: Exchange) -> int:
        """Return the exit code of a worker whose streams have ended.

        If it is still running, its connection was lost: it is killed, with its call.
        """
        try:
            return exchange.worker.channel.wait(REAP_S)
        except TimeoutError:
            exchange.worker.retired = True
            self._kill_call(exchange)
            raise SandboxUnavailable(
                "The connection to a process in the sandbox was lost, so it was ended, and what it did is not "
                "known. Check the files that it may have changed."
            ) from None

    def _check_not_ended(self, worker: Worker) -> None:
        if worker in self._ended:
            raise SandboxUnavailable(f"The sandbox {self.id} was closed while the process ran.") from None

    def _end_calls(self) -> None:
        """End the processes of running calls; each call then raises an error in its own thread."""
        for worker, exchange in self._running.copy().items():
            self._ended.add(worker)
            self._kill_call(exchange)

    def _worker_user(self, user: str | int | None) -> str | int | None:
        """Return the name under which the pool keeps a user's workers; None is the sandbox's own user."""
        return user

    def _worker_wait_s(self, call: WorkerCall) -> float:  # noqa: ARG002 - for backends
        """Return for how long a call waits for a busy worker before it starts another; its user is `_worker_user`'s."""
        return 0.0

    def _kill_call(self, exchange: Exchange) -> None:
        """Kill a call's processes and its worker by SIGKILL; a call without a mark, an internal one, has none."""
        if not exchange.call.mark:
            return
        generation = self._generation
        killer = threading.Thread(target=self._kill_tree, args=(exchange,), name="ohsandbox-kill", daemon=True)
        killer.start()
        killer.join(KILL_PATIENCE_S)
        if killer.is_alive():
            with contextlib.suppress(OhsandboxError):
                failure = SandboxUnavailable(f"The processes of a call are not killed after {KILL_PATIENCE_S:g} s")
                self.recover_from(failure, generation)

    def _kill_tree(self, exchange: Exchange) -> None:
        call = exchange.call
        ask, pid = partial(self.snippet, user=call.user), exchange.worker.channel.pid
        with contextlib.suppress(OhsandboxError):
            ProcessTree(ask, pid, call.mark, began=exchange.began, limit_kib=call.limit_kib).kill()
            ask(b"kill -KILL %d" % pid)
