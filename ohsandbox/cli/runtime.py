"""From options to a started sandbox; without an engine, what a person is told and asked."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.post_run_report import tell_changes
from ohsandbox.cli.rendering.text import safe_line, size
from ohsandbox.conversation.projections.resume import ResumeState, resume_runtime
from ohsandbox.errors import EngineUnavailable, ImageUnavailable, OhsandboxError
from ohsandbox.runtime.factory import open_inventory, runtime_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.cli.options import SandboxOptions
    from ohsandbox.cli.rendering.view import View
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import PullProgress

MAX_LEFT_OUT_NAMED = 12
"""Of what is not copied; what looks like a secret first."""

MAX_IMAGES_NAMED = 5
"""As many local images as a line holds."""


def make_runtime(
    options: SandboxOptions,
    *,
    conversation_id: str | None = None,
    progress: Callable[[PullProgress], None] | None = None,
) -> Runtime:
    """The runtime that the options (with settings) name, not started. No engine is asked.

    Raises:
        UsageError: an image name, directory or option that cannot be.
    """
    return runtime_from(options.runtime_settings(conversation_id), progress=progress)


@contextlib.contextmanager
def started(
    runtime: Runtime, *, past: ResumeState | None = None, warn: Callable[[str], None] | None = None
) -> Iterator[Runtime]:
    """The runtime, started, and closed at the end; with a past, in what its conversation left.

    warn prints a line of ours: what an agent left in a bound directory is told when all is closed, and at the start
    what a session that was killed could not tell.

    Raises:
        SandboxUnavailable: it cannot be started; of an image that cannot be had the message names those that are here.
    """
    runtime.reports_changes_later = warn is not None
    try:
        resume_runtime(runtime, past or ResumeState())
    except EngineUnavailable as error:
        raise EngineUnavailable(with_remedies(str(error))) from error
    except ImageUnavailable as error:
        raise ImageUnavailable(f"{error}{_local_images()}") from error
    try:
        if warn is not None:
            _tell_beginning(runtime, warn)
        yield runtime
    finally:
        runtime.close()
        if warn is not None:
            tell_news(runtime, warn, last=True)


def _tell_beginning(runtime: Runtime, warn: Callable[[str], None]) -> None:
    for note in runtime.workspace_notes:
        warn(note)
    if runtime.previous_was_killed:
        tell_news(runtime, warn)


def tell_news(runtime: Runtime | None, warn: Callable[[str], None], *, last: bool = False) -> None:
    """What appeared or changed in the bound directory and was not told yet; last: nothing changes any more."""
    if runtime is None or (directory := runtime.watched) is None:
        return
    killed = runtime.previous_was_killed
    tell_changes(runtime.workspace_changes(), directory, warn=warn, killed=killed)
    if last:
        runtime.discard_changes()


def tell_copy(view: View, runtime: Runtime, options: SandboxOptions) -> None:
    """Say what of the workspace was not copied."""
    left_out = dict(getattr(runtime, "left_out", {}))
    if not left_out:
        return
    ranked = sorted(left_out.items(), key=lambda one: (one[1] == "ignored by git", one[0]))
    shown = [f"{path} ({why})" for path, why in ranked[:MAX_LEFT_OUT_NAMED]]
    more = f" and {len(ranked) - len(shown)} more" if len(ranked) > len(shown) else ""
    how = "" if options.copy_all else " --copy-all takes them along."
    source = safe_line(Path(options.workspace or ".").resolve())
    view.info(f"Not in the copy of {source}: {', '.join(shown)}{more}.{how}")


def with_remedies(fact: str) -> str:
    """The fact that no engine answers, with both remedies."""
    if "--runtime cli" in fact:
        return fact
    return f"{fact} Start the engine (`ohsandbox doctor` looks at it), or work on this host with --runtime cli."


def progress_text(progress: PullProgress) -> str:
    """How far a pull is, on a line."""
    layers = f", {progress.layers_done} of {progress.layers_total} layers" if progress.layers_total else ""
    if progress.status == "waiting":
        return f"{progress.image}: another process is pulling it"
    if not progress.total_bytes:
        return f"{progress.image}: {progress.status}{layers}"
    return f"{progress.image}: {progress.status} {size(progress.done_bytes)} of {size(progress.total_bytes)}{layers}"


def _local_images() -> str:
    """A sentence that names images which need no pull; empty where there are none."""
    names = local_images()[:MAX_IMAGES_NAMED]
    return f" Here are: {', '.join(names)} (--image NAME)." if names else ""


def local_images() -> list[str]:
    """Tags of the engine's images, without our checkpoints; none where it cannot be asked."""
    try:
        with open_inventory() as inventory:
            return inventory.list_images()
    except OhsandboxError:
        return []
