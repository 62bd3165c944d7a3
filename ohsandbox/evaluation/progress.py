"""Events that a run reports while it goes on: each beginning and end, and the progress of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.evaluation.results import Fault, TrialKey, TrialResult
    from ohsandbox.runtime.results import PullProgress


class RunBegan(NamedTuple):
    """The first event of a run."""

    trials: int
    """The number of trials in the whole plan."""
    finished: Mapping[TrialKey, TrialResult]
    """The number of trials that an earlier run of the same plan has finished."""


class ImageAbsent(NamedTuple):
    """An image of tasks is not here and its registry does not have it; reported before the first trial."""

    image: str
    reason: str
    """The engine's message."""


class TrialBegan(NamedTuple):
    """A trial begins, or is tried again."""

    key: TrialKey
    infrastructure_tries: int
    """The number of the try, from 1."""


class PhaseBegan(NamedTuple):
    """A trial has entered a phase, named as in `Phase.name`."""

    key: TrialKey
    phase: str


class TryFailed(NamedTuple):
    """A try of a trial failed through the infrastructure; the trial is tried again."""

    key: TrialKey
    fault: Fault | None


class TrialEnded(NamedTuple):
    """A trial has its result, which is stored."""

    result: TrialResult


class TrialCancelled(NamedTuple):
    """A trial was cancelled without a result; the next run begins it again."""

    key: TrialKey


class RateLimited(NamedTuple):
    """The provider limits the rate of requests: all trials that use this model wait."""

    model: str
    wait_s: float


if TYPE_CHECKING:
    RunEvent = (
        RunBegan | ImageAbsent | TrialBegan | PhaseBegan | TryFailed | TrialEnded | TrialCancelled | RateLimited
        | PullProgress
    )  # fmt: skip
    Tell = Callable[[RunEvent], None]
    """Receives events; called from several threads, but one at a time. An exception raised in a trial's
    thread ends the run.
    """
