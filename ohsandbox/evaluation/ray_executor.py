"""Trials on the nodes of a Ray cluster, each with a Docker engine of its own; needs the extra `ohsandbox[ray]`.

An actor on each node does what `LocalExecutor` does here. A task's files go to a node once, a trial's files come back
with its result. A node that dies fails its trials as infrastructure errors, which the run tries again elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import signal
import tarfile
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ohsandbox import __version__
from ohsandbox.errors import EngineUnavailable, OhsandboxError, ToolError, UsageError
from ohsandbox.evaluation.executor import LocalExecutor
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.results import Fault, TrialResult
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.files.unpack import BLOCK_BYTES, Meter, TransferLimits, unpack_gzipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.trial import TrialSpec

log = logging.getLogger(__name__)

_MAX_TASK_BYTES = 512 * 1024**2
"""Largest size of a task's packed files: they travel through the memory of Ray's object store."""
_RESULT_LIMITS = TransferLimits()
"""Limits of a trial's files, which are made here."""
_TASK_LIMITS = TransferLimits(file_bytes=TransferLimits().total_bytes)
"""Limits of a task's files, which a node makes anew: those of an upload, in which they go on to a sandbox."""
LOOK_EVERY_S = 5.0
"""Interval at which the executor looks for nodes that joined the cluster."""
JOIN_S = 120.0
"""Time that a node's worker gets to start in a process of its own, which imports ohsandbox: 2 s, and more
on a busy machine.
"""
_ASK_AGAIN_S = 60.0
"""Time after which a refused node is asked again: its engine may have been started since."""
NODE_WAIT_S = 120.0
"""Time for which a trial waits for a node when there is none: Ray notices a dead one within a minute."""
_LEFT = "the Ray cluster was left"
_LOOK_S = 0.1
"""Interval at which a thread that waits for a node looks whether the run is at its end."""
_THREADS_END_S = 2.0
CLOSE_S = 8.0
"""Time to close: removing a sandbox takes 0.2 s, and longer when others are removed at the same time. What a node has
not removed by then, its next worker removes; a node that hangs must not hold an interrupted run."""


_TOP = tarfile.TarInfo(".")
_TOP.type, _TOP.mode = tarfile.DIRTYPE, 0o700


class _PackedTask(NamedTuple):
    """A task's files, packed for another machine."""

    digest: str
    data: bytes
    """A gzipped archive with one directory `N` for each path."""
    paths: tuple[str, ...]
    """The paths on this machine, in the order of these directories."""


def pack(spec: TrialSpec) -> _PackedTask:
    """Pack every file and directory that the task names, and the certificates that its sandbox trusts.

    Raises:
        UsageError: they are over MAX_TASK_BYTES or the limits of a transfer.
    """
    named_paths = {str(path) for path in _paths(spec.task.model_dump(exclude={"path"}))}
    paths = tuple(sorted(named_paths | ({spec.options.ca_bundle} if spec.options.ca_bundle else set())))
    buffer, meter = io.BytesIO(), Meter(_TASK_LIMITS, f"Task {spec.task.id!r}", block_bytes=BLOCK_BYTES)

    def counted(member: tarfile.TarInfo) -> tarfile.TarInfo:
        meter.count(member.name, BLOCK_BYTES if member.isdir() else member.size)
        return member

    try:
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
            archive.addfile(_TOP)
            for number, path in enumerate(paths):
                archive.add(path, arcname=str(number), filter=counted)
    except ToolError as error:
        raise UsageError(f"{error.fact} Put its files into an image.") from None
    if buffer.tell() > _MAX_TASK_BYTES:
        raise UsageError(
            f"The files of task {spec.task.id!r} take {buffer.tell()} bytes, more than {_MAX_TASK_BYTES} can be sent "
            "to a node. Put them into an image."
        )
    return _PackedTask(spec.task_digest, buffer.getvalue(), paths)


def _paths(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)


def _relocated(value: Any, places: Mapping[str, Path]) -> Any:
    if isinstance(value, Path):
        return places.get(str(value), value)
    if isinstance(value, dict):
        return {name: _relocated(item, places) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_relocated(item, places) for item in value]
    return value


class NodeWorker:
    """Runs the trials of one node. It is a Ray actor: its methods run in `slots` threads."""

    def __init__(self, slots: int, image_budget_bytes: int | None) -> None:
        """Remove what a killed worker has left on this node."""
        self._directory = tempfile.TemporaryDirectory(prefix="ohsandbox-eval-")
        self._local = LocalExecutor(slots, Images(budget_bytes=image_budget_bytes), lambda _: None)
        self._agents: dict[str, EvaluatedAgent] = {}
        """One agent for each run, shared by all its trials on this node, so that they share its back-off."""
        self._lock = threading.Lock()
        with contextlib.suppress(OhsandboxError), open_inventory() as inventory:
            inventory.collect_garbage(keep_networks=True)

    def check(self) -> tuple[str, str | None]:
        """Return the version of ohsandbox here, and the reason why no trial can run here, or None."""
        try:
            self._local.check()
        except OhsandboxError as error:
            return __version__, str(error)
        return __version__, None

    def run(self, spec: TrialSpec, packed: _PackedTask) -> tuple[str, bytes]:
        """Run the trial; return its result as JSON, and its files as a gzipped archive."""
        root = Path(self._directory.name).resolve()  # unpacking follows no symlink
        with self._lock:
            places = self._unpacked(packed, root)
            agent = self._agents.setdefault(spec.options.run_id, spec.agent)
        task = type(spec.task).model_validate(_relocated(spec.task.model_dump(), places))
        if (bundle := spec.options.ca_bundle) is not None:
            spec = spec._replace(options=spec.options.model_copy(update={"ca_bundle": str(places[bundle])}))
        with tempfile.TemporaryDirectory(dir=root, prefix="trial-") as directory:
            result = self._local.submit(spec._replace(task=task, agent=agent), Path(directory)).result()
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
                archive.add(directory, arcname=".")
        return result.model_dump_json(), buffer.getvalue()

    @staticmethod
    def _unpacked(packed: _PackedTask, root: Path) -> dict[str, Path]:
        directory = root / hashlib.sha256(packed.digest.encode()).hexdigest()[:32]
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=root) as temporary:
                inner = Path(temporary, "files")
                unpack_gzipped(packed.data, inner, _TASK_LIMITS, keeps_links=True)
                inner.rename(directory)
        return {path: directory / str(number) for number, path in enumerate(packed.paths)}

    def close(self) -> None:
        """Stop the running trials, and remove the files."""
        self._local.close()
        self._directory.cleanup()


class _Node:
    """A node that trials can run on."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.running = 0


class _Refusal(NamedTuple):
    """Why no trial can run on a node, and when the node is asked again."""

    reason: str
    not_before: float


class _Trial(NamedTuple):
    """A trial that was submitted."""

    spec: TrialSpec
    directory: Path
    outcome: Future[TrialResult]
    not_after: float
    """Time until which it waits for a node."""


class RayExecutor:
    """Spreads trials over the nodes of a cluster, `slots_per_node` on each at the same time.

    Ray is never called with the lock held, and its own threads, which call back at the end of a trial, only put into a
    queue: a call into Ray may wait for them. Each node is joined in a thread of its own, since that may take JOIN_S.
    """

    def __init__(
        self, slots_per_node: int, *, address: str | None = None, image_budget_bytes: int | None = None
    ) -> None:
        """Join the cluster. address None is that of RAY_ADDRESS, else a cluster of this machine alone.

        Raises:
            UsageError: Ray is not installed, or no cluster answers at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray  # noqa: PLC0415 - an extra that may be missing, and slow
        except ImportError:
            raise UsageError("--engine ray needs Ray. Run `pip install 'ohsandbox[ray]'`.") from None
        self._ray: Any = ray
        self._per_node, self._image_budget_bytes = slots_per_node, image_budget_bytes
        self._nodes: dict[str, _Node] = {}
        self._joining: set[str] = set()
        self._refused: dict[str, _Refusal] = {}
        self._waiting: list[_Trial] = []
        """Trials for which there is no node."""
        self._changed = threading.Condition()
        """Holds the lock of the four above; notified when a node was joined or refused."""
        self._packed: dict[str, Any] = {}
        self._ended: SimpleQueue[tuple[_Trial, str, _Node, Future[Any]] | None] = SimpleQueue()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._is_watched = False
        with _signal_handlers_kept():
            try:
                ray.init(address, log_to_driver=False, include_dashboard=False, logging_level="error")
            except (ConnectionError, ValueError, RuntimeError) as error:
                cluster_address = address or os.environ.get("RAY_ADDRESS")
                raise UsageError(
                    f"No Ray cluster answers at {cluster_address}: {_first_line(error)} "
                    "Start one with `ray start --head`."
                ) from None

    @property
    def slots(self) -> int:
        """Return the slots of all nodes that are alive."""
        return max(1, len(self._nodes)) * self._per_node

    def check(self) -> None:
        """See `TrialExecutor.check`: at least one node must have an engine and our version."""
        self._look()
        if not self._is_watched:
            self._is_watched = True
            self._start(self._watch)
            self._start(self._take_results)
        with self._changed:
            self._changed.wait_for(lambda: not self._joining, JOIN_S + LOOK_EVERY_S)
            if not self._nodes:
                reasons = "; ".join(refusal.reason for refusal in self._refused.values()) or "it has no node"
                raise EngineUnavailable(f"No node of the Ray cluster can run trials: {reasons}")

    def _start(self, work: Callable[..., None], *arguments: str) -> None:
        thread = threading.Thread(target=work, args=arguments, name=f"ohsandbox-ray{work.__name__}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, spec: TrialSpec, directory: Path) -> Future[TrialResult]:
        """See `TrialExecutor.submit`."""
        trial = _Trial(spec, directory, Future(), time.monotonic() + NODE_WAIT_S)
        self._place(trial)
        return trial.outcome

    def _place(self, trial: _Trial) -> None:
        """Start the trial on the node that runs the fewest; without one, it waits."""
        with self._changed:
            is_closed = self._closed.is_set()
            if not self._nodes and not is_closed:
                self._waiting.append(trial)
                return
            if not is_closed:
                node_id, node = min(self._nodes.items(), key=lambda item: item[1].running)
                node.running += 1
        if is_closed:
            _give_up([trial], _LEFT)
            return
        try:
            if (packed := self._packed.get(trial.spec.task_digest)) is None:
                packed = self._packed[trial.spec.task_digest] = self._ray.put(pack(trial.spec))
            remote_outcome = node.actor.run.remote(trial.spec, packed).future()
        except BaseException as error:  # noqa: BLE001 - told to the run
            with self._changed:
                node.running -= 1
            trial.outcome.set_exception(error)
            return
        remote_outcome.add_done_callback(lambda ended: self._ended.put((trial, node_id, node, ended)))

    def _take_results(self) -> None:
        while (ended := self._ended.get()) is not None:
            outcome = ended[0].outcome
            try:
                outcome.set_result(self._finish(*ended))
            except BaseException as error:  # noqa: BLE001 - told to the run; this thread serves all trials
                if not outcome.done():
                    outcome.set_exception(error)

    def _finish(self, trial: _Trial, node_id: str, node: _Node, remote_outcome: Future[Any]) -> TrialResult:
        """Return the result of a trial that has ended; node_id may be that of a worker that was joined since."""
        with self._changed:
            node.running -= 1
        try:
            text, data = remote_outcome.result()
        except self._ray.exceptions.RayTaskError as error:  # our own code failed there
            raise error.cause or error from None
        except self._ray.exceptions.RayError as error:
            with self._changed:
                if self._nodes.get(node_id) is node:
                    del self._nodes[node_id]
            return _lost(trial.spec, type(error).__name__, _first_line(error))
        return _taken(text, data, trial.spec, trial.directory)

    def _watch(self) -> None:
        """Look for changes of the cluster until the end."""
        while not self._closed.wait(LOOK_EVERY_S):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - of Ray, which may not reach its head just now
                log.warning("The Ray cluster cannot be asked for its nodes: %s", error)

    def _look(self) -> None:
        """Give up trials that have waited too long for a node, and find nodes that joined or left the cluster."""
        now = time.monotonic()
        with self._changed:
            given_up = [trial for trial in self._waiting if now >= trial.not_after]
            self._waiting = [trial for trial in self._waiting if now < trial.not_after]
        _give_up(given_up, "no node of the Ray cluster is alive")
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        with self._changed:
            for node_id in self._nodes.keys() - alive:
                del self._nodes[node_id]
            refused = {node_id for node_id, refusal in self._refused.items() if now < refusal.not_before}
            joining = alive - self._nodes.keys() - self._joining - refused
            self._joining |= joining
        for node_id in joining:
            self._start(self._join, node_id)

    def _join(self, node_id: str) -> None:
        """Start a worker on the node, and accept it if the worker reports that trials can run.

        Once this is closed nothing of Ray is called: it would start a cluster of its own.
        """
        if self._closed.is_set():
            return
        actor = None
        try:
            actor = self._worker(node_id)
            answer = actor.check.remote().future()
            deadline = time.monotonic() + JOIN_S
            while not (answer.done() or self._closed.wait(_LOOK_S)) and time.monotonic() < deadline:
                pass  # `ray.get` would end this process if Ray were shut down meanwhile
            if not answer.done():
                raise TimeoutError(f"its worker did not start within {JOIN_S:g} s")  # noqa: TRY301 - a reason as others
            version, fault = answer.result()
        except Exception as error:  # noqa: BLE001 - of Ray, for a node that it still takes for alive
            fault, version = _first_line(error), __version__
        if version != __version__:
            fault = f"it has ohsandbox {version}, and this machine {__version__}"
        if fault is not None and actor is not None and not self._closed.is_set():
            self._ray.kill(actor)
        with self._changed:
            self._joining.discard(node_id)
            if self._closed.is_set():
                return
            if fault is None:
                self._refused.pop(node_id, None)
                self._nodes[node_id] = _Node(actor)
            else:
                self._refused[node_id] = _Refusal(f"node {node_id[:12]}: {fault}", time.monotonic() + _ASK_AGAIN_S)
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for trial in waiting:
            self._place(trial)

    def _worker(self, node_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra that may be missing, and slow

        return (
            self._ray.remote(NodeWorker)
            .options(
                num_cpus=0,  # slots are counted here: sandboxes have their own limits, and no part of Ray's processors
                max_concurrency=self._per_node + 1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(self._per_node, self._image_budget_bytes)
        )

    def close(self) -> None:
        """See `TrialExecutor.close`; also leave the cluster."""
        with self._changed:
            self._closed.set()
            actors = [node.actor for node in self._nodes.values()]
            self._nodes.clear()
            waiting, self._waiting = self._waiting, []
        _give_up(waiting, _LEFT)
        closing = [actor.close.remote() for actor in actors]
        self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S) if closing else None
        self._ended.put(None)
        until = time.monotonic() + _THREADS_END_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._ray.shutdown()  # a call into Ray after it ends the process


def _taken(text: str, data: bytes, spec: TrialSpec, directory: Path) -> TrialResult:
    """Return the result that a node sends, with its files in the directory; a fault of the node where they are none."""
    try:
        result = TrialResult.model_validate_json(text)
        unpack_gzipped(data, directory.resolve(), _RESULT_LIMITS)  # the user may have named it by a symlink
    except (ToolError, ValidationError) as error:
        return _lost(spec, type(error).__name__, f"what it returned is not taken: {' '.join(str(error).split())[:300]}")
    return result


def _give_up(trials: list[_Trial], message: str) -> None:
    for trial in trials:
        trial.outcome.set_result(_lost(trial.spec, "NodeLost", message))


def _first_line(error: BaseException) -> str:
    return next(filter(None, str(error).splitlines()), type(error).__name__)


def _lost(spec: TrialSpec, kind: str, message: str) -> TrialResult:
    return TrialResult(
        task=spec.task.id, attempt=spec.attempt, outcome="infrastructure_error", agent=spec.agent.name,
        task_digest=spec.task_digest, fault=Fault(phase="node", kind=kind, message=message),
    )  # fmt: skip


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray sets its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
