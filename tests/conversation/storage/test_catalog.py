from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ohsandbox import events
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation, ConversationMetadata, FileConversationStore
from ohsandbox.conversation.storage import delete_stored, find_stored, list_stored, read_stored, stored_before
from ohsandbox.conversation.storage.metadata import title_of_message
from ohsandbox.errors import ConversationOpenError, UsageError
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.persistence import LOG_NAME, EventLog
from ohsandbox.persistence.recency import JOURNAL_NAME
from tests.fakes import FakeModel, RecordingRuntime, answer, call
from tests.processes import running

HOLDER = """
import sys, time
from ohsandbox import events
from ohsandbox.events import ConversationStatus
from ohsandbox.persistence import EventLog
log = EventLog(sys.argv[1], conversation_id="held")
log.append(events.user_message("hold"))
log.append(events.status_update(ConversationStatus.RUNNING, model="m", user_id="ann"))
print("held", flush=True)
time.sleep(60)
"""


def talk(root: Path, name: str = "c", *turns: Any, **options: Any) -> Conversation:
    conversation = Conversation(Agent(FakeModel(*turns)), RecordingRuntime(), root, conversation_id=name, **options)
    conversation.run(f"Do {name}.\nAll of it.", 20)
    conversation.close()
    return conversation


def write(root: Path, name: str, *texts: str) -> None:
    with EventLog(root / name, conversation_id=name) as log:
        for text in texts:
            log.append(events.user_message(text))


@pytest.fixture
def held(tmp_path: Path) -> Any:
    with running([sys.executable, "-c", HOLDER, str(tmp_path / "held")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_metadata_says_what_a_run_came_to(tmp_path: Path) -> None:
    steps = (
        answer(
            "",
            call("execute_bash", {"command": "a"}, call_id="1"),
            call("think", {"thought": "b"}, call_id="2"),
            id="r1",
        ),
    )
    talk(tmp_path, "c", *steps, answer("Done.", id="r2"), user_id="ann")
    metadata = FileConversationStore(tmp_path).load("c")
    assert metadata is not None
    assert metadata.model_dump(exclude={"created_at", "updated_at"}) == {
        "conversation_id": "c",
        "title": "Do c. All of it.",
        "user_id": "ann",
        "directory": str(Path.cwd()),
        "workspace": None,
        "secrets": (),
        "model": "fake",
        "status": Status.IDLE,
        "steps": 2,
        "calls": 2,
        "events": 9,
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "cost_usd": 0.5,
        "log_bytes": (tmp_path / "c" / LOG_NAME).stat().st_size,
    }
    assert metadata.created_at < metadata.updated_at


def test_metadata_is_written_when_a_run_begins_and_ends_and_not_between(tmp_path: Path) -> None:
    class Counting(FileConversationStore):
        def save(self, metadata: ConversationMetadata) -> None:
            saved.append(metadata.status)
            super().save(metadata)

    saved: list[Status] = []
    steps = [answer("", call("execute_bash", {"command": str(number)}), id=str(number)) for number in range(5)]
    talk(tmp_path, "c", *steps, metadata_store=Counting(tmp_path))
    assert saved == [Status.RUNNING, Status.IDLE]


def test_store_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    class Failing(FileConversationStore):
        def save(self, metadata: ConversationMetadata) -> None:
            raise RuntimeError(metadata.conversation_id)

    assert talk(tmp_path, metadata_store=Failing(tmp_path)).status() is Status.IDLE


def swap_for_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda path: path.write_bytes(b"\xff{"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(path.read_text().replace('"c"', '"other"')),
        lambda path: path.write_text(path.read_text().replace('"events": ', '"events": -')),
        swap_for_fifo,
    ],
)
def test_metadata_that_is_damaged_is_made_anew_from_the_log(tmp_path: Path, harm: Any) -> None:
    talk(tmp_path, "c", answer("Done."), user_id="ann")
    path = tmp_path / "c" / "metadata.json"
    before = json.loads(path.read_text())
    harm(path)
    assert read_stored(tmp_path / "c").metadata.model_dump(mode="json") == before
    assert json.loads(path.read_text()) == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_metadata_of_a_shorter_log_is_brought_up_to_date(tmp_path: Path) -> None:
    talk(tmp_path)
    with EventLog(tmp_path / "c", conversation_id="c") as log:
        log.append(events.status_update(Status.RUNNING))
    one = read_stored(tmp_path / "c")
    assert (one.metadata.status, one.holder) == (Status.RUNNING, None)


def test_metadata_of_an_older_version_is_still_read(tmp_path: Path) -> None:
    talk(tmp_path)
    old = {"conversation_id": "c", "title": "t", "created_at": "2026-01-01T00:00:00Z", "user_id": None, "model": "m"}
    (tmp_path / "c" / "metadata.json").write_text(json.dumps(old))
    metadata = FileConversationStore(tmp_path).load("c")
    assert metadata is not None
    assert metadata.updated_at == metadata.created_at


def write_when(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, *, days: int) -> None:
    """Write a conversation under a clock that is wrong by some days."""
    clock = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(days=days))
    monkeypatch.setattr("ohsandbox.persistence.log.datetime", clock)
    write(root, name, "x")


def test_a_clock_that_ran_ahead_or_was_set_back_changes_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, days in (("ahead", 400), ("today", 0), ("back", -400)):
        write_when(monkeypatch, tmp_path, name, days=days)
    assert [one.id for one in list_stored(tmp_path)] == ["back", "today", "ahead"]
    assert find_stored(tmp_path, "last").name == "back"


def test_a_conversation_without_an_event_or_of_another_machine_makes_no_other_one_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, days in (("a", -90), ("b", -60), ("c", -1)):
        write_when(monkeypatch, tmp_path, name, days=days)
    write(tmp_path, "empty")
    write(tmp_path / "other", "copied", "x")
    (tmp_path / "other" / "copied").rename(tmp_path / "copied")
    month_ago = datetime.now(UTC) - timedelta(days=30)
    assert [one.id for one in stored_before(tmp_path, month_ago)] == ["a", "b"]


def test_what_was_written_under_a_wrong_clock_is_not_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, days in (("old", -90), ("ahead", 400), ("older clock", -300), ("today", 0), ("back", -400)):
        write_when(monkeypatch, tmp_path, name.replace(" ", "-"), days=days)
    month_ago = datetime.now(UTC) - timedelta(days=30)
    assert [one.id for one in stored_before(tmp_path, month_ago)] == ["old", "older-clock"]


def test_list_has_the_newest_event_first_and_leaves_out_what_is_no_conversation(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path, name, "x")
    write(tmp_path, "b", "y")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write(tmp_path, ".deleted-a", "x")
    assert [one.id for one in list_stored(tmp_path)] == ["b", "c", "a"]
    assert list_stored(tmp_path / "nothing") == []


def test_damaged_log_is_listed_with_what_was_last_known_of_it(tmp_path: Path) -> None:
    talk(tmp_path)
    path = tmp_path / "c" / LOG_NAME
    path.write_bytes(path.read_bytes().replace(b"Do c", b"Do d") + b"{}\n")
    [one] = list_stored(tmp_path)
    assert one.fault is not None
    assert "damaged" in one.fault
    assert (one.metadata.title, one.metadata.model) == ("Do c. All of it.", "fake")


def test_conversation_is_found_by_id_prefix_last_and_as_a_sub_agent(tmp_path: Path) -> None:
    for name in ("20260101-a", "20260101-ab", "20260202-b"):
        write(tmp_path, name, "x")
    write(tmp_path / "20260202-b" / "agents", "helper-1", "x")
    assert find_stored(tmp_path, "20260101-a").name == "20260101-a"
    assert find_stored(tmp_path, "202602").name == "20260202-b"
    assert find_stored(tmp_path, "last").name == "20260202-b"
    assert find_stored(tmp_path, "last/help").name == "helper-1"
    write(tmp_path, "last", "x")
    assert find_stored(tmp_path, "last").name == "last"


@pytest.mark.parametrize("wanted", ["", "x", "../c", "/", "c/x", ".", "..", "*", "c\n", "last/"])
def test_what_is_not_there_is_a_usage_error(tmp_path: Path, wanted: str) -> None:
    root = tmp_path / "root"
    write(tmp_path, "c", "x")
    root.mkdir()
    with pytest.raises(UsageError, match="No conversation"):
        find_stored(root, wanted)


def test_ambiguous_prefix_names_the_candidates(tmp_path: Path) -> None:
    for number in range(7):
        write(tmp_path, f"20{number}", "x")
    with pytest.raises(UsageError, match=r"7 conversations begin with '20': 200, 201, 202, 203, 204 and 2 more"):
        find_stored(tmp_path, "20")


def test_open_conversation_is_told_with_its_process_and_is_not_deleted(tmp_path: Path, held: Any) -> None:
    one = read_stored(tmp_path / "held")
    assert (one.holder, one.metadata.status) == (str(held.pid), Status.RUNNING)
    assert (one.metadata.model, one.metadata.user_id) == ("m", "ann")
    with pytest.raises(ConversationOpenError):
        delete_stored(tmp_path / "held")
    assert (tmp_path / "held" / LOG_NAME).exists()
    held.kill()
    held.wait()
    assert read_stored(tmp_path / "held").holder is None


def test_looking_never_keeps_a_conversation_from_opening(tmp_path: Path) -> None:
    write(tmp_path, "c", "x")
    code = """
import sys
from pathlib import Path
from ohsandbox.persistence import holder_of
print("looks", flush=True)
while True:
    holder_of(Path(sys.argv[1]))
"""
    with running([sys.executable, "-c", code, str(tmp_path / "c")], stdout=subprocess.PIPE) as looking:
        assert looking.stdout is not None
        assert looking.stdout.readline() == b"looks\n"
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            EventLog(tmp_path / "c", conversation_id="c").close()
        assert looking.poll() is None
        looking.kill()


def test_delete_takes_everything_and_follows_no_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    write(root, "c", "x" * 300_000)
    write(root, "d", "x")
    (root / "c" / "tools").symlink_to(outside)
    (root / ".deleted-old-1").mkdir()
    assert delete_stored(root / "c") > 300_000
    assert sorted(path.name for path in root.iterdir()) == [JOURNAL_NAME, "d"]
    assert (outside / "precious").exists()


def test_a_title_that_was_cut_says_so() -> None:
    assert title_of_message("a" * 80) == "a" * 80
    assert title_of_message("word " * 1000) == ("word " * 16)[:79] + "…"
    assert title_of_message(" \n ") is None
