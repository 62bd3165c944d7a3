"""Creating a sandbox from an image or a checkpoint, resuming an earlier one, restoring a checkpoint."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, ToolError, UsageError
from ohsandbox.runtime.docker import attach, checkpoints, gc, guard, images, lease, resolve, setup
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.guard import WORKSPACE
from ohsandbox.runtime.docker.sandbox import Sandbox
from ohsandbox.runtime.files import transfer
from ohsandbox.runtime.results import PullProgress, ResumeReport
from ohsandbox.runtime.workspace import copy_selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.runtime.docker.channel import DockerChannel
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.docker.lease import Lease

    Progress = Callable[[PullProgress], None]


def make(
    engine: Engine, options: resolve.DockerOptions, *, progress: Progress | None = None, checkpoint: str | None = None
) -> Sandbox:
    """Create, start and set up a container; on any failure it is removed.

    Args:
        engine: the engine.
        options: the requested options.
        progress: called while the image is pulled.
        checkpoint: id of the checkpoint to start from, instead of the image or checkpoint of options.

    Raises:
        ImageUnavailable: the image cannot be pulled or cannot run, or the checkpoint does not exist.
        UsageError: the name is taken, a limit is refused, or the workspace cannot be bound on this engine.
        SandboxUnavailable: the engine failed.
    """
    if gc.orphans_here(engine):
        gc.gc(engine)
    begins_with = checkpoint or options.checkpoint
    facts = (
        images.ensure(engine, options.image, progress=progress)
        if begins_with is None
        else checkpoints.facts(engine, begins_with)
    )
    name = options.name or f"ohsandbox-{secrets.token_hex(4)}"
    held = lease.take(
        container=name, engine=engine.address.url, image=options.image, conversation=options.conversation,
        keep=options.keep, workspace=options.workspace,
    )  # fmt: skip
    container: Container | None = None
    try:
        guarded = _guarded(options)
        resolved = resolve.plan(options, facts, engine, name=name, labels=_labels(held, options), guard=guarded)
        container = containers.create(engine, resolved.spec)
        made = Sandbox(container, options, resolved.user, resolved.spec.workdir, held, resolved, facts)
        (prepare if begins_with is None else prepare_again)(made)
        if options.copy_of is not None and begins_with is None:
            made = copy_in(made, Path(options.copy_of), everything=options.copies_all)
    except BaseException:
        if container is not None:
            container.remove()
        held.release()
        release_workspace(engine, options, gone=True)
        raise
    return made


def resume(
    engine: Engine, options: resolve.DockerOptions, checkpoint_ids: Sequence[str], *, progress: Progress | None = None
) -> tuple[Sandbox, ResumeReport]:
    """Resume the conversation's container, or create one from the newest existing checkpoint.

    Raises:
        SandboxUnavailable: another process uses it, or it cannot be started.
        Otherwise as `make`.
    """
    adopted = attach.adopt(engine, options)
    if adopted is None:
        checkpoint = attach.last_checkpoint(engine, checkpoint_ids)
        made = make(engine, options, progress=progress, checkpoint=checkpoint)
        return made, ResumeReport("new" if checkpoint is None else "checkpoint", (), made.container.name)
    found = adopted.sandbox
    try:
        _mount_anew(found)
        notes = [*adopted.notes, *attach.end_processes(found)]
    except BaseException:
        if found.lease is not None:
            found.lease.leave()
        raise
    return found, ResumeReport("same", tuple(notes), found.container.name)


def _mount_anew(found: Sandbox) -> None:
    """Restart a container whose workspace has lost a mount: a file that the host unlinks loses its mount.

    Raises:
        SandboxUnavailable: the mount is still missing afterwards.
    """
    if found.plan is None or not found.plan.spec.guard or found.plan.spec.runtime:
        return
    try:
        guard.verify(found.plan.spec.guard, setup.mounts_of_workspace(found.open_as_root))
    except SandboxUnavailable:
        found.container.kill()
        found.container.start()
        found.container.note_start()
        setup.open_private_dir(found.open_as_root)
        guard.verify(found.plan.spec.guard, setup.mounts_of_workspace(found.open_as_root))


def release_workspace(
    engine: Engine, options: resolve.DockerOptions, made: resolve.ResolvedSandbox | None = None, *, gone: bool
) -> None:
    """Remove what the guard created on this machine, unless another container uses the same directory.

    Args:
        engine: the engine.
        options: the requested options.
        made: holds the guarded paths; None searches the whole workspace.
        gone: our container has been removed.

    Files that cannot be removed stay: they are harmless and say what they are.
    """
    if options.workspace is None or options.git != "guarded":
        return
    with contextlib.suppress(OhsandboxError):
        others = gc.of_workspace(engine, options.workspace)
        if len(others) <= (0 if gone else 1):
            paths = None if made is None else [mount.path for mount in made.spec.guard]
            guard.release(options.workspace, paths, gone=gone)


def join(engine: Engine, options: resolve.DockerOptions) -> Sandbox:
    """Return the running container named by attach=, whoever created it.

    Raises:
        UsageError: the container does not exist.
        SandboxUnavailable: it is not running, or the ca_bundle cannot be written.
    """
    joined = attach.join(engine, options)
    _copy_ca_bundle(joined)
    return joined


def restore(sandbox: Sandbox, resolved: resolve.ResolvedSandbox, checkpoint: str) -> Sandbox:
    """Return the same sandbox in a new container of the same name with the checkpoint's files.

    Raises:
        ImageUnavailable: the checkpoint does not exist; nothing has changed.
        SandboxUnavailable: the engine failed; nothing has changed.
    """
    resolved = resolved._replace(spec=resolved.spec.model_copy(update={"guard": _guarded(sandbox.options)}))
    anew = sandbox._replace(plan=resolve.with_policy(resolved))
    made = checkpoints.restore(
        sandbox.container,
        resolved.spec,
        checkpoint,
        prepare=lambda container: prepare_again(anew._replace(container=container)),
    )
    return anew._replace(container=made)


def prepare(made: Sandbox) -> None:
    """Set up what the create call cannot express; each part costs one exec, so it runs only if needed.

    Raises:
        SandboxUnavailable: the image lacks a required program.
    """
    if made.plan is not None and made.plan.identity is not None:
        mounts = setup.make_mapped_home(made.open_as_root, made.plan.identity)
        if not made.plan.spec.runtime:  # gVisor and Kata have their own mount table
            guard.verify(made.plan.spec.guard, mounts)
    elif made.plan is not None and not made.plan.as_root:
        setup.own_workdir(made.open_as_root, made.workdir, made.user)
    _copy_ca_bundle(made)


_GIT_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
"""


def copy_in(made: Sandbox, source: Path, *, everything: bool) -> Sandbox:
    """Copy a directory's files to /workspace, with its repository's history and without its configuration.

    Raises:
        UsageError: it is too large, cannot be read or cannot be stored.
    """

    def open_plain(argv: Sequence[str]) -> DockerChannel:
        return made.open(argv, workdir="/")  # no terminal, so that bytes pass unchanged

    chosen = copy_selection.select(source, everything=everything)
    try:
        special = transfer.upload(open_plain, source, WORKSPACE, transfer.TransferLimits(), only=chosen.paths)
    except ToolError as error:
        raise UsageError(f"The workspace {str(source)!r} cannot be copied: {error}") from error
    if chosen.has_git:
        setup.write_file(open_plain, f"{WORKSPACE}/.git/config", _GIT_CONFIG)
    return made._replace(left_out=chosen.left_out | dict.fromkeys(special, "neither file, directory nor symlink"))


def prepare_again(made: Sandbox) -> None:
    """Set up a container made from a checkpoint.

    Raises:
        SandboxUnavailable: the image lacks a required program.
    """
    setup.open_private_dir(made.open_as_root)
    prepare(made)


def _copy_ca_bundle(target: Sandbox) -> None:
    if target.options.ca_bundle:
        bundle = Path(target.options.ca_bundle).expanduser().read_bytes()
        setup.write_file(target.open_as_root, resolve.CA_PATH, bundle)


def _guarded(options: resolve.DockerOptions) -> tuple[guard.GuardMount, ...]:
    return guard.guard(options.workspace, options.git) if options.workspace is not None else ()


def _labels(held: Lease, options: resolve.DockerOptions) -> dict[str, str]:
    marks = {
        "ohsandbox": "1",
        lease.LEASE_LABEL: held.id,
        "ohsandbox.created": f"{held.record.created_at:.0f}",
    }
    if options.workspace is not None:
        marks[gc.WORKSPACE_LABEL] = gc.digest(options.workspace)
    return marks | ({"ohsandbox.conversation": options.conversation} if options.conversation else {})
