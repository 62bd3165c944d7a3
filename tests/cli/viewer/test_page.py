from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.cli.rendering import text as texts
from ohsandbox.cli.viewer.page import write_page
from ohsandbox.conversation import Conversation
from ohsandbox.errors import LogCorruptError
from ohsandbox.network import audit
from ohsandbox.persistence import LOG_NAME
from ohsandbox.persistence.layout import SNAPSHOTS_NAME
from ohsandbox.secrets import Masker
from tests.cli.viewer import example
from tests.fakes import FakeModel, answer, call
from tests.timetravel.test_undo import BoundRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke


class Page(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(directory: Path) -> str:
    out = io.BytesIO()
    write_page(out, directory)
    return out.getvalue().decode()


def entries_of(page: str, name: str = "") -> list[dict[str, Any]]:
    pattern = rf'<script type="application/json" class="events" data-name="{name}">(.*?)</script>'
    found = re.search(pattern, page, re.DOTALL)
    assert found is not None
    entries: list[dict[str, Any]] = json.loads(found[1])
    return entries


@pytest.fixture(params=["usual", "hostile"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return page_of(getattr(example, request.param)(tmp_path))


def test_the_policy_allows_one_style_and_one_script_by_hash_and_images_in_the_page(page: str) -> None:
    read = Page(page)
    [policy] = [str(one["content"]) for one in read.attributes("meta") if one.get("http-equiv")]
    [style] = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    [script] = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    rules = [rule.split(" ") for rule in policy.split("; ")]
    assert rules == [
        ["default-src", "'none'"], ["style-src", f"'{_hash(style)}'"], ["script-src", f"'{_hash(script)}'"],
        ["img-src", "data:"], ["base-uri", "'none'"], ["form-action", "'none'"],
        ["require-trusted-types-for", "'script'"], ["trusted-types", "'none'"],
    ]  # fmt: skip


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_what_the_list_decided_stands_where_it_was_asked_for_and_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    directory = example.usual(tmp_path / "conversations")
    before = entries_of(page_of(directory))
    assert {one["type"] for one in before}.isdisjoint({"blocked", "network"})
    call = next(one for one in before if one["type"] == "tool_call")
    monkeypatch.setattr("ohsandbox.network.audit.time.time", lambda: call["t"] / 1000 + 0.001)
    log = audit.AuditLog(directory.name)
    for host, allowed in (("a.example.org", True), ("<b>.example.org", False), ("<b>.example.org", False)):
        log.record(host, 443, "https", allowed=allowed, reason="is not on the list", rule="*.org" if allowed else "")
    log.close()
    after = entries_of(page_of(directory))
    [blocked] = [one for one in after if one["type"] == "blocked"]
    assert after[after.index(blocked) - 1]["n"] == call["n"]
    assert blocked["blocks"][0]["text"] == "Blocked: <b>.example.org (is not on the list), 2 times"
    assert after[-1]["blocks"][0]["text"] == "Network: 3 requests to 2 hosts, 2 blocked"
    assert "a.example.org" in after[-1]["blocks"][0]["details"]
    assert [one for one in after if one["type"] not in {"blocked", "network"}] == before


def test_hostile_text_is_no_markup_and_loads_nothing(page: str) -> None:
    read = Page(page)
    scripts = read.attributes("script")
    assert [one for one in scripts if one.get("type") != "application/json"] == [{}]
    for tag, attributes in read.tags:
        assert tag not in {"img", "link", "iframe", "object", "embed", "base", "b", "a"}
        assert not {"src", "href", "srcset", "action", "style", "srcdoc"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", page)


def test_every_event_that_a_reader_would_miss_is_an_entry(tmp_path: Path) -> None:
    entries = entries_of(page_of(example.hostile(tmp_path)))
    assert [entry["n"] for entry in entries] == [0, 1, *range(3, 18), 17.98], "but that it runs, which is seen"
    assert [entry.get("of") for entry in entries if entry["type"] == "tool_result"] == [3, 5, 7]


def test_an_edit_has_its_change_in_rows_numbered_as_in_its_file(tmp_path: Path) -> None:
    entries = entries_of(page_of(example.usual(tmp_path)))
    [planned] = [one for one in entries if "difference" in one]
    [made] = [block for one in entries for block in one["blocks"] if "difference" in block]
    before, after = "        if result and start < result[-1][1]:", "        if result and start <= result[-1][1]:"
    assert planned["difference"]["path"] == "/workspace/intervals.py"
    assert [None, before, None, after] in planned["difference"]["rows"]
    assert [7, before, 8, after] in made["difference"]["rows"]


def test_a_refusal_is_no_failure(tmp_path: Path) -> None:
    entries = entries_of(page_of(example.usual(tmp_path)))
    [asked] = [one for one in entries if "held" in one]
    [said] = [one["blocks"][0] for one in entries if one.get("of") == asked["n"]]
    assert (said["declined"], said["ending"], said["seconds"]) == (True, "ada said no", None)
    assert asked["held"] == {"risk": "HIGH", "why": ["It sends data to another machine."], "asks": True}


def test_a_sub_agent_has_its_own_events(tmp_path: Path) -> None:
    page = page_of(example.usual(tmp_path))
    assert [one["agent"] for one in entries_of(page) if "agent" in one] == ["reviewer-1"]
    assert [one["type"] for one in entries_of(page, "reviewer-1")][-1] == "assistant_message"


def test_secrets_are_masked_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_maskers", [Masker({"WORD": "evil.example"})])
    page = page_of(example.hostile(tmp_path))
    assert "evil.example" not in page
    assert page.count("WORD") > 10


def test_a_damaged_log_is_shown_up_to_the_damage_and_told(tmp_path: Path) -> None:
    directory = example.usual(tmp_path)
    log = directory / LOG_NAME
    log.write_bytes(log.read_bytes().replace(b"goto(", b"GOTO("))
    out = io.BytesIO()
    with pytest.raises(LogCorruptError):
        write_page(out, directory)
    last = entries_of(out.getvalue().decode())[-1]
    assert last["type"] == "error"
    assert "damaged" in last["blocks"][0]["text"]


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def root(home: Path) -> Path:
    return home / ".ohsandbox" / "conversations"


def test_view_writes_a_private_file_and_prints_its_path(root: Path, invoke: Invoke) -> None:
    directory = example.usual(root)
    ended = invoke("view")
    assert (ended.code, ended.out, ended.err) == (0, f"{directory / 'view.html'}\n", "")
    assert (directory / "view.html").stat().st_mode & 0o777 == 0o600
    assert invoke("view", "20261120").code == 0, "it is written anew"


def test_view_and_export_write_the_same_file(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    example.usual(root)
    assert invoke("view", "last", "-o", str(tmp_path / "a.html")).code == 0
    assert invoke("conversations", "export", "last", "--format", "html", "-o", str(tmp_path / "b.html")).code == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_view_of_a_sub_agent(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    example.usual(root)
    assert invoke("view", "last/reviewer-1", "-o", str(tmp_path / "a.html")).code == 0
    assert len(entries_of((tmp_path / "a.html").read_text())) == 4


def test_view_without_a_browser_says_so(root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    example.usual(root)
    monkeypatch.setenv("BROWSER", "/bin/false %s")
    monkeypatch.setenv("PATH", "/nonexistent")
    ended = invoke("view", "--open")
    assert ended.code == 2
    assert "No browser was found" in ended.err


def _bound(tmp_path: Path) -> Path:
    """A conversation of one turn that changed, made and removed files of a bound directory."""
    place = tmp_path / "w"
    place.mkdir()
    for name in ("changed.py", "gone.py", "same.py"):
        (place / name).write_text("".join(f"line {number}\n" for number in range(1, 30)))

    def work(root: Path) -> None:
        lines = (root / "changed.py").read_text().split("\n")
        lines[1], lines[27] = "<b>second</b>", "KEY=sk-canary"
        (root / "changed.py").write_text("\n".join(lines))
        (root / "gone.py").unlink()
        (root / "new.bin").write_bytes(b"\0\1")

    agent = Agent(FakeModel(answer("", call("execute_bash", {"command": "0"})), answer("ok")), ["execute_bash"])
    with Conversation(agent, BoundRuntime(place, [work]), tmp_path / "c", checkpoints=True) as conversation:
        conversation.run("turn")
        return conversation.directory


def test_what_was_changed_in_all_stands_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_maskers", [Masker({"KEY": "sk-canary"})])
    [entry] = [one for one in entries_of(page_of(_bound(tmp_path))) if one["type"] == "changes"]
    [block] = entry["blocks"]
    assert block["text"] == "Changed files: 3, 2 lines added, 31 removed"
    changed, gone, binary = block["files"]
    assert (changed["path"], changed["word"], changed["difference"]["added"]) == ("changed.py", "changed", 2)
    assert [2, "line 2", 2, "<b>second</b>"] in changed["difference"]["rows"]
    assert "sk-canary" not in str(block)
    assert (gone["word"], gone["difference"]["removed"], gone["difference"]["rows"][0]) == (
        "gone", 29, [1, "line 1", None, None],
    )  # fmt: skip
    assert (binary["path"], binary["note"]) == ("new.bin", "binary, 2 B")


def test_changes_that_are_not_kept_any_more_are_told(tmp_path: Path) -> None:
    directory = _bound(tmp_path)
    for one in (directory / SNAPSHOTS_NAME).rglob("*"):
        if one.is_file():
            one.unlink()
    [entry] = [one for one in entries_of(page_of(directory)) if one["type"] == "changes"]
    assert entry["blocks"][0]["text"].startswith("What was changed in all is not known: ")
