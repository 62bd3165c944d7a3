from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.storage import ConversationDeleter, note_container, noted_container
from ohsandbox.errors import ConversationOpenError, EngineUnavailable
from ohsandbox.persistence.layout import CONTAINER_NOTE_NAME
from ohsandbox.persistence.recency import JOURNAL_NAME
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from tests.fakes import FakeModel, RecordingRuntime, answer, data_of
from tests.timetravel.test_fork import TOOLS, bash

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

CONTAINER = "a1" * 32


@pytest.fixture
def engine() -> Iterator[Engine]:
    there = connect()
    yield there
    there.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of its own: no other test's leases or checkpoints are in it."""
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    return tmp_path


def _cut_off(root: Path, *, keep: bool = False, end: bool = True) -> tuple[Path, DockerRuntime]:
    """A conversation whose process died: its container waits to be resumed."""
    runtime = DockerRuntime("ohsandbox-base:debian", conversation="c", keep=keep)
    conversation = Conversation(
        Agent(FakeModel(bash("echo x > f"), answer("ok")), TOOLS), runtime, root, conversation_id="c", checkpoints=True
    )
    conversation.run("go")
    if end:
        runtime.leave()
    conversation._log.close()
    return conversation.directory, runtime


def _containers(engine: Engine) -> list[str]:
    return [one.name for one in DockerInventory(engine).list_sandboxes() if one.ours and one.conversation == "c"]


@pytest.mark.docker
def test_container_and_checkpoints_go_with_the_conversation_and_with_no_copy_of_it(home: Path, engine: Engine) -> None:
    directory, _ = _cut_off(home / "here")
    copy = shutil.copytree(directory, home / "there" / "c")
    (container,) = _containers(engine)
    images = {record.id for record in checkpoint_images.records(engine)}
    assert len(images) == 2
    with ConversationDeleter() as deleting:
        assert deleting.delete(copy)[1:] == ((), ())
        assert _containers(engine) == [container]
        assert len(checkpoint_images.records(engine)) == 2
        noted = noted_container(directory)
        done = deleting.delete(directory)
        assert done.freed_bytes > 0
        assert (len(done.removed), done.removed[0], done.left) == (3, container, ())
        assert deleting.clear(directory, noted) == ((), ())
    assert (_containers(engine), checkpoint_images.records(engine)) == ([], [])
    assert not images & {found["Id"] for found in engine.api.images(checkpoint_images.REPOSITORY)}


@pytest.mark.docker
def test_what_a_fork_keeps_stays_with_the_fork(home: Path, engine: Engine) -> None:
    model = FakeModel(bash("echo x > f"), answer("ok"))
    runtime = DockerRuntime("ohsandbox-base:debian")
    with Conversation(Agent(model, TOOLS), runtime, home, checkpoints=True) as conversation:
        conversation.run("go")
        forked = conversation.fork()
    with ConversationDeleter(DockerInventory(engine)) as deleting:
        assert len(deleting.delete(conversation.directory).removed) == 2
        kept_for = {record.owner for record in checkpoint_images.records(engine)}
        assert kept_for == {str(forked.directory)}
        (image,) = {data["id"] for data in data_of(forked.events(), "checkpoint")[-1:]}
        assert checkpoint_images.require(engine, image) == image
        assert len(deleting.delete(forked.directory).removed) == 2
        assert checkpoint_images.records(engine) == []


@pytest.mark.docker
@pytest.mark.parametrize(("keep", "why"), [(False, "A process works in container"), (True, "was to be kept")])
def test_a_container_that_is_kept_or_worked_in_stays(home: Path, engine: Engine, *, keep: bool, why: str) -> None:
    directory, runtime = _cut_off(home, keep=keep, end=keep)
    (container,) = _containers(engine)
    try:
        with ConversationDeleter(DockerInventory(engine)) as deleting:
            done = deleting.delete(directory)
        assert container not in done.removed
        assert any(why in line and container in line for line in done.left), done.left
        assert _containers(engine) == [container]
    finally:
        runtime.close()
        if keep:
            engine.api.remove_container(container, force=True)


def test_without_an_engine_the_conversation_goes_and_the_rest_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def no_engine() -> None:
        asked.append(1)
        raise EngineUnavailable("No engine answers.")

    monkeypatch.setattr("ohsandbox.runtime.docker.engine.connection.connect", no_engine)
    for name in ("a", "b", "none"):
        with Conversation(Agent(FakeModel(), []), RecordingRuntime(), home / "c", conversation_id=name) as conversation:
            conversation.run("hi")
        if name != "none":
            note_container(conversation.directory, CONTAINER)
    with ConversationDeleter() as deleting:
        for name in ("a", "b"):
            assert "No engine answers." in str(deleting.delete(home / "c" / name).left)
        assert deleting.delete(home / "c" / "none").left == ()
    assert len(asked) == 1
    assert [path.name for path in (home / "c").iterdir()] == [JOURNAL_NAME]


def test_an_open_conversation_keeps_everything(home: Path) -> None:
    with Conversation(Agent(FakeModel(), []), RecordingRuntime(), home, conversation_id="c") as conversation:
        conversation.run("hi")
        note_container(conversation.directory, CONTAINER)
        with ConversationDeleter() as deleting, pytest.raises(ConversationOpenError):
            deleting.delete(conversation.directory)
        assert noted_container(conversation.directory) == CONTAINER


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"container": 1, "directory": 2}', '{"container": "../x", "directory": "HERE"}']
)
def test_a_note_that_is_none_names_no_container(tmp_path: Path, text: str) -> None:
    (tmp_path / CONTAINER_NOTE_NAME).write_text(text.replace("HERE", str(tmp_path)))
    assert noted_container(tmp_path) is None


def test_a_note_holds_where_it_was_made_and_only_for_containers(tmp_path: Path) -> None:
    note_container(tmp_path, "cli-1")
    assert not (tmp_path / CONTAINER_NOTE_NAME).exists()
    note_container(tmp_path, CONTAINER)
    assert noted_container(tmp_path) == CONTAINER
    assert json.loads((tmp_path / CONTAINER_NOTE_NAME).read_text())["directory"] == str(tmp_path)
    assert noted_container(shutil.copytree(tmp_path, tmp_path.with_name("copy"))) is None
