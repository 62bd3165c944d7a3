"""Makes a started sandbox from options, and reports about it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import say
from ohsandbox.cli.sandbox.network_words import network_words
from ohsandbox.cli.sandbox.post_run_report import report_new_changes
from ohsandbox.cli.sandbox.setup_checkpoints import set_up, setup_key
from ohsandbox.cli.settings.model import read_settings
from ohsandbox.cli.settings.project import use_project
from ohsandbox.errors import EngineUnavailable, ImageUnavailable, OhsandboxError, UsageError
from ohsandbox.runtime.factory import open_inventory, runtime_from
from ohsandbox.runtime.runtime_settings import DEFAULT_BACKEND, DEFAULT_IMAGE, ContainerOptions, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.cli.rendering.view import View
    from ohsandbox.conversation.environment.conversation_environment import ResumeState
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import PullProgress
    from ohsandbox.settings import Settings

_MAX_LEFT_OUT_NAMED = 12
"""Number of files left out of a copy that are named, those that look like secrets first."""
MAX_IMAGES_NAMED = 5
"""Number of local images that a message names."""
_DEVELOPMENT = ("ohsandbox-dev:", "ohsandbox-test-", "ohsandbox-base:", "ohsandbox-dind:")
"""Images that compose.yaml and the tests make."""
_LIKE = 0.6
"""Smallest similarity of two image names for a suggestion: `pyhton:3.12`, `python:3.13`."""
_WORKED_IN = (
    "ohsandbox-default", "ohsandbox-browser", "python", "node", "golang", "rust", "ruby", "php", "openjdk",
    "eclipse-temurin", "maven", "gradle", "gcc", "dotnet", "buildpack-deps", "debian", "ubuntu", "fedora", "alpine",
    "busybox", "base", "universal", "devcontainer",
)  # fmt: skip
"""Images of languages and systems, which are suggested before those of servers."""


def full_options(
    where: SandboxOptions, file: Path | None, *, command: str, person: bool
) -> tuple[SandboxOptions, Settings]:
    """Return the options completed from project and settings, and the settings, for a command that copies nothing back.

    Raises:
        UsageError: an option is invalid, or a directory would have to be bound on another machine.
    """
    project = use_project(where, file, person=person)
    settings = read_settings(file, project=project.layer if project else None)
    full = (project.applied_to(where) if project else where).checked().with_settings(settings)
    if full.workspace is not None and (elsewhere := _bound_elsewhere(full)) is not None:
        raise UsageError(
            f"The engine is at {elsewhere}, which cannot bind {full.workspace.resolve()}. Use `ohsandbox {command} "
            "--copy` for a copy that is deleted at the end, or `ohsandbox run`, which brings changes back."
        )
    return full, settings


def make_runtime(
    options: SandboxOptions,
    conversation_id: str | None = None,
    *,
    progress: Callable[[PullProgress], None] | None = None,
) -> Runtime:
    """Make the runtime that the complete options name, without starting it or contacting an engine."""
    isolated = options.backend.isolated
    runtime_settings = RuntimeSettings(
        runtime=DEFAULT_BACKEND if options.runtime is None else options.runtime,
        image=DEFAULT_IMAGE if options.image is None else options.image,
        build=options.from_project.build or options.build,
        workspace=None if isolated else options.workspace,
        workspaces=tuple(options.workspaces or ()),
        same_path=options.same_path,
        mount=tuple(options.mount or ()),
        host_workdir=options.host_workdir,
        git=options.git or "guarded",
        copy="all" if options.copy_all else options.copy,
        network=options.network or "none",
        allow=options.allowed or (),
        credential=tuple(options.credential or ()),
        keep=options.keep,
        attach=options.attach,
        ca_bundle=options.ca_bundle,
        container=ContainerOptions.of(options),
        env=dict(pair.split("=", 1) for pair in options.env or ()),
        user=options.user,
        conversation=conversation_id,
        services=options.from_project.services,
        setup_key=setup_key(options) if isolated and not options.attach else None,
    )
    return runtime_from(runtime_settings, progress=progress)


def placed(options: SandboxOptions, tell: Callable[[str], None] = say) -> SandboxOptions:
    """Return the options; for an engine on another machine, which cannot bind the workspace, with a copy of it.

    Raises:
        UsageError: an option needs a bound workspace, or the engine's address is invalid.
    """
    if options.workspace is None or (elsewhere := _bound_elsewhere(options)) is None:
        return options
    tell(
        f"The engine is at {elsewhere}: the agent works on a copy of {options.workspace.resolve()}, and its changes "
        "come back when you agree to them (`ohsandbox apply`)."
    )
    return replace(options, copy=True).checked()


def _bound_elsewhere(options: SandboxOptions) -> str | None:
    """Return the address of the engine if it is on another machine and would have to bind a directory of this one."""
    is_bound = not options.copies and options.attach is None and options.backend.isolated
    return options.backend.engine_elsewhere() if is_bound else None


@contextlib.contextmanager
def started_runtime(
    runtime: Runtime,
    *,
    past: ResumeState | None = None,
    start: Callable[[], object] | None = None,
    warn: Callable[[str], None] | None = None,
    setup: SandboxOptions | None = None,
    tell: Callable[[str], None] = say,
) -> Iterator[Runtime]:
    """Start the runtime, and close it at the end; with a past, it continues in the state that its conversation left.

    start starts the runtime; None starts it as its past requires.

    setup are the options whose setup commands run first in a new sandbox; tell prints a line about them or of their
    output.

    warn prints a line of ours: what an agent left in a bound directory is reported at the end, and at the start
    what a killed session did not report.

    Raises:
        SandboxUnavailable: it cannot be started; of an image that cannot be had the message names those that are here.
            Or a command of setup failed.
    """
    runtime.reports_changes_later = warn is not None
    try:
        if start is not None:
            start()
        else:
            from ohsandbox.conversation.environment.conversation_environment import ResumeState, resume_runtime  # noqa: PLC0415 - slow: loads the conversation

            resume_runtime(runtime, past or ResumeState())
    except EngineUnavailable as error:
        raise EngineUnavailable(f"{error} Or work on this host, without a container: --runtime cli.") from error
    except ImageUnavailable as error:
        image = runtime.describe().get("image", "")
        message = str(error)
        is_chosen = (
            repr(image) in message and f"{image!r} for " not in message
        )  # else it is a service's, or a platform's
        names, more = nearest_images(image, _local_images()) if is_chosen else ([], 0)
        others = f" and {more} more (`docker images`)" if more else ""
        nearest = f" Here are: {', '.join(names)}{others} (--image NAME)." if names else ""
        raise ImageUnavailable(f"{error}{nearest}") from error
    try:
        is_new = runtime.resumed is None or runtime.resumed.how == "new"
        if setup is not None:
            set_up(runtime, setup, tell, is_new=is_new)
        if warn is not None:
            for note in runtime.workspace_notes:
                warn(note)
            if runtime.previous_was_killed:
                report_new_changes(runtime, warn)
        yield runtime
    finally:
        runtime.close()
        if warn is not None:
            report_new_changes(runtime, warn, last=True)


def place_of(runtime: Runtime, options: SandboxOptions) -> str:
    """Describe where the work is done."""
    if not runtime.isolated:
        return f"{runtime.machine[0].upper()}{runtime.machine[1:]}, in {runtime.workdir}"
    name = getattr(runtime, "name", "") or runtime.id
    if options.attach:
        return f"Container {name}, attached, network: its owner's"
    facts = runtime.describe()
    services_text = facts.get("services", "").partition(". ")[0]
    services = f", services: {services_text}" if services_text else ""
    network = network_words(options.network, options.allowed or ())
    return f"Container {name} of {facts.get('image', options.image)}, network: {network}{services}"


def print_kept(runtime: Runtime, options: SandboxOptions, command: str, tell: Callable[[str], None]) -> None:
    """Print how to join a kept sandbox with the command, and how to remove it."""
    if options.keep and "keep" in options.backend.options:
        name = getattr(runtime, "name", "") or runtime.id
        tell(f"Container {name} is kept. Go on in it: ohsandbox {command} --attach {name}")
        tell(f"Remove it: docker rm -f {name} (or all that are kept: ohsandbox gc --kept)")


def print_copy(view: View, runtime: Runtime, options: SandboxOptions) -> None:
    """Print which files of the workspace were not copied."""
    left_out: dict[str, str] = getattr(runtime, "left_out", {})
    if not left_out:
        return
    ranked = sorted(left_out.items(), key=lambda item: (item[1] == "ignored by git", item[0]))
    shown = [f"{path} ({reason})" for path, reason in ranked[:_MAX_LEFT_OUT_NAMED]]
    more = f" and {len(ranked) - len(shown)} more" if len(ranked) > len(shown) else ""
    advice = "" if options.copy_all else " --copy-all takes them along."
    source = Path(options.workspace or ".").resolve()
    view.info(f"Not in the copy of {source}: {', '.join(shown)}{more}.{advice}")


def nearest_images(wanted: str, names: Sequence[str]) -> tuple[list[str], int]:
    """Return the images that a message names, and the number of others, without images of our development and tests.

    Images with a similar name come first, then those of languages and systems, by similarity.
    """
    images = [image for image in names if not image.startswith(_DEVELOPMENT)]

    def rank(image: str) -> tuple[bool, bool, float]:
        name = image.rpartition("/")[2].partition(":")[0]
        likeness = SequenceMatcher(None, image, wanted).ratio()
        return likeness < _LIKE, not name.startswith(_WORKED_IN), -likeness

    return sorted(images, key=rank)[:MAX_IMAGES_NAMED], max(0, len(images) - MAX_IMAGES_NAMED)


def _local_images() -> list[str]:
    """Return tags of the engine's images, without our checkpoints; none if the engine does not answer."""
    try:
        with open_inventory() as inventory:
            return inventory.list_images()
    except OhsandboxError:
        return []
