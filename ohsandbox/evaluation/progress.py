"""What a run tells while it goes on: an event for each beginning and end, and how far images are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.evaluation.results import Fault, TrialKey, TrialResult
    from ohsandbox.runtime.results import PullProgress


class RunBegan(NamedTuple):
    """The first event of a run."""

    trials: int
    """Of the whole plan."""
    finished: Mapping[TrialKey, TrialResult]
    """Those that an earlier run of the same plan has finished."""


class ImageAbsent(NamedTuple):
    """An image of tasks is not here, and its registry does not give it: told before the first trial."""

    image: str
    reason: str
    """The engine's words."""


class TrialBegan(NamedTuple):
    """A trial begins, or is tried again."""

    key: TrialKey
    infrastructure_tries: int
    """From 1."""


class PhaseBegan(NamedTuple):
    """A trial is in a phase, as `Phase.name` has it, from now on."""

    key: TrialKey
    phase: str


class TryFailed(NamedTuple):
    """The infrastructure failed in a trial that is tried again."""

    key: TrialKey
    fault: Fault | None


class TrialEnded(NamedTuple):
    """A trial has its result, which is stored."""

    result: TrialResult


class TrialCancelled(NamedTuple):
    """A trial ends without a result; the next run begins it again."""

    key: TrialKey


class RateLimited(NamedTuple):
    """The provider limits the rate: all trials that ask this model wait."""

    model: str
    wait_s: float


if TYPE_CHECKING:
    RunEvent = (
        RunBegan | ImageAbsent | TrialBegan | PhaseBegan | TryFailed | TrialEnded | TrialCancelled | RateLimited
        | PullProgress
    )  # fmt: skip
    Tell = Callable[[RunEvent], None]
    """Called from several threads, by one at a time. What it raises in a trial's thread ends the run."""
