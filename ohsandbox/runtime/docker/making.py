"""How a sandbox comes to be: made from an image or a checkpoint, or taken up where an earlier process left it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.runtime.docker import checkpoints, gc, images, lease, plan, reattach, setup
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.sandbox import Sandbox
from ohsandbox.runtime.resumed import Resumed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.docker.lease import Lease

    Progress = Callable[[images.PullProgress], None]


def make(
    engine: Engine, options: plan.Options, *, progress: Progress | None = None, checkpoint: str | None = None
) -> Sandbox:
    """A new container, started and set up; on any failure nothing of it stays.

    Args:
        engine: where.
        options: what was asked for.
        progress: called while the image is pulled.
        checkpoint: the id of one to begin with, instead of the image or checkpoint of options.

    Raises:
        ImageUnavailable: the image cannot be had, or cannot run; there is no such checkpoint.
        UsageError: the name is taken, a limit is refused, the workspace cannot be bound here.
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
        keep=options.keep,
    )  # fmt: skip
    container: Container | None = None
    try:
        resolved = plan.plan(options, facts, engine, name=name, labels=_labels(held, options))
        container = containers.create(engine, resolved.spec)
        made = Sandbox(container, options, resolved.user, resolved.spec.workdir, held, resolved, facts)
        (prepare if begins_with is None else prepare_again)(made)
    except BaseException:
        if container is not None:
            container.remove()
        held.release()
        raise
    return made


def resume(
    engine: Engine, options: plan.Options, checkpoint_ids: Sequence[str], *, progress: Progress | None = None
) -> tuple[Sandbox, Resumed]:
    """The container that the conversation left; or a new one, from the newest checkpoint that is there.

    Raises:
        SandboxUnavailable: another process works in it, or it cannot be started.
        Otherwise as `make`.
    """
    adopted = reattach.adopt(engine, options)
    if adopted is None:
        checkpoint = reattach.last_checkpoint(engine, checkpoint_ids)
        made = make(engine, options, progress=progress, checkpoint=checkpoint)
        return made, Resumed("new" if checkpoint is None else "checkpoint", (), made.container.name)
    found = adopted.sandbox
    try:
        reattach.end_processes(found.open_as_root, found.open_as_user)
    except BaseException:
        if found.lease is not None:
            found.lease.leave()
        raise
    return found, Resumed("same", tuple(adopted.notes), found.container.name)


def join(engine: Engine, options: plan.Options) -> Sandbox:
    """The running container named by attach=, ours or anybody's.

    Raises:
        UsageError: there is none.
        SandboxUnavailable: it does not run, or the ca_bundle cannot be written.
    """
    joined = reattach.join(engine, options)
    _copy_ca_bundle(joined)
    return joined


def restore(sandbox: Sandbox, resolved: plan.Plan, checkpoint: str) -> Sandbox:
    """The same sandbox, in a new container of the same name with the checkpoint's files.

    Raises:
        ImageUnavailable: there is no such checkpoint; nothing has changed.
        SandboxUnavailable: the engine failed; nothing has changed.
    """
    made = checkpoints.restore(
        sandbox.container,
        resolved.spec,
        checkpoint,
        prepare=lambda container: prepare_again(sandbox._replace(container=container)),
    )
    return sandbox._replace(container=made)


def prepare(made: Sandbox) -> None:
    """What the create call cannot say; each part costs one exec, so only where it is needed.

    Raises:
        SandboxUnavailable: the image lacks what it takes.
    """
    if made.plan is not None and made.plan.identity is not None:
        setup.make_mapped_home(made.open_as_root, made.plan.identity)
    elif made.plan is not None and not made.plan.as_root:
        setup.own_workdir(made.open_as_root, made.workdir, made.user)
    _copy_ca_bundle(made)


def prepare_again(made: Sandbox) -> None:
    """The same for a container made from a checkpoint.

    Raises:
        SandboxUnavailable: the image lacks what it takes.
    """
    setup.open_private_dir(made.open_as_root)
    prepare(made)


def _copy_ca_bundle(target: Sandbox) -> None:
    if target.options.ca_bundle:
        bundle = Path(target.options.ca_bundle).expanduser().read_bytes()
        setup.write_file(target.open_as_root, plan.CA_PATH, bundle)


def _labels(held: Lease, options: plan.Options) -> dict[str, str]:
    marks = {
        "ohsandbox": "1",
        lease.LEASE_LABEL: held.id,
        "ohsandbox.created": f"{held.record.created_at:.0f}",
    }
    return marks | ({"ohsandbox.conversation": options.conversation} if options.conversation else {})
