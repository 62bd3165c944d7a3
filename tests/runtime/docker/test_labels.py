"""An image's labels never pass for ours, or for a caller's: a real image with a hostile value for each of our names."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime, find_sandbox, list_sandboxes
from ohsandbox.runtime.docker import labels
from ohsandbox.runtime.pool import SandboxPool
from ohsandbox.runtime.service_options import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = pytest.mark.docker
BASE = "ohsandbox-base:busybox"
HOSTILE = {name: f"hostile-{name}" for name in labels.complete({})} | {
    labels.LABELS_LABEL: "tenant", labels.USER_LABEL: "nobody", labels.WORKDIR_LABEL: "/proc", "tenant": "alice",
}  # fmt: skip


@pytest.fixture(scope="module")
def image(engine: Engine) -> Iterator[str]:
    name = f"ohsandbox-test-labels:{secrets.token_hex(4)}"
    holder = engine.api.create_container(BASE, "true")["Id"]
    changes = [f'LABEL {label}="{value}"' for label, value in HOSTILE.items()]
    made = engine.api.commit(holder, *name.split(":"), changes=changes)["Id"]
    engine.api.remove_container(holder)
    assert engine.api.inspect_image(made)["Config"]["Labels"].items() >= HOSTILE.items()
    yield name
    for container in engine.api.containers(all=True, filters={"ancestor": made}):  # a pool's next one
        engine.api.remove_container(container["Id"], force=True)
    engine.api.remove_image(made, force=True)


def values(engine: Engine, container: str) -> dict[str, str]:
    """Our labels of a container, and no other."""
    return labels.ours(engine.api.inspect_container(container)["Config"]["Labels"])


def is_clean(engine: Engine, container: str) -> bool:
    return not {*values(engine, container).values()} & {*HOSTILE.values()}


def test_a_sandbox_without_labels_is_not_found_by_those_of_its_image(image: str, engine: Engine) -> None:
    with DockerRuntime(image) as runtime:
        assert runtime.run(["id", "-un"]).stdout == b"root\n"
        info = find_sandbox(runtime.name)
        assert info is not None
        assert (info.labels, info.conversation, info.image) == ({}, None, image)
        assert runtime.id not in {one.id for one in list_sandboxes(labels={"tenant": "alice"})}
        assert is_clean(engine, runtime.id)
    with DockerRuntime(image, labels={"tenant": "bob"}) as runtime:
        assert runtime.id not in {one.id for one in list_sandboxes(labels={"tenant": "alice"})}
        assert runtime.id in {one.id for one in list_sandboxes(labels={"tenant": "bob"})}


def test_nor_is_a_container_that_was_started_from_it_without_us(image: str, foreign: Callable[..., str]) -> None:
    name = foreign(image, Labels={labels.OWNER_LABEL: ""})
    info = find_sandbox(name)
    assert info is not None
    assert (info.ours, info.labels, info.conversation, info.image) == (False, {}, None, image)
    assert name not in {one.name for one in list_sandboxes(labels={"tenant": "alice"})}


def test_nor_after_a_checkpoint_a_restore_and_in_a_sandbox_from_the_checkpoint(image: str, engine: Engine) -> None:
    with DockerRuntime(image) as runtime:
        runtime.run(["true"])
        checkpoint = runtime.checkpoint()
        kept = labels.ours(engine.api.inspect_image(checkpoint.id)["Config"]["Labels"])
        assert not {*kept.values()} & {*HOSTILE.values()}
        runtime.restore(checkpoint.id)
        runtime.run(["true"])
        assert is_clean(engine, runtime.id)
        with DockerRuntime(checkpoint=checkpoint.id) as other:
            other.run(["true"])
            assert is_clean(engine, other.id)
            assert other.id not in {one.id for one in list_sandboxes(labels={"tenant": "alice"})}


def test_nor_after_a_resume(image: str, engine: Engine) -> None:
    conversation = secrets.token_hex(8)
    first = DockerRuntime(image, conversation=conversation)
    first.start()
    first.leave()
    with DockerRuntime(image, conversation=conversation) as again:
        assert again.resume().how == "same"
        assert again.run(["id", "-un"]).stdout == b"root\n"
        assert is_clean(engine, again.id)
        assert values(engine, again.id)[labels.CONVERSATION_LABEL] == conversation
        assert again.id not in {one.id for one in list_sandboxes(labels={"tenant": "alice"})}


def test_nor_in_a_pool(image: str, engine: Engine) -> None:
    with SandboxPool(image, 1) as pool, pool.get() as runtime:
        runtime.run(["true"])
        assert is_clean(engine, runtime.id)


def test_nor_as_a_service(image: str, engine: Engine) -> None:
    service = Service("beside", image=image, command=["sleep", "1000"], ports=())
    with DockerRuntime(BASE, services=[service]) as runtime:
        runtime.run(["true"])
        beside = f"{runtime.name}-beside"
        assert is_clean(engine, beside)
        listed = {one.name for one in list_sandboxes()}
        assert runtime.name in listed
        assert beside not in listed


def test_a_user_label_of_an_image_is_no_reason_to_ignore_the_user_of_a_joined_container(
    image: str, engine: Engine
) -> None:
    made = engine.api.create_container(image, ["sleep", "1000"], user="1000")["Id"]
    try:
        engine.api.start(made)
        with DockerRuntime(attach=made) as joined:
            assert joined.run(["id", "-u"]).stdout == b"1000\n"
    finally:
        engine.api.remove_container(made, force=True)
