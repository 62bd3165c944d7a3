from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import events
from ohsandbox.conversation.storage import list_stored
from ohsandbox.events import ConversationStatus, ToolResult
from ohsandbox.persistence import LOG_NAME, EventLog, read_events
from tests.processes import running

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys, time
from ohsandbox import events
from ohsandbox.persistence import EventLog
with EventLog(sys.argv[1], conversation_id="held") as log:
    log.append(events.user_message("first"))
    print("held", flush=True)
    sys.stdin.readline()
    log.append(events.user_message("second"))
"""


@pytest.fixture
def root(home: Path, no_engine: None) -> Path:  # noqa: ARG001 - no container of this machine is to be seen
    return home / ".ohsandbox" / "conversations"


@pytest.fixture
def held(root: Path) -> Any:
    argv = [sys.executable, "-c", HOLDER, str(root / "held")]
    with running(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def call(name: str, number: str, **arguments: str) -> events.EventBody:
    return events.tool_call(
        tool_call_id=number, name=name, arguments=json.dumps(arguments), response_id=f"r{number}", call_index=0,
        total_calls=1, thought="I look.", usage={"prompt_tokens": 1000, "completion_tokens": 234}, cost_usd=0.0125,
    )  # fmt: skip


def result(name: str, number: str, text: str, **details: int) -> events.EventBody:
    return events.tool_result(tool_call_id=number, name=name, result=ToolResult.ok(text), details=details)


def write(root: Path, name: str, text: str = "Count the files.", *, output: str = "a\nb\n") -> Path:
    """A conversation as a run leaves it."""
    with EventLog(root / name, conversation_id=name) as log:
        for body in (
            events.user_message(text),
            events.status_update(ConversationStatus.RUNNING, model="m/x", user_id="ann"),
            call("execute_bash", "1", command="ls | wc"),
            result("execute_bash", "1", output, exit_code=3),
            call("finish", "2", message="There are **2**."),
            result("finish", "2", "There are **2**."),
            events.error(code="MaxCost", message="The limit is reached."),
            events.status_update(ConversationStatus.FINISHED),
        ):
            log.append(body)
    return root / name


def damage(directory: Path) -> None:
    path = directory / LOG_NAME
    path.write_bytes(path.read_bytes().replace(b"ls | wc", b"ls | WC"))


def age(directory: Path, **by: int) -> None:
    path = directory / "metadata.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"updated_at": (datetime.now(UTC) - timedelta(**by)).isoformat()}))


def test_nothing_is_said_so(root: Path, invoke: Any) -> None:
    assert invoke("conversations") == (0, "No conversations.\n", "")
    assert invoke("conversations", "--json").out == "[]\n"
    assert not root.exists()


def test_table_has_what_a_person_looks_for(root: Path, invoke: Any) -> None:
    write(root, "c1")
    ended = invoke("conversations")
    assert ended.code == 0
    heading, row = ended.out.splitlines()
    assert heading.split() == ["ID", "AGE", "STATUS", "STEPS", "COST", "MODEL", "TITLE"]
    assert row.split()[:1] + row.split()[3:] == ["c1", "finished", "2", "$0.0250", "m/x", "Count", "the", "files."]


def test_json_has_everything_and_the_newest_first(root: Path, invoke: Any) -> None:
    write(root, "c1")
    write(root, "c2", "Another.")
    second, first = json.loads(invoke("conversations", "--json").out)
    assert (second["conversation_id"], first["title"]) == ("c2", "Count the files.")
    assert (first["prompt_tokens"], first["calls"], first["user_id"], first["state"]) == (2000, 2, "ann", "finished")
    assert first["directory"] == str(root / "c1")


def test_table_is_cut_and_says_so(root: Path, invoke: Any) -> None:
    for number in range(4):
        write(root, f"c{number}")
    assert invoke("conversations", "-n", "3").out.splitlines()[-1].startswith("1 older ones are not shown")
    assert len(invoke("conversations", "-n", "0").out.splitlines()) == 5


def test_hostile_title_cannot_drive_the_terminal(root: Path, invoke: Any) -> None:
    write(root, "c1", "\x1b]0;owned\x07\x1b[31m[bold]red\u202e")
    for arguments in (["conversations"], ["conversations", "show", "c1"]):
        out = invoke(*arguments).out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "[bold]red" in out


def test_state_tells_damaged_interrupted_and_open_apart(root: Path, invoke: Any, held: Any) -> None:
    damage(write(root, "damaged"))
    with EventLog(root / "killed", conversation_id="killed") as log:
        log.append(events.status_update(ConversationStatus.RUNNING))
    states = {one["conversation_id"]: one["state"] for one in json.loads(invoke("conversations", "--json").out)}
    assert states == {"damaged": "unreadable", "killed": "interrupted", "held": f"idle, open in {held.pid}"}


def test_show_reads_like_the_run(root: Path, invoke: Any) -> None:
    write(root, "c1")
    ended = invoke("conversations", "show", "last")
    assert (ended.code, ended.err) == (0, "")
    shown = [line[9:].split(maxsplit=1) for line in ended.out.splitlines()[1:-1]]
    assert shown == [
        ["user", "Count the files."],
        ["status", "RUNNING"],
        ["model", "I look."],
        ["call", "$ ls | wc"],
        ["result", "exit 3, 0.0 s: a | b"],
        ["model", "I look."],
        ["answer", "There are **2**."],
        ["error", "The limit is reached."],
        ["status", "FINISHED"],
    ]
    assert ended.out.splitlines()[-1].startswith("finished · 2 steps · 2 calls · 2,468 tokens · $0.0250 · m/x")


def test_show_tells_the_times_of_the_events(root: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2020, 5, 6, 7, 8, 9, tzinfo=tz)

    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr("ohsandbox.persistence.log.datetime", Clock)
    write(root, "c1")
    heading, first, *_ = invoke("conversations", "show", "c1").out.splitlines()
    expected = datetime(2020, 5, 6, 7, 8, 9, tzinfo=UTC).astimezone()
    assert heading == f"Conversation c1, begun {expected:%Y-%m-%d %H:%M}"
    assert first.startswith(f"{expected:%H:%M:%S} user")


def test_show_json_gives_the_events_one_a_line(root: Path, invoke: Any) -> None:
    directory = write(root, "c1")
    lines = [json.loads(line) for line in invoke("conversations", "show", "c1", "--json").out.splitlines()]
    assert lines == [event.model_dump(mode="json") for event in read_events(directory)]


def test_show_at_a_terminal_has_colours_and_no_spinner(root: Path, at_terminal: Any) -> None:
    write(root, "c1")
    shown = at_terminal("conversations", "show", "c1")
    assert shown.code == 0
    assert b"\x1b[1;32m$" in shown.raw
    assert b"the model works" not in shown.raw


def test_show_of_a_damaged_log_gives_what_is_good_and_the_remedy(root: Path, invoke: Any) -> None:
    damage(write(root, "c1"))
    ended = invoke("conversations", "show", "c1")
    assert ended.code == 1
    assert "Count the files." in ended.out
    assert ended.err.count("\n") == 1
    assert "`ohsandbox conversations repair c1`" in ended.err


def test_show_names_the_sub_agents_and_shows_them(root: Path, invoke: Any) -> None:
    write(write(root, "c1") / "agents", "helper-1", "Help.")
    assert "ohsandbox conversations show c1/helper-1" in invoke("conversations", "show", "c1").out
    assert "Help." in invoke("conversations", "show", "c1/helper-1").out


def test_follow_shows_what_is_new_and_ends_with_the_process_that_writes(root: Path, start: Any, held: Any) -> None:
    assert (root / "held").exists()
    following = start("conversations", "show", "held", "--follow", "--json")
    assert json.loads(following.stdout.readline())["data"]["content"] == "first"
    held.stdin.write(b"\n")
    held.stdin.flush()
    out, err = following.communicate(timeout=60)
    assert json.loads(out)["data"]["content"] == "second"
    assert (following.returncode, err) == (0, b"")


@pytest.mark.slow
def test_follow_is_left_by_ctrl_c(start: Any, held: Any) -> None:
    assert held.poll() is None
    following = start("conversations", "show", "held", "--follow", "--json")
    following.stdout.readline()
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=60)[1] == b""
    assert following.returncode == 130


def test_export_is_a_log_that_needs_no_other_file(root: Path, invoke: Any, tmp_path: Path) -> None:
    directory = write(root, "c1", output="é" * 300_000)
    path = tmp_path / "out.jsonl"
    ended = invoke("conversations", "export", "c1", "-o", str(path))
    assert (ended.code, ended.out) == (0, "")
    assert "keys and passwords" in ended.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = read_events(directory)
    (directory / "blobs").rename(tmp_path / "away")
    assert read_events(path) == written


def test_export_to_stdout_holds_the_events_and_nothing_else(root: Path, invoke: Any) -> None:
    write(root, "c1")
    lines = [json.loads(line) for line in invoke("conversations", "export", "c1").out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(8))


def test_markdown_export_fences_what_would_break_out(root: Path, invoke: Any) -> None:
    write(root, "c1", output="```\n# not a heading\n````\n\x1b[31mred")
    out = invoke("conversations", "export", "c1", "--format", "md").out
    assert out.startswith("# Count the files.\n")
    assert "\x1b" not in out
    assert "Result, exit 3:\n\n`````\n```\n# not a heading\n````\nred\n`````\n" in out
    assert out.rstrip().endswith("> error: The limit is reached.")


def test_export_overwrites_only_when_told_and_never_in_the_conversation(
    root: Path, invoke: Any, tmp_path: Path
) -> None:
    directory = write(root, "c1")
    path = tmp_path / "out"
    path.write_text("mine")
    assert invoke("conversations", "export", "c1", "-o", str(path)).code == 2
    assert path.read_text() == "mine"
    assert invoke("conversations", "export", "c1", "-o", str(path), "--force").code == 0
    assert len(read_events(path)) == 8
    assert invoke("conversations", "export", "c1", "-o", str(directory / LOG_NAME), "--force").code == 2
    assert invoke("conversations", "export", "c1", "-o", str(tmp_path / "no" / "where")).code == 2
    assert invoke("conversations", "export", "c1", "-o", str(tmp_path), "--force").code == 2
    assert not list(tmp_path.glob(".out*"))


def test_export_of_a_damaged_log_has_what_is_good_and_fails(root: Path, invoke: Any, tmp_path: Path) -> None:
    damage(write(root, "c1"))
    ended = invoke("conversations", "export", "c1", "-o", str(tmp_path / "out"))
    assert ended.code == 1
    assert len(read_events(tmp_path / "out")) == 2


def test_repair_says_what_was_lost_and_the_log_goes_on(root: Path, invoke: Any) -> None:
    directory = write(root, "c1")
    damage(directory)
    ended = invoke("conversations", "repair", "c1")
    assert ended.code == 0
    assert "first 2 records: its checksum does not match" in ended.out
    assert "with 5 whole records after the damage" in ended.out
    assert len(read_events(directory)) == 3
    assert "is sound: 3 records. Nothing was changed." in invoke("conversations", "repair", "c1").out


def test_repair_of_an_open_conversation_is_refused(invoke: Any, held: Any) -> None:
    ended = invoke("conversations", "repair", "held")
    assert ended.code == 3
    assert f"process {held.pid}" in ended.err


def test_delete_says_what_it_frees(root: Path, invoke: Any) -> None:
    write(root, "c1", output="x" * 300_000)
    write(root, "c2")
    ended = invoke("conversations", "delete", "c1", "--yes")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("deleted c1: 30")
    assert ended.out.endswith(" kB\n")
    assert [one.id for one in list_stored(root)] == ["c2"]


def test_delete_by_age_takes_the_old_ones_only(root: Path, invoke: Any) -> None:
    for name, days in (("old", 31), ("new", 29)):
        write(root, name)
        invoke("conversations")
        age(root / name, days=days)
    assert "deleted old" in invoke("conversations", "delete", "--older-than", "30d", "-y").out
    assert [one.id for one in list_stored(root)] == ["new"]
    assert invoke("conversations", "delete", "--older-than", "30d", "-y").out == "Nothing to delete.\n"


def test_delete_all_leaves_the_open_one_and_says_so(root: Path, invoke: Any, held: Any) -> None:
    write(root, "c1")
    ended = invoke("conversations", "delete", "--all", "--yes")
    assert ended.code == 3
    assert f"held (process {held.pid})" in ended.err
    assert [one.id for one in list_stored(root)] == ["held"]


def test_delete_asks_at_a_terminal(root: Path, at_terminal: Any) -> None:
    write(root, "c1")
    question = b"Delete 1 conversation, "
    refused = at_terminal("conversations", "delete", "c1", answers=[(question, b"n\n")])
    assert refused.code == 1
    assert b"Count the files." in refused.raw
    assert (root / "c1").exists()
    assert at_terminal("conversations", "delete", "c1", answers=[(question, b"y\n")]).code == 0
    assert not (root / "c1").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "nope"], "No conversation 'nope'"),
        (["show", "../c1"], "No conversation '..'"),
        (["export", "c"], "2 conversations begin with 'c': c1, c2"),
        (["repair", ""], "No conversation ''"),
        (["delete"], "Say which"),
        (["delete", "c1", "--all"], "Say which"),
        (["delete", "c1", "nope", "--yes"], "No conversation 'nope'"),
        (["delete", "c1"], "a person confirms at a terminal"),
        (["delete", "--older-than", "soon", "-y"], "expected a number and min, h, d or w"),
        (["delete", "--older-than", "-1d", "-y"], "expected a number and min, h, d or w"),
        (["show", "c1", "--dir", "/nonexistent"], "in '/nonexistent'"),
        (["--dir", "/nonexistent", "show", "c1"], "in '/nonexistent'"),
        (["--dir", "/dev/null"], "'/dev/null' cannot be read: Not a directory"),
        (["--json", "show", "c1"], "Place --json after 'show'"),
    ],
)
def test_wrong_use_is_one_line_and_changes_nothing(root: Path, invoke: Any, arguments: list[str], said: str) -> None:
    write(root, "c1")
    write(root, "c2")
    ended = invoke("conversations", *arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert said in ended.err
    assert sorted(one.id for one in list_stored(root)) == ["c1", "c2"]


def test_events_of_a_newer_version_are_shown_as_such_and_left_by_repair(root: Path, invoke: Any) -> None:
    directory = write(root, "one")
    with EventLog(directory, conversation_id="one") as log:
        log.append(events.EventBody("telem\x1betry", {"usage": [], "cost_usd": "free"}))
    whole = (directory / LOG_NAME).read_bytes()
    for words in (["show", "one"], ["show", "one", "--no-tui"], ["export", "one", "--format", "md"]):
        shown = invoke("conversations", *words)
        assert shown.code == 0
        assert "newer ohsandbox" in shown.out
        assert "\x1b" not in shown.out
    assert "telem" in invoke("conversations", "show", "one", "--json").out
    assert "sound" in invoke("conversations", "repair", "one").out
    assert "one" in invoke("conversations").out
    assert (directory / LOG_NAME).read_bytes() == whole


MALFORMED = {
    "a model that is a number": events.EventBody("status_update", {"status": "IDLE", "model": 5}),
    "tokens below zero": events.EventBody("assistant_message", {"content": "", "usage": {"prompt_tokens": -5}}),
    "a name of half a character": events.EventBody("status_update", {"status": "IDLE", "model": "\ud800"}),
    "an approval of nothing": events.EventBody("approval", {}),
    "an approval of every path": events.EventBody(
        "approval", {"number": 1, "by": "x", "scope": {"kind": "edits", "directory": ""}}
    ),
    "a revocation of nothing": events.EventBody("approval_revoked", {"number": [1]}),
    "a result that is a list": events.EventBody("tool_result", {"tool_call_id": "9", "name": "x", "result": [5]}),
    "an exit code in words": events.EventBody(
        "tool_result", {"name": "x", "result": {"status": "ok"}, "details": {"exit_code": "none"}}
    ),
    "arguments without end": events.EventBody("tool_call", {"name": "x", "call_index": 0, "arguments": "[" * 100_000}),
    "lists in lists": events.EventBody("user_message", {"content": "x", "y": json.loads("[" * 300 + "]" * 300)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_an_event_with_fields_amiss_hides_neither_its_log_nor_the_others(
    root: Path, invoke: Any, body: events.EventBody
) -> None:
    write(root, "sound")
    with EventLog(root / "amiss", conversation_id="amiss") as log:
        log.append(body)
        log.append(events.user_message("Written behind it."))
    listed = invoke("conversations")
    assert (listed.code, "sound" in listed.out, "amiss" in listed.out) == (0, True, True)
    for words in (["show", "amiss"], ["show", "amiss", "--json"], ["export", "amiss", "--format", "md"]):
        shown = invoke("conversations", *words)
        assert (shown.code, "Written behind it." in shown.out) == (0, True)
    assert invoke("approvals", "amiss") == (0, "No approval is in force.\n", "")


def resealed(line: bytes, old: bytes, new: bytes) -> bytes:
    """The record with other bytes in it, and the checksum that fits them."""
    body = line.replace(old, new).rpartition(b',"crc"')[0]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_a_number_that_json_cannot_say_is_exported_as_null(root: Path, invoke: Any, number: bytes) -> None:
    path = write(root, "c1") / LOG_NAME
    path.write_bytes(
        b"".join(resealed(line, b"0.0125", number) for line in path.read_bytes().splitlines(keepends=True))
    )
    for words in (["export", "c1"], ["show", "c1", "--json"]):
        shown = invoke("conversations", *words)
        assert (shown.code, number in shown.out.encode()) == (0, False)
        [told, *_] = [found for found in map(json.loads, shown.out.splitlines()) if "cost_usd" in found["data"]]
        assert told["data"]["cost_usd"] is None


@pytest.mark.parametrize("ts", ["2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_cannot_be_told_is_damage(root: Path, invoke: Any, ts: str) -> None:
    write(root, "sound")
    write(root, "amiss")
    path = root / "amiss" / LOG_NAME
    first, *others = path.read_bytes().splitlines(keepends=True)
    written = b'"ts":"%s"' % json.loads(first)["ts"].encode()
    path.write_bytes(resealed(first, written, b'"ts":"%s"' % ts.encode()) + b"".join(others))
    (root / "amiss" / "metadata.json").unlink(missing_ok=True)
    listed = invoke("conversations")
    assert (listed.code, "unreadable" in listed.out, "sound" in listed.out) == (0, True, True)
    assert "no time that can be shown" in invoke("conversations", "show", "amiss").err
