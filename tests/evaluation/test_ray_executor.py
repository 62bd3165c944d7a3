"""A cluster of two nodes on this machine, which share its engine; one of them dies in the middle."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import certifi
import pytest

from ohsandbox import __version__
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents import OracleAgent
from ohsandbox.evaluation.formats import load_tasks
from ohsandbox.evaluation.progress import TrialEnded, TryFailed
from ohsandbox.evaluation.results import TrialResult
from ohsandbox.evaluation.runner import Run, RunPlan
from ohsandbox.evaluation.trial import TrialSpec
from ohsandbox.evaluation.trial_sandbox import TrialOptions
from ohsandbox.runtime.files.unpack import TransferLimits
from ohsandbox.runtime.sandboxes import list_sandboxes
from tests.evaluation.test_run_on_an_engine import write_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.evaluation.progress import RunEvent

if os.environ.get("CI") != "true":
    pytest.importorskip("ray")

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own sockets and processes
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and a second node, with Ray's own settings."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - slow

    node = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(**node)
    yield made
    made.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_loses_nothing_and_the_results_are_those_of_one_machine(cluster: Any, tmp_path: Path) -> None:
    from ohsandbox.evaluation.ray_executor import RayExecutor  # noqa: PLC0415 - as above

    for number in range(8):
        write_task(tmp_path / "tasks" / f"task-{number}", solution="sleep 1; echo 42 >/tmp/answer")
    tasks = load_tasks(tmp_path / "tasks").tasks
    told: list[RunEvent] = []
    killer: list[threading.Thread] = []

    def tell(event: RunEvent) -> None:
        told.append(event)
        if isinstance(event, TrialEnded) and not killer:  # others are in their middle
            second = cluster.list_all_nodes()[1]
            killer.append(threading.Thread(target=cluster.remove_node, args=(second, False)))
            killer[0].start()

    executor = RayExecutor(2, address=cluster.address)
    executor.check()
    assert executor.slots == 4
    run = Run(RunPlan(tasks, OracleAgent()), tmp_path / "out", executor=executor, tell=tell)
    results = run()
    killer[0].join()
    assert {key.task: one.outcome for key, one in results.items()} == {f"task-{n}": "pass" for n in range(8)}
    again = [event.key for event in told if isinstance(event, TryFailed)]
    assert again, "no trial was lost with the node"
    assert all(results[key].infrastructure_tries > 1 for key in again)
    for number in range(8):
        trial = tmp_path / "out" / "trials" / f"task-{number}" / "1"
        assert (trial / "verifier" / "reward.txt").read_text() == "1\n"
        assert (trial / "agent" / "oracle.txt").exists()
    local = Run(RunPlan(tasks[:1], OracleAgent()), tmp_path / "local")()
    [one] = local.values()
    same = {"task", "attempt", "outcome", "reward", "rewards", "agent", "task_digest", "image", "image_digest"}
    assert one.model_dump(include=same) == results["task-0", 1].model_dump(include=same)  # type: ignore[index] # a key
    # those of the dead node were removed by the start of the next run
    assert list_sandboxes(labels={"eval": run.record.run_id}) == []


@pytest.mark.slow
def test_nodes_that_come_and_go_beside_short_trials_hang_nothing(cluster: Any, tmp_path: Path) -> None:
    from ohsandbox.evaluation.ray_executor import RayExecutor  # noqa: PLC0415 - as above

    for number in range(24):
        write_task(tmp_path / "tasks" / f"task-{number}", solution="sleep 0.3; echo 42 >/tmp/answer")
    second = cluster.list_all_nodes()[1]
    ended = 0

    def tell(event: RunEvent) -> None:
        nonlocal ended
        if isinstance(event, TrialEnded):
            ended += 1
            if ended == 3:
                cluster.add_node(num_cpus=1, object_store_memory=100 * 1024**2)
            elif ended == 9:
                cluster.remove_node(second, allow_graceful=False)

    executor = RayExecutor(2, address=cluster.address)
    executor.check()
    tasks = load_tasks(tmp_path / "tasks").tasks
    results = Run(RunPlan(tasks, OracleAgent()), tmp_path / "out", executor=executor, tell=tell)()
    assert ended == 24
    assert [one.outcome for one in results.values()] == ["pass"] * 24


def test_agents_travel() -> None:
    from ohsandbox.cli.commands.eval import make_agent  # noqa: PLC0415 - slow
    from ohsandbox.cli.options.per_command import EvalOptions, RunOptions  # noqa: PLC0415 - as above

    agents = (
        make_agent(EvalOptions(), RunOptions(model="scripted:demo")),
        make_agent(EvalOptions(agent_command="true", agent_env=["TOKEN=abcdefgh"]), RunOptions()),
        make_agent(EvalOptions(agent="nop"), RunOptions()),
    )
    for agent in agents:
        assert pickle.loads(pickle.dumps(agent)).name == agent.name


def test_the_certificates_of_this_machine_come_along(tmp_path: Path) -> None:
    from ohsandbox.evaluation.ray_executor import NodeWorker, pack  # noqa: PLC0415 - as above

    bundle = tmp_path / "company.pem"
    bundle.write_text("# of the company\n" + Path(certifi.where()).read_text())
    write_task(tmp_path / "task", solution='grep -q "of the company" $SSL_CERT_FILE && echo 42 >/tmp/answer')
    [task] = load_tasks(tmp_path / "task").tasks
    spec = TrialSpec(task, "d", 1, OracleAgent(), TrialOptions(run_id="r", ca_bundle=str(bundle)))
    packed = pack(spec)
    bundle.unlink()  # another machine has none there
    worker = NodeWorker(1, None)
    try:
        assert worker.check()[1] is None
        assert TrialResult.model_validate_json(worker.run(spec, packed)[0]).outcome == "pass"
    finally:
        worker.close()


def packed_tree(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name == "." else tarfile.REGTYPE
            archive.addfile(member)
    return buffer.getvalue()


RESULT = TrialResult(task="t", attempt=1, outcome="pass", agent="oracle", task_digest="d").model_dump_json()


@pytest.mark.parametrize(
    ("text", "data", "fault"),
    [
        (RESULT, packed_tree(".", *(f"{number}/{'d/' * 60}f" for number in range(20))), "more than 1000 members"),
        (RESULT, gzip.compress(bytes(4 * 1024**2)), "no valid archive"),
        (RESULT, packed_tree(".", "a")[:-20], "not a whole gzipped archive"),
        (RESULT, b"no archive", "not a whole gzipped archive"),
        ("[" * 100_000, packed_tree(".", "a"), "recursion limit"),
    ],
    ids=["many directories", "zeros", "cut", "no gzip", "deep result"],
)
def test_what_a_node_returns_is_taken_within_limits_or_its_trial_is_lost(
    text: str, data: bytes, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ohsandbox.evaluation import ray_executor  # noqa: PLC0415 - slow

    monkeypatch.setattr(ray_executor, "_RESULT_LIMITS", TransferLimits(members=1000))
    write_task(tmp_path / "task")
    [task] = load_tasks(tmp_path / "task").tasks
    spec = TrialSpec(task, "d", 1, OracleAgent(), TrialOptions(run_id="r"))
    (tmp_path / "trial").mkdir()
    result = ray_executor._taken(text, data, spec, tmp_path / "trial")
    assert result.outcome == "infrastructure_error"
    assert result.fault is not None
    assert fault in result.fault.message
    assert [*(tmp_path / "trial").iterdir()] == []
    assert ray_executor._taken(RESULT, packed_tree(".", "a"), spec, tmp_path / "trial").outcome == "pass"
    assert [path.name for path in (tmp_path / "trial").iterdir()] == ["a"]


def test_a_task_that_no_node_would_take_is_refused_here(tmp_path: Path) -> None:
    from ohsandbox.evaluation import ray_executor  # noqa: PLC0415 - slow

    write_task(tmp_path / "task")
    [task] = load_tasks(tmp_path / "task").tasks
    [solution] = (tmp_path / "task").rglob("solve.sh")
    with solution.open("ab") as file:
        file.truncate(3 * 1024**3)  # a hole: packed it is small
    spec = TrialSpec(task, "d", 1, OracleAgent(), TrialOptions(run_id="r"))
    with pytest.raises(UsageError, match=r"over the limit of 2147483648. Put its files into an image."):
        ray_executor.pack(spec)


def in_a_thread(work: Callable[[], object]) -> Any:
    """What a remote call returns, of which only `future` is used."""
    return SimpleNamespace(future=lambda: ThreadPoolExecutor(1).submit(work))


class TwoNodes:
    """A cluster whose node `a` has no engine when it is asked first."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.answers: dict[str, list[str | None]] = {"a": ["no engine", None], "b": [None]}
        self.both_asked = threading.Barrier(2, timeout=30)
        self.killed: list[object] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True} for name in self.answers]

    def worker(self, name: str) -> Any:
        return SimpleNamespace(check=SimpleNamespace(remote=lambda: in_a_thread(lambda: self.answer(name))))

    def answer(self, name: str) -> tuple[str, str | None]:
        if len(self.answers) == 2:
            self.both_asked.wait()
        return __version__, self.answers[name].pop(0)

    def kill(self, actor: object) -> None:
        self.killed.append(actor)


def test_nodes_are_asked_at_once_and_a_refused_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray  # noqa: PLC0415 - slow

    from ohsandbox.evaluation import ray_executor  # noqa: PLC0415 - as above

    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    executor, cluster = ray_executor.RayExecutor(2), TwoNodes()
    monkeypatch.setattr(executor, "_ray", cluster)
    monkeypatch.setattr(executor, "_worker", cluster.worker)

    def look() -> int:
        executor._look()
        with executor._changed:
            assert executor._changed.wait_for(lambda: not executor._joining, 30)
        return executor.slots

    assert look() == 2
    assert len(cluster.killed) == 1
    assert look() == 2, "it was refused a moment ago"
    executor._refused = {name: one._replace(not_before=0.0) for name, one in executor._refused.items()}
    del cluster.answers["b"]
    assert look() == 2, "the other has left"
    assert executor._nodes.keys() == {"a"}


class TaskError(RuntimeError):
    """An error of our own code on a node, as Ray gives it."""

    cause: BaseException | None = None


class OneNode:
    """A cluster of one node, on which every trial runs until `end`; what is called after its end is recorded."""

    exceptions = SimpleNamespace(RayError=ConnectionError, RayTaskError=TaskError)

    def __init__(self) -> None:
        self.workers = 0
        self.runs: list[Future[Any]] = []
        self.answers = threading.Event()
        self.answers.set()
        self.is_shut_down = False
        self.calls_after: list[str] = []

    def worker(self, _: str) -> Any:
        self.workers += 1
        return SimpleNamespace(
            check=SimpleNamespace(remote=lambda: in_a_thread(self.answer)),
            run=SimpleNamespace(remote=lambda *_: SimpleNamespace(future=self.run)),
            close=SimpleNamespace(remote=lambda: None),
        )

    def run(self) -> Future[Any]:
        self.called("run")
        self.runs.append(Future())
        return self.runs[-1]

    def called(self, name: str) -> None:
        if self.is_shut_down:
            self.calls_after.append(name)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "a", "Alive": True}]

    def answer(self) -> tuple[str, str | None]:
        assert self.answers.wait(30)
        return __version__, None

    def put(self, data: object) -> object:
        self.called("put")
        return data

    def kill(self, _: object) -> None:
        self.called("kill")

    def wait(self, *_: object, **__: object) -> None:
        pass

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, OneNode]]:
    """An executor, and the cluster that it uses."""
    import ray  # noqa: PLC0415 - slow

    from ohsandbox.evaluation import ray_executor  # noqa: PLC0415 - as above

    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    executor, cluster = ray_executor.RayExecutor(2), OneNode()
    monkeypatch.setattr(executor, "_ray", cluster)
    monkeypatch.setattr(executor, "_worker", cluster.worker)
    yield executor, cluster
    cluster.answers.set()
    executor.close()


@pytest.fixture
def spec(tmp_path: Path) -> TrialSpec:
    write_task(tmp_path / "task")
    [task] = load_tasks(tmp_path / "task").tasks
    return TrialSpec(task, "d", 1, OracleAgent(), TrialOptions(run_id="r"))


def _joined(executor: Any) -> None:
    with executor._changed:
        assert executor._changed.wait_for(lambda: executor._nodes, 30)


def test_no_error_of_a_trial_ends_the_thread_that_takes_results(
    one_node: tuple[Any, OneNode], spec: TrialSpec, tmp_path: Path
) -> None:
    executor, cluster = one_node
    executor.check()
    cancelled = executor.submit(spec, tmp_path / "cancelled")
    assert cancelled.cancel()
    cluster.runs[0].set_result((RESULT, b""))
    own = executor.submit(spec, tmp_path / "own")
    cluster.runs[1].set_exception(TaskError())
    with pytest.raises(TaskError):
        own.result(30)
    lost = executor.submit(spec, tmp_path / "lost")
    cluster.runs[2].set_exception(ConnectionError(""))
    fault = lost.result(30).fault
    assert (fault.kind, fault.message) == ("ConnectionError", "ConnectionError")


def test_the_late_end_of_a_dead_worker_leaves_the_one_joined_since(
    one_node: tuple[Any, OneNode], spec: TrialSpec, tmp_path: Path
) -> None:
    executor, cluster = one_node
    executor.check()
    first, second = (executor.submit(spec, tmp_path / name) for name in ("first", "second"))
    cluster.runs[0].set_exception(ConnectionError("it died"))
    assert first.result(30).outcome == "infrastructure_error"
    executor._look()
    _joined(executor)
    assert cluster.workers == 2
    cluster.runs[1].set_exception(ConnectionError("it died"))
    assert second.result(30).outcome == "infrastructure_error"
    assert [node.running for node in executor._nodes.values()] == [0]


def test_a_trial_is_given_up_though_the_head_does_not_answer(
    one_node: tuple[Any, OneNode], spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ohsandbox.evaluation import ray_executor  # noqa: PLC0415 - slow

    def nodes() -> None:
        raise TimeoutError("the head does not answer")

    executor, cluster = one_node
    monkeypatch.setattr(ray_executor, "NODE_WAIT_S", 0)
    monkeypatch.setattr(cluster, "nodes", nodes)
    outcome = executor.submit(spec, tmp_path)
    with pytest.raises(TimeoutError):
        executor._look()
    assert outcome.result(0).fault.kind == "NodeLost"


def test_after_the_end_nothing_of_ray_is_called_which_would_start_a_cluster(
    one_node: tuple[Any, OneNode], spec: TrialSpec, tmp_path: Path
) -> None:
    executor, cluster = one_node
    cluster.answers.clear()
    executor._look()
    [join] = [thread for thread in threading.enumerate() if thread.name == "ohsandbox-ray_join"]
    waiting = executor.submit(spec, tmp_path)
    executor.close()
    cluster.answers.set()
    join.join(30)
    assert waiting.result(0).fault.kind == "NodeLost"
    assert executor.submit(spec, tmp_path).result(0).fault.kind == "NodeLost"
    assert not executor._nodes
    executor._join("a")
    assert cluster.workers == 1
    assert cluster.calls_after == []


def test_results_lie_behind_a_symlink_of_the_user(spec: TrialSpec, tmp_path: Path) -> None:
    from ohsandbox.evaluation import ray_executor  # noqa: PLC0415 - slow

    (tmp_path / "real" / "trial").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    taken = ray_executor._taken(RESULT, packed_tree(".", "a"), spec, tmp_path / "link" / "trial")
    assert taken.outcome == "pass"
    assert (tmp_path / "real" / "trial" / "a").exists()


def test_a_node_unpacks_tasks_where_its_temporary_directory_is_a_symlink(
    spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ohsandbox.evaluation.ray_executor import NodeWorker, pack  # noqa: PLC0415 - slow

    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    worker = NodeWorker(1, None)
    try:
        assert worker.check()[1] is None
        assert TrialResult.model_validate_json(worker.run(spec, pack(spec))[0]).task == spec.task.id
    finally:
        worker.close()
