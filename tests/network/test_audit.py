"""The record of decisions: in memory, to listeners, and in files of bounded size."""

from __future__ import annotations

import json
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.network import audit
from ohsandbox.network.audit import AuditLog, NetworkDecision, audit_path, read_decisions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refuse(log: AuditLog, host: str = "evil.example.org") -> NetworkDecision:
    return log.record(host, 443, "https", allowed=False, reason="is not on the list", method="CONNECT")


def test_decision_is_read_back_with_the_bytes_of_its_connection() -> None:
    log = AuditLog("one")
    first = log.record("good.example.org", 443, "https", allowed=True, reason="is allowed", rule="good.example.org")
    refuse(log)
    log.finish(first, sent_bytes=10, received_bytes=20)
    log.close()
    assert read_decisions("one") == log.decisions
    assert (log.decisions[0].sent_bytes, log.decisions[0].received_bytes) == (10, 20)
    assert (log.totals.allowed, log.totals.refused, log.totals.sent_bytes) == (1, 1, 10)
    assert stat.S_IMODE(audit_path("one").stat().st_mode) == 0o600


def test_logs_of_two_processes_in_one_file_are_told_apart() -> None:
    one, other = AuditLog("both"), AuditLog("both")
    first, second = refuse(one, "one.example.org"), refuse(other, "two.example.org")
    other.finish(second, sent_bytes=7, received_bytes=8)
    assert (first.number, second.number) == (1, 1)
    assert [(one.host, one.sent_bytes) for one in read_decisions("both")] == [
        ("one.example.org", 0),
        ("two.example.org", 7),
    ]
    one.close()
    other.close()


def test_foreign_text_is_one_bounded_printable_line() -> None:
    log = AuditLog("foreign")
    decision = log.record(
        "\x1b[2Jevil\r\nforged\ud800" + "x" * 10_000,
        1,
        "http",
        allowed=False,
        reason="a\u202eb" * 1000,
        method="G\0T" * 9,
    )
    for text, limit in ((decision.host, 253), (decision.reason, 300), (decision.method, 20)):
        assert text.isprintable()
        assert len(text) <= limit
    (line,) = audit_path("foreign").read_bytes().splitlines()
    assert json.loads(line)["host"] == decision.host
    log.close()


def test_files_stay_within_their_size_and_the_newest_decisions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 5000)
    log = AuditLog("large")
    for number in range(200):
        refuse(log, f"h{number}.example.org")
    log.close()
    sizes = [path.stat().st_size for path in audit_path("large").parent.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 5000
    decisions = read_decisions("large")
    assert sum(one.count for one in decisions) == 200
    newest = [one.host for one in decisions if one.number > 190 and one.count == 1][-8:]
    assert newest == [f"h{number}.example.org" for number in range(192, 200)]


def test_memory_keeps_the_last_ones_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT", 10)
    log = AuditLog()
    for _ in range(50):
        refuse(log)
    assert [(one.number, one.count) for one in log.decisions] == [(40, 40), *((number, 1) for number in range(41, 51))]
    assert log.totals.refused == 50


def test_damaged_lines_are_left_out() -> None:
    log = AuditLog("damaged")
    refuse(log)
    log.close()
    whole = audit_path("damaged").read_bytes()
    lines = [
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"event": "decision"}',
        b'{"event": "end", "number": []}',
        whole[:50],
    ]
    lines.append(whole.strip().replace(b'"port":443', b'"port":"443"'))
    audit_path("damaged").write_bytes(b"\n".join([*lines, whole]))
    assert read_decisions("damaged") == log.decisions
    assert read_decisions("never") == ()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 200, "a\n"])
def test_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="Invalid sandbox name"):
        AuditLog(name)


def test_file_that_cannot_be_written_is_told_and_nothing_is_lost_in_memory(home: Path) -> None:
    log = AuditLog("link")
    audit_path("link").symlink_to(home / "elsewhere")
    refuse(log)
    assert "link.jsonl" in log.problem
    assert len(log.decisions) == 1
    assert not (home / "elsewhere").exists()


def test_listener_hears_each_decision_until_it_is_removed_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log, heard = AuditLog(), list[NetworkDecision]()

    def broken(_: NetworkDecision) -> None:
        raise RuntimeError("mine")

    log.on_decision(broken)
    remove = log.on_decision(heard.append)
    decision = refuse(log)
    remove()
    refuse(log)
    assert heard == [decision]
    assert "mine" in caplog.text


def test_threads_record_at_once_and_each_decision_has_a_number_of_its_own() -> None:
    log = AuditLog("threads")
    threads = [threading.Thread(target=lambda: [refuse(log) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert sorted(one.number for one in read_decisions("threads")) == list(range(1, 401))


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 8 * 1024)
    monkeypatch.setattr(audit, "KEPT", 10)
    monkeypatch.setattr(audit, "MAX_SUMS", 20)


@pytest.mark.usefixtures("small_files")
def test_a_flood_of_refused_requests_hides_nothing_that_was_allowed() -> None:
    log = AuditLog("flood")
    short = log.record("good.example.org", 443, "https", allowed=True, reason="is allowed", rule="good.example.org")
    log.finish(short, sent_bytes=10, received_bytes=20)
    long = log.record("far.example.org", 443, "https", allowed=True, reason="is allowed", rule="*.example.org")
    for number in range(500):
        refuse(log, f"evil-{number}.example.org")
    log.finish(long, sent_bytes=1_000_000, received_bytes=1)
    log.close()
    for decisions in (read_decisions("flood"), log.decisions):
        allowed = [one for one in decisions if one.allowed]
        assert sum(one.count for one in allowed) == 2
        assert {one.host for one in allowed} == {"good.example.org", "far.example.org"}
        assert sum(one.sent_bytes for one in allowed) == 1_000_010
        assert sum(one.count for one in decisions if not one.allowed) == 500
    assert len(log.decisions) <= 10 + 20 + 2
    files = [audit_path("flood"), audit_path("flood").with_name("flood.1.jsonl")]
    assert all(0 < file.stat().st_size < 16 * 1024 for file in files)


def test_shortened_decisions_keep_the_newest_and_sum_up_the_others() -> None:
    log = AuditLog()
    for host in ("a.example.org", "b.example.org", "a.example.org", "c.example.org"):
        refuse(log, host)
    told = audit.summarized(audit.summarized(log.decisions, 2), 1)
    assert [(one.host, one.count) for one in told] == [("a.example.org", 2), ("b.example.org", 1), ("c.example.org", 1)]
