"""Listing, finding and removing sandboxes from Python, and the labels to find them by."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime, find_sandbox, list_sandboxes, remove_sandbox
from ohsandbox.cli.commands.sandboxes import print_sandboxes as ps
from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.labels import LEASE_LABEL

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine.connection import Engine

IMAGE = "ohsandbox-base:busybox"


@pytest.mark.docker
def test_a_sandbox_is_found_by_name_id_and_label(capsys: pytest.CaptureFixture[str]) -> None:
    job = secrets.token_hex(4)
    with (
        DockerRuntime(IMAGE, labels={"job": job, "team/name": "a b"}) as one,
        DockerRuntime(IMAGE, labels={"job": job}) as other,
    ):
        assert {info.id for info in list_sandboxes(labels={"job": job})} == {one.id, other.id}
        for found in (find_sandbox(one.name), find_sandbox(one.id[:12]), find_sandbox(labels={"team/name": "a b"})):
            assert found is not None
            assert (found.id, found.labels) == (one.id, {"job": job, "team/name": "a b"})
        assert find_sandbox(one.id[:3]) is None
        assert find_sandbox("no-such-sandbox") is None
        with pytest.raises(UsageError, match="2 sandboxes match"):
            find_sandbox(labels={"job": job})
        ps(labels=[f"job={job}", "team/name=a b"], as_json=False)
        assert other.name not in (shown := capsys.readouterr().out)
        assert one.name in shown


@pytest.mark.docker
def test_a_kept_sandbox_is_removed_and_one_in_use_is_not(engine: Engine) -> None:
    with DockerRuntime(IMAGE) as runtime:
        with pytest.raises(UsageError, match="A process works in container"):
            remove_sandbox(runtime.name)
        assert runtime.is_alive()
        runtime.close(keep=True)
    info = find_sandbox(runtime.name)
    assert info is not None
    remove_sandbox(info)
    remove_sandbox(info)  # of what was there, twice is fine
    with pytest.raises(UsageError, match="Unknown sandbox 'ohsandbox-"):
        remove_sandbox(runtime.name)
    assert engine.api.containers(all=True, filters={"id": info.id}) == []


@pytest.mark.docker
def test_a_sandbox_of_somebody_else_is_not_removed(engine: Engine) -> None:
    name = f"ohsandbox-{secrets.token_hex(4)}"
    made = engine.api.create_container(IMAGE, "true", name=name, labels={LEASE_LABEL: "f" * 32})
    try:
        with pytest.raises(UsageError, match="was not created from this state directory"):
            remove_sandbox(name)
        assert find_sandbox(name) is not None
    finally:
        engine.api.remove_container(made["Id"], force=True)


@pytest.mark.docker
def test_a_fork_has_the_labels_and_a_sandbox_of_its_checkpoint_has_its_own(engine: Engine) -> None:
    with DockerRuntime(IMAGE, labels={"job": "7"}) as runtime:
        checkpoint = runtime.checkpoint().id
        try:
            with runtime.fork(checkpoint, conversation="forked-labels") as fork:
                assert (found := find_sandbox(fork.name)) is not None
                assert found.labels == {"job": "7"}
            with DockerRuntime(IMAGE, checkpoint=checkpoint) as plain:
                assert (found := find_sandbox(plain.name)) is not None
                assert found.labels == {}
        finally:
            engine.api.remove_image(checkpoint, force=True)


@pytest.mark.parametrize(
    "labels",
    [{"ohsandbox": "1"}, {"ohsandbox.lease": "x"}, {"": "x"}, {"a=b": "x"}, {"a b": "x"}, {"a": "x\n"}, {"a": 1}, "a=b",
     {"a": "x" * 2000}],
)  # fmt: skip
def test_a_label_that_is_ours_or_none_is_refused(labels: Any) -> None:
    with pytest.raises(UsageError):
        DockerRuntime(IMAGE, labels=labels)


def test_nothing_to_find_by_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="No sandbox is named"):
        find_sandbox()
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        ps(labels=["job"], as_json=False)
