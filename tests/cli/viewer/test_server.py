from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ohsandbox.agent import Agent
from ohsandbox.cli.prompts.prompt import QUIET_S
from ohsandbox.cli.viewer import control as controls
from ohsandbox.cli.viewer.control import PageControl
from ohsandbox.cli.viewer.hosting import ADDRESS_NAME, PageAddress, hosted, hosted_at, open_browser
from ohsandbox.cli.viewer.server import PageServer
from ohsandbox.conversation import Conversation
from ohsandbox.events import ConversationStatus
from ohsandbox.network import audit
from tests.cli.viewer import example
from tests.fakes import FakeModel, RecordingRuntime, answer, call
from tests.timetravel.test_undo import BoundRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.viewer.chromium import Chromium

QUIET_MS = 900
"""As in `live.js`."""


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Client:
    """A browser's side of the connection, which may say of itself what it likes."""

    def __init__(self, address: str) -> None:
        self.address = address
        base, _, self.token = address.partition("/#token=")
        self.host = base.removeprefix("http://")

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        given = {"Authorization": f"Bearer {self.token}"} | {
            name.replace("_", "-"): one for name, one in headers.items()
        }
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, body=data, headers={name: one for name, one in given.items() if one})
        told = connection.getresponse()
        done = Answered(told.status, {name.lower(): one for name, one in told.getheaders()}, told.read().decode())
        connection.close()
        return done

    @contextlib.contextmanager
    def events(self) -> Iterator[Callable[[str], Any]]:
        """Gives a function that reads on to the next message of a kind."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", "/events", headers={"Authorization": f"Bearer {self.token}"})
        told = connection.getresponse()
        assert told.status == 200

        def read(kind: str) -> Any:
            while True:
                found = told.readline().decode().strip().removeprefix("event: ")
                data = told.readline().decode().removeprefix("data: ")
                told.readline()
                assert data, "the stream has ended"
                if found == kind:
                    return json.loads(data)

        try:
            yield read
        finally:
            told.close()
            connection.close()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Client]:
    directory = example.usual(tmp_path)
    with PageServer(directory, PageControl(directory), title="A title", facts="facts") as server:
        yield Client(server.address)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass for the question."""
    now = [1000.0]
    monkeypatch.setattr(controls, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def talk(tmp_path: Path, *turns: Any, **options: Any) -> tuple[Conversation, RecordingRuntime]:
    runtime = RecordingRuntime()
    return Conversation(Agent(FakeModel(*turns)), runtime, tmp_path / "talks", **options), runtime


def bash(command: str, call_id: str = "1") -> Any:
    return answer("I do it.", call("execute_bash", {"command": command}, call_id=call_id))


# --- access ---------------------------------------------------------------------------------------


def test_the_page_itself_says_nothing_of_the_conversation(stored: Client) -> None:
    page = stored.ask("GET", "/", Authorization="")
    assert page.status == 200
    assert "A title" not in page.text
    assert "merge" not in page.text.partition("<script>")[0]
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/events"), ("POST", "/answer"), ("POST", "/say"), ("POST", "/stop")]
)
@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer wrong", "Basic eDp5"])
def test_all_else_needs_the_token(stored: Client, method: str, path: str, token: str) -> None:
    refused = stored.ask(method, path, {}, Authorization=token)
    assert refused.status == 401
    assert "merge" not in refused.text
    assert refused.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost:99999x"}, 421),
        ({"Host": "x@localhost"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/", "/events"])
def test_other_pages_and_other_names_are_refused(
    stored: Client, headers: dict[str, str], status: int, path: str
) -> None:
    refused = stored.ask("GET", path, **headers)
    assert refused.status == status
    assert not [name for name in refused.headers if name.startswith("access-control")]


def test_a_name_of_this_machine_and_another_port_may_lead_here(stored: Client) -> None:
    """As through a tunnel of ssh."""
    assert stored.ask("GET", "/", Host="localhost:9000", Origin="http://localhost:9000").status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"text": 5}', b"\xff", b'{"text": "' + b"x" * 2_000_000 + b'"}'])
def test_a_request_that_cannot_be_read_is_refused(stored: Client, body: bytes) -> None:
    assert stored.ask("POST", "/say", body).status == 400


def test_a_port_that_is_taken_is_an_error(tmp_path: Path, stored: Client) -> None:
    from ohsandbox.errors import UsageError  # noqa: PLC0415

    port = int(stored.host.rpartition(":")[2])
    with pytest.raises(UsageError, match="Nothing can listen"):
        PageServer(tmp_path, PageControl(tmp_path), title="", facts="", port=port)


# --- reading --------------------------------------------------------------------------------------


def test_a_stored_conversation_is_told_and_may_not_be_answered(stored: Client) -> None:
    with stored.events() as read:
        assert read("about") == {"title": "A title", "facts": "facts"}
        first, of_agent = read("entries"), read("entries")
        assert (first["name"], len(first["entries"])) == ("", 25)
        assert (of_agent["name"], len(of_agent["entries"])) == ("reviewer-1", 4)
        state = read("state")
    assert state["can"] == []
    assert "ohsandbox run --view --resume" in state["why"]
    for act in ("say", "stop", "answer"):
        body = {"text": "x"} if act == "say" else {"digest": "x", "approved": True}
        refused = stored.ask("POST", f"/{act}", body)
        assert (refused.status, json.loads(refused.text)["error"]) == (409, state["why"])


# --- controlling ----------------------------------------------------------------------------------


def test_what_the_network_was_asked_for_is_told_as_it_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    directory = example.usual(tmp_path / "conversations")
    with PageServer(directory, PageControl(directory), title="", facts="") as server:
        client = Client(server.address)
        assert "Nothing was asked for" in client.ask("GET", "/network").text
        with client.events() as read:
            assert "blocked" not in {one["type"] for one in read("entries")["entries"]}
            log = audit.AuditLog(directory.name)
            for host in ("a.example.org", "b.example.org", "b.example.org"):
                log.record(host, 443, "https", allowed=False, reason="is not on the list")
                told = read("entries")
                while told["name"]:  # a sub-agent's
                    told = read("entries")
                assert [host in one["blocks"][0]["text"] for one in told["entries"]] == [True]
            log.close()
        assert client.ask("GET", "/network").text.count("b.example.org") == 1
        with client.events() as read:  # a page that is opened later has them where they were asked for
            numbers = [one["n"] for one in read("entries")["entries"]]
        assert len(numbers) == len({*numbers})


def test_new_events_are_told_as_they_are_stored(tmp_path: Path) -> None:
    conversation, _ = talk(tmp_path, bash("ls"), answer("Done."))
    with conversation.start(), hosted(conversation, user="ada") as address, Client(address).events() as read:
        assert read("state")["status"] == "idle"
        conversation.run("Go.")
        told: list[dict[str, Any]] = []
        while not told or told[-1]["type"] != "assistant_message":
            told += read("entries")["entries"]
        assert [one["type"] for one in told if one["type"] in {"user_message", "tool_call", "tool_result"}] == [
            "user_message", "tool_call", "tool_result",
        ]  # fmt: skip


def test_what_was_shown_is_allowed(tmp_path: Path, patient: Callable[[float], None]) -> None:
    conversation, runtime = talk(tmp_path, bash("rm -r build"), answer("Done."), confirmation="always")
    with conversation.start(), hosted(conversation, user="ada") as address, Client(address).events() as read:
        conversation.run("Go.")
        while (state := read("state"))["question"] is None:
            pass
        question = state["question"]
        assert any("rm -r build" in row for _, row in question["rows"])
        wanted = {"digest": question["digest"], "approved": True}
        early = Client(address).ask("POST", "/answer", wanted)
        assert (early.status, "too short a time" in early.text) == (409, True)
        assert runtime.commands == []
        patient(QUIET_S)
        assert Client(address).ask("POST", "/answer", wanted).status == 200
        assert conversation.wait(60).status is ConversationStatus.IDLE
        assert runtime.commands == ["rm -r build"]
        again = Client(address).ask("POST", "/answer", wanted)
        assert (again.status, "answered elsewhere" in again.text) == (409, True)


def test_what_was_not_shown_is_not_allowed(tmp_path: Path, patient: Callable[[float], None]) -> None:
    """Another call waits by the time of the click."""
    conversation, runtime = talk(tmp_path, bash("ls"), bash("rm -rf /", "2"), answer("Done."), confirmation="always")
    with conversation.start(), hosted(conversation, user="ada") as address, Client(address).events() as read:
        conversation.run("Go.")
        while (question := read("state")["question"]) is None:
            pass
        patient(QUIET_S)
        conversation.confirm()
        conversation.wait(60)
        assert [call.arguments for call in conversation.pending] == [{"command": "rm -rf /"}]
        late = Client(address).ask("POST", "/answer", {"digest": question["digest"], "approved": True})
        assert (late.status, "not what was shown" in late.text) == (409, True)
        assert runtime.commands == ["ls"]


def test_a_refusal_has_its_reason_and_an_approval_its_scope(tmp_path: Path, patient: Callable[[float], None]) -> None:
    turns = bash("ls"), bash("ls", "2"), bash("ls", "3"), answer("Done.")
    conversation, runtime = talk(tmp_path, *turns, confirmation="always")
    with conversation.start(), hosted(conversation, user="ada") as address, Client(address).events() as read:
        conversation.run("Go.")
        while (question := read("state")["question"]) is None:
            pass
        patient(QUIET_S)
        no = {"digest": question["digest"], "approved": False, "reason": "Not now."}
        assert Client(address).ask("POST", "/answer", no).status == 200
        conversation.wait(60)
        while (second := read("state")["question"]) is None or second["digest"] == question["digest"]:
            pass
        patient(QUIET_S)
        assert len(second["scopes"]) == 2
        wrong = {"digest": second["digest"], "approved": True, "scope": 2}
        assert Client(address).ask("POST", "/answer", wrong).status == 409
        assert Client(address).ask("POST", "/answer", {**wrong, "scope": 0}).status == 200
        assert conversation.wait(60).status is ConversationStatus.IDLE
        assert runtime.commands == ["ls", "ls"]
        assert [one.by for one in conversation.approvals] == ["ada"]


def test_a_message_steers_a_run_that_is_on_and_stop_ends_it(tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> Any:
        asked.set()
        go_on.wait(60)
        return bash("ls")

    conversation, _ = talk(tmp_path, slow, answer("Done."))
    with conversation.start(), hosted(conversation, user="ada") as address:
        client = Client(address)
        quiet = client.ask("POST", "/say", {"text": "Hello."})
        assert (quiet.status, "terminal has the next word" in quiet.text) == (409, True)
        conversation.send_message("Go.")
        assert asked.wait(60)
        assert client.ask("POST", "/say", {"text": "Be quick."}).status == 200
        assert client.ask("POST", "/say", {"text": " "}).status == 409
        go_on.set()
        said = [one.data["content"] for one in conversation.wait(60).events if one.type == "user_message"]
        assert said[-1] == "Be quick."
        assert client.ask("POST", "/stop", {}).status == 200


def test_a_message_between_two_runs_goes_to_who_begins_them(tmp_path: Path) -> None:
    conversation, _ = talk(tmp_path)
    said: list[str] = []
    with conversation.start(), hosted(conversation, user="ada", begin=said.append) as address:
        assert Client(address).ask("POST", "/say", {"text": "Hello."}).status == 200
    assert said == ["Hello."]


def test_the_page_of_a_run_is_found_while_it_is_served(tmp_path: Path) -> None:
    conversation, _ = talk(tmp_path)
    with conversation.start():
        with hosted(conversation, user="ada") as address:
            assert hosted_at(conversation.directory) == address
            note = conversation.directory / ADDRESS_NAME
            assert note.stat().st_mode & 0o777 == 0o600
            stale = json.loads(note.read_text())
        assert hosted_at(conversation.directory) is None
        note.write_text(json.dumps({**stale, "process": "1"}))
        assert hosted_at(conversation.directory) is None, "a process that was killed left it"
        note.write_text(json.dumps({**stale, "address": "http://evil.example/#token=x"}))
        assert hosted_at(conversation.directory) is None


def test_the_stream_ends_with_the_server(tmp_path: Path) -> None:
    conversation, _ = talk(tmp_path)
    with conversation.start(), contextlib.ExitStack() as stack:
        address = stack.enter_context(hosted(conversation, user="ada"))
        with Client(address).events() as read:
            read("state")
            stack.close()
            assert read("end") == {}


# --- in a browser ---------------------------------------------------------------------------------


def test_a_person_watches_and_allows_in_a_browser(browser: Chromium, tmp_path: Path, axe: str) -> None:
    conversation, runtime = talk(tmp_path, bash("rm -r build"), answer("It is **gone**."), confirmation="always")
    with conversation.start(), hosted(conversation, user="ada") as address:
        browser.open(address)
        browser.wait_for("document.getElementById('state').textContent.startsWith('Idle')")
        assert browser.evaluate("location.hash") == "", "the token is not left in the address"
        conversation.run("Remove the build.")
        browser.wait_for("document.querySelector('#question .yes') !== null")
        assert browser.evaluate("document.querySelector('#question .yes').disabled"), "it has just appeared"
        assert "rm -r build" in browser.evaluate("document.querySelector('#question .asked').textContent")
        browser.wait_for("!document.querySelector('#question .yes').disabled")
        browser.evaluate("document.querySelector('#question .yes').click()")
        assert runtime.commands == [], "a click that nobody made"
        browser.evaluate(f"{axe}; true")
        found = json.loads(browser.evaluate("axe.run().then((told) => JSON.stringify(told.violations))"))
        assert [one["id"] for one in found if one["impact"] in {"serious", "critical"}] == []
        browser.click("#question .yes")
        browser.wait_for("document.querySelector('.message.answer strong')?.textContent === 'gone'")
        assert runtime.commands == ["rm -r build"]
        assert browser.evaluate("document.getElementById('title').textContent") == "Remove the build."
        assert browser.problems == []
    browser.wait_for("document.getElementById('state').textContent.includes('closed')")


@pytest.mark.slow
def test_what_was_changed_in_all_is_looked_at_when_somebody_unfolds_it(
    browser: Chromium, tmp_path: Path, axe: str
) -> None:
    place = tmp_path / "w"
    place.mkdir()
    (place / "notes.txt").write_text("one\ntwo\n")
    deeds: list[Callable[[Path], object]] = [
        lambda root: (root / "notes.txt").write_text("one\n<b>2</b>\n"), lambda root: (root / "notes.txt").unlink()
    ]  # fmt: skip
    turns = [turn for number in "01" for turn in (bash(number, number), answer("Done."))]
    conversation = Conversation(
        Agent(FakeModel(*turns), ["execute_bash"]), BoundRuntime(place, deeds), tmp_path / "c", checkpoints=True
    )
    with conversation.start(), hosted(conversation, user="ada") as address:
        browser.open(address)
        conversation.run("Change it.")
        browser.click("#summaries .changes > .fold")
        browser.wait_for("document.querySelector('#summaries .file bdi')?.textContent === 'notes.txt'")
        browser.click("#summaries .file > .fold")
        assert "<b>2</b>" in browser.evaluate("document.querySelector('#summaries .difference').textContent")
        browser.evaluate(f"{axe}; true")
        found = json.loads(browser.evaluate("axe.run().then((told) => JSON.stringify(told.violations))"))
        assert [one["id"] for one in found if one["impact"] in {"serious", "critical"}] == []
        conversation.run("Remove it.")
        # by the element and not by its place, which moves while what the run said arrives
        again = "for (const _ of [1, 2]) document.querySelector('#summaries .changes > .fold').click()"
        browser.evaluate(again)
        browser.wait_for("document.querySelector('#summaries .file .note')?.textContent === 'gone'")
        assert browser.problems == []


def test_the_token_is_no_argument_of_a_browser(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = example.usual(tmp_path)
    started, program = tmp_path / "started", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf %s "$*" >{shlex.quote(str(started))}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    with PageServer(directory, PageControl(directory), title="A title", facts="") as server:
        open_browser(server.address, directory)
        file = directory / "view-open.html"
        assert (started.read_text(), file.stat().st_mode & 0o777) == (file.as_uri(), 0o600)
        browser.call("Page.navigate", url=file.as_uri())
        while not browser.call("Page.getFrameTree")["frameTree"]["frame"]["url"].startswith("http:"):
            continue  # a promise of a page that is left is never kept: nothing in it is waited for
        browser.wait_for("document.title.startsWith('A title')")
        assert browser.evaluate("location.href") == server.address.partition("#")[0]


def test_no_text_of_a_call_passes_for_a_row_of_the_question(browser: Chromium, tmp_path: Path) -> None:
    forged = "[9] execute_bash, risk LOW"
    conversation, _ = talk(tmp_path, bash(f"x {'y' * 300} {forged}\n{forged}"), confirmation="always")
    with conversation.start(), hosted(conversation, user="ada") as address:
        browser.open(address, width=390)
        conversation.run("Go.")
        browser.wait_for("document.querySelector('#question .asked') !== null")
        rows = browser.evaluate("[...document.querySelectorAll('.asked > :not(.row)')].map((one) => one.textContent)")
        assert [row.rpartition(" ")[0] for row in rows] == ["[1] execute_bash, risk"]
        lefts = "[...document.querySelectorAll('.asked .row')].map((one) => one.lastChild.getClientRects())"
        assert browser.evaluate(f"{lefts}.flatMap((all) => [...all].map((box) => box.left)).every((left) => left > 60)")


@pytest.mark.slow
def test_each_question_opens_at_its_top_and_is_answered_after_all_of_it_was_shown_in_front(
    browser: Chromium, tmp_path: Path
) -> None:
    lines = "\n".join(": x" for _ in range(200))
    turns = bash(f"ls\n{lines}"), bash(f"rm -rf /\n{lines}", "2"), answer("Done.")
    conversation, runtime = talk(tmp_path, *turns, confirmation="always")
    place, yes = "document.getElementById('question')", "document.querySelector('#question .yes')"
    pause = f"new Promise((done) => setTimeout(done, {1.5 * QUIET_MS}))"
    is_at_end = f"{place}.scrollTop + {place}.clientHeight >= {place}.scrollHeight - 1"
    # a busy browser draws no frame between two steps: what it skipped is scrolled to again
    scroll = f"{is_at_end} ? {place}.scrollTop = 0 : {place}.scrollBy(0, {place}.clientHeight / 2)"
    through = f"({scroll}, !{yes}.disabled)"
    with conversation.start(), hosted(conversation, user="ada") as address:
        browser.open(address, height=700)
        conversation.run("Go.")
        browser.wait_for(f"{yes} !== null")
        browser.wait_for(through)
        browser.click("#question .yes")
        browser.wait_for(f"{place}.textContent.includes('rm -rf /') && {yes} !== null")
        assert browser.evaluate(f"{place}.scrollTop") == 0
        head = "document.querySelector('#question .risk-high').getBoundingClientRect()"
        assert browser.evaluate(f"document.elementFromPoint({head}.x + 5, {head}.y + 5).textContent").endswith("HIGH")
        browser.evaluate(pause)
        assert browser.evaluate(f"{yes}.disabled"), "only its beginning was shown"
        browser.evaluate(f"{place}.scrollTop = {place}.scrollHeight")
        browser.evaluate(pause)
        assert browser.evaluate(f"{yes}.disabled"), "its middle was not shown"
        browser.evaluate(f"{place}.scrollTop = 0")
        browser.frame()
        browser.wait_for(through)
        browser.hide()
        assert browser.evaluate(f"{yes}.disabled"), "another tab is in front"
        browser.evaluate(pause)
        assert browser.evaluate(f"{yes}.disabled")
        browser.show()
        browser.wait_for(f"!{yes}.disabled")
        browser.click("#question .yes")
        browser.wait_for("document.body.textContent.includes('Done.')")
        assert [command.split("\n")[0] for command in runtime.commands] == ["ls", "rm -rf /"]
        assert browser.problems == []


def test_the_page_shows_what_a_file_that_is_written_loses(browser: Chromium, tmp_path: Path) -> None:
    turn = answer("I do it.", call("file_write", {"path": "/w/a", "content": "new\n"}, call_id="1"))
    runtime = RecordingRuntime()
    runtime.files["/w/a"] = b"old\n"
    conversation = Conversation(
        Agent(FakeModel(turn), ["file_write"]), runtime, tmp_path / "talks", confirmation="always"
    )
    with conversation.start(), hosted(conversation, user="ada") as address:
        browser.open(address)
        conversation.run("Go.")
        browser.wait_for("document.querySelector('#question .removed') !== null")
        assert browser.evaluate("document.querySelector('#question .removed').textContent") == " -| old"
        colour = "getComputedStyle(document.querySelector('#question .removed')).color"
        assert browser.evaluate(colour) != browser.evaluate("getComputedStyle(document.body).color")


@pytest.mark.slow
def test_an_open_page_follows_the_session_to_its_next_conversation(browser: Chromium, tmp_path: Path) -> None:
    at = PageAddress(is_followed=lambda: True)
    first, _ = talk(tmp_path / "one", answer("The first answer."))
    with first.start(), hosted(first, user="ada", at=at) as address:
        browser.open(address)
        first.run("Go.")
        browser.wait_for("document.body.textContent.includes('The first answer.')")
    second, _ = talk(tmp_path / "two", answer("The second answer."))
    with second.start(), hosted(second, user="ada", at=at) as again:
        assert again == address
        second.run("Go.")
        browser.wait_for("document.body?.textContent.includes('The second answer.')")
        assert not browser.evaluate("document.body.textContent.includes('The first answer.')")
