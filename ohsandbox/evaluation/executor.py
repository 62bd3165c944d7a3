"""Executors that carry out trials: in threads of this process, or on other machines."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from ohsandbox.evaluation.processors import Processors
from ohsandbox.evaluation.progress import PhaseBegan
from ohsandbox.evaluation.trial import Trial
from ohsandbox.evaluation.trial_sandbox import SandboxRemovals

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.images import Images
    from ohsandbox.evaluation.progress import Tell
    from ohsandbox.evaluation.results import TrialResult
    from ohsandbox.evaluation.trial import TrialSpec


class TrialExecutor(Protocol):
    """Runs trials, at most `slots` of them at the same time."""

    @property
    def slots(self) -> int:
        """How many trials may run now; it may change."""

    def check(self) -> None:
        """Check whether trials can run at all, before the first one.

        Raises:
            SandboxUnavailable: no engine answers.
        """

    def submit(self, spec: TrialSpec, directory: Path) -> Future[TrialResult]:
        """Start a trial that writes its files into the empty directory. Its future fails only through a bug of ours."""

    def close(self) -> None:
        """Stop the running trials, without results, and wait until their sandboxes are removed."""


class LocalExecutor:
    """Runs trials in threads of this process, on the engine of this machine."""

    def __init__(self, slots: int, images: Images, tell: Tell) -> None:
        """Create the executor without starting anything; tell is called with each phase."""
        self.slots = slots
        self._images, self._tell = images, tell
        self._cancel = threading.Event()
        self._processors = Processors((), concurrent=slots)
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="trial")
        self._removals = SandboxRemovals(slots)

    def check(self) -> None:
        """See `TrialExecutor.check`."""
        numbers = self._images.processors()
        if numbers != self._processors.numbers:
            self._processors = Processors(numbers, concurrent=self.slots)

    def submit(self, spec: TrialSpec, directory: Path) -> Future[TrialResult]:
        """See `TrialExecutor.submit`."""
        key = spec.key
        trial = Trial(
            spec, directory, images=self._images, processors=self._processors, cancel=self._cancel,
            tell=lambda phase: self._tell(PhaseBegan(key, phase)), removals=self._removals,
        )  # fmt: skip
        return self._pool.submit(trial.run)

    def close(self) -> None:
        """See `TrialExecutor.close`."""
        self._cancel.set()
        self._images.close()
        self._pool.shutdown(cancel_futures=True)
        self._images.networks.finish()
        self._removals.finish()
        self._images.networks.close()
