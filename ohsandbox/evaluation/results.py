"""Files of an evaluation: the run's record, and a directory for each trial, whose `result.json` is written last."""

from __future__ import annotations

import hashlib
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ohsandbox import __version__
from ohsandbox.errors import UsageError
from ohsandbox.private_files import read_regular, write_atomically

CONVERSATION_NAME = "conversation"
"""The directory of our agent's conversation inside the agent's directory, as `ohsandbox conversations
--dir` reads it.
"""
SCHEMA = 1
Outcome = Literal["pass", "fail", "agent_error", "model_error", "verifier_error", "infrastructure_error", "invalid"]
"""pass: the reward is 1 or more. fail: it is less. agent_error: less, and the agent was stopped (a limit, stuck, its
own error). model_error: the model or its provider failed. verifier_error: no readable verdict. infrastructure_error:
the engine, the image or this machine failed on every try. invalid: the task cannot be carried out as it is written."""
COUNTED: frozenset[Outcome] = frozenset({"pass", "fail", "agent_error", "verifier_error"})
"""The outcomes that say something about the agent; the pass rate is the share of them that passed."""
FAILED: frozenset[Outcome] = COUNTED - {"pass"}
INCONCLUSIVE: frozenset[Outcome] = frozenset({"infrastructure_error", "model_error"})
"""Outcomes that say nothing about the agent: the next run of the same directory repeats these trials."""
RUN_NAME = "run.json"
_RESULT_NAME = "result.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Record(BaseModel):
    """Base class of a result's parts; unknown fields of a later version are kept."""

    model_config = ConfigDict(extra="allow")


class Phase(Record):
    """One phase of a trial."""

    name: str
    started_at: datetime
    seconds: float
    network: str | None = None
    """The network of the sandbox in which it took place: "none", "allowlist" or "open"."""


class Fault(Record):
    """Why a trial has no verdict, or why its agent did not finish."""

    phase: str
    kind: str
    """The name of the error's class, or of the limit."""
    message: str


class Resources(Record):
    """What the sandbox used; values that the engine does not report are None."""

    peak_memory_bytes: int | None = None
    """The highest memory use at any moment, including files that the kernel keeps in memory."""
    cpu_s: float | None = None
    oom_kills: int | None = None
    """The number of processes killed because memory ran out, before the verifier."""
    verifier_oom_kills: int | None = None
    throttled_s: float | None = None
    """Time that processes waited because the task's share of processors was used up."""
    no_route: int | None = None
    """Connections and packets sent, during set-up and by the agent, to addresses without a route; without a network,
    all of them.
    """


class Load(Record):
    """The processors of a trial, and the use of them by others."""

    cpus: float
    processors: list[int] = []
    """The processors that its processes were pinned to; empty where the engine is not on this machine."""
    time_factor: float = 1.0
    """The factor that time limits were multiplied by: how many trials could compete for each processor."""
    others: float | None = None
    """The share of these processors' time that went to others, in the worst phase."""
    pressure: float | None = None
    """The share of the time in which some process of the machine waited for a processor, in the worst phase."""


class ServiceResult(Record):
    """A service that ran beside the sandbox, at the end of the trial; its output is in `services/NAME.log`."""

    name: str
    status: str
    """The engine's word for its status: "running", "exited", "dead"."""
    exit_code: int | None = None
    """The exit code of a service that has ended."""
    oom_killed: bool = False
    cpu_s: float | None = None
    """Processor seconds; None, like memory_bytes, where it does not run any more."""
    memory_bytes: int | None = None
    """Memory use, without files that the kernel can drop from memory."""


class StepResult(Record):
    """The verdict of one step."""

    name: str
    rewards: dict[str, float] = {}
    fault: Fault | None = None


class TrialResult(Record):
    """The result of one attempt at one task."""

    schema_version: int = SCHEMA
    task: str
    attempt: int
    """The number of the attempt, from 1."""
    is_repeat: bool = False
    """Whether it was run only because the task had failed; it counts in no rate then."""
    outcome: Outcome
    reward: float | None = None
    rewards: dict[str, float] = {}
    steps: list[StepResult] = []
    fault: Fault | None = None
    agent: str
    model: str | None = None
    task_digest: str
    image: str | None = None
    image_digest: str | None = None
    """The repository's digest, or the image's id where it was built here."""
    started_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    phases: list[Phase] = []
    resources: Resources = Resources()
    services: list[ServiceResult] = []
    """The services beside the sandbox, for a task that is a Compose project."""
    load: Load | None = None
    usage: dict[str, int] = {}
    """Token counts, by the field names of `Usage`."""
    cost_usd: float | None = None
    rate_limit_wait_s: float = 0.0
    """The part of the agent's phases spent waiting because the provider limits the rate of requests."""
    infrastructure_tries: int = 1
    """How often the trial was started: every try but the last failed through the infrastructure."""
    load_average: float | None = None
    """The load average of this machine over one minute, at the end of the trial."""
    notes: list[str] = []


class TrialKey(NamedTuple):
    """Identifies a trial of a run."""

    task: str
    attempt: int


class ResultsDirectory:
    """The results directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def trial(self, key: TrialKey) -> Path:
        """Return the directory of a trial: `trials/TASK/ATTEMPT`."""
        return self.path / "trials" / file_name(key.task) / str(key.attempt)

    def begin(self, key: TrialKey) -> Path:
        """Create the empty directory of a trial; files of an unfinished one are removed."""
        directory = self.trial(key)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return directory

    def finish(self, result: TrialResult) -> None:
        """Write the trial's result, which marks it as finished."""
        text = result.model_dump_json(indent=2, exclude_none=True) + "\n"
        write_atomically(self.trial(TrialKey(result.task, result.attempt)) / _RESULT_NAME, text.encode(), durable=False)

    def finished(self) -> dict[TrialKey, TrialResult]:
        """Read every result; a trial without one is not finished.

        Raises:
            UsageError: a result is not what this version writes.
        """
        results = {}
        for path in sorted(self.path.glob(f"trials/*/*/{_RESULT_NAME}")):
            try:
                result = TrialResult.model_validate_json(read_regular(path))
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}. Remove it, and run again.") from None
            except ValidationError as error:
                first = error.errors()[0]
                location = ".".join(map(str, first["loc"]))
                raise UsageError(
                    f"{path} is not a result ({location}: {first['msg']}). Remove its directory, and run again."
                ) from None
            results[TrialKey(result.task, result.attempt)] = result
        return results

    def write_json(self, name: str, text: str) -> None:
        """Write a file of the whole run."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, text.encode(), durable=False)


def file_name(task: str) -> str:
    """Return a name for a task's directory: its id, with a hash where characters had to go."""
    plain = _UNSAFE.sub("-", task).strip(".-")[:80]
    return plain if plain == task else f"{plain or 'task'}-{hashlib.sha256(task.encode()).hexdigest()[:8]}"


class RunRecord(Record):
    """The identity of a run; written at its start, and compared when the run is continued."""

    run_id: str
    ohsandbox: str = __version__
    agent: str
    agent_settings: dict[str, Any] = {}
    attempts: int
    timeout_multiplier: float = 1.0
    shard: str | None = None
    separate_verifier: bool = False
    tasks: dict[str, str]
    """The digest of each task, by its id."""
    machines: list[dict[str, str]] = []
    """The machines where it ran: Python, processors, engine; more than one if it was continued elsewhere."""


def read_record(path: Path) -> RunRecord:
    """Read the record of the run in a directory.

    Raises:
        UsageError: there is none.
    """
    try:
        return RunRecord.model_validate_json(read_regular(path / RUN_NAME, follow=True))
    except OSError as error:
        raise UsageError(
            f"{path} holds no results: {RUN_NAME}: {error.strerror}. Name a directory of `ohsandbox eval`."
        ) from None
    except ValidationError:
        raise UsageError(f"{path / RUN_NAME} is not the record of a run. Name another directory.") from None
