"""MCP servers of a repository's skills in a conversation: nothing starts before a person's word, and that is kept."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import Agent, CLIRuntime, Conversation, DockerRuntime, Settings, UsageError
from ohsandbox.conversation.approvals.scopes import StartServers
from ohsandbox.conversation.environment import mcp_servers
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.mcp import MCPConfig, MCPServers
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.environment.skill_servers import ProposedServers
    from ohsandbox.runtime.base import Runtime

SERVER = Path(__file__).parents[2] / "mcp" / "server.py"
MARK = "touched-by-the-server"


def entry(*modes: str, **more: Any) -> dict[str, Any]:
    """A server that leaves a file once it is started."""
    started = f"touch {MARK}; exec python3 -S -u {SERVER} {' '.join(modes)}"
    return {"command": "sh", "args": ["-c", started], "include": ["echo", "env"], **more}


@pytest.fixture(autouse=True)
def _pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_servers, "pins_path", lambda: tmp_path / "pins.json")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / ".openhands" / "microagents").mkdir(parents=True)
    bring(tmp_path / "work", odd=entry())
    return tmp_path / "work"


@pytest.fixture
def runtime(work: Path) -> Iterator[Runtime]:
    with CLIRuntime(work, bubblewrap=False, quiet=True) as started:
        yield started


def bring(work: Path, **servers: Any) -> None:
    text = f"---\nmcp_tools:\n  mcpServers: {json.dumps(servers)}\n---\n"
    (work / ".openhands" / "microagents" / "repo.md").write_text(text)


def converse(tmp_path: Path, runtime: Runtime, model: FakeModel | None = None, **options: Any) -> Conversation:
    agent = Agent(model or FakeModel(), ("finish",), mcp_config=options.pop("mcp_config", None))
    return Conversation(agent, runtime, tmp_path / "c", **{"conversation_id": "one", **options})


def notices(conversation: Conversation) -> list[str]:
    return [data["message"] for data in data_of(conversation.events(), "notice") if data["code"] == "SkillServers"]


def offered(conversation: Conversation) -> list[str]:
    *_, last = data_of(conversation.events(), "system_message")
    return [tool["function"]["name"] for tool in last["tools"]]


def test_without_an_answer_nothing_starts_and_one_line_says_how_to_allow_it(
    tmp_path: Path, runtime: Runtime, work: Path
) -> None:
    with converse(tmp_path, runtime) as conversation:
        assert conversation.run("go") == Status.IDLE
        assert conversation.run("again") == Status.IDLE
        [told] = notices(conversation)
        assert offered(conversation) == ["finish"]
    assert "'odd' (.openhands/microagents/repo.md:3)" in told
    for way in ("--skill-servers allow", '"skill_servers": "allow"', 'Conversation(skill_servers="allow")'):
        assert way in told
    assert not (work / MARK).exists()


def test_word_of_the_person_starts_them_and_is_an_approval(tmp_path: Path, runtime: Runtime, work: Path) -> None:
    model = FakeModel(answer("", call("odd__echo", {"text": "hi"})))
    with converse(tmp_path, runtime, model) as conversation:
        proposed = conversation.pending_servers
        assert proposed is not None
        assert (proposed.directory, proposed.is_isolated) == (str(work), False)
        assert not (work / MARK).exists()
        conversation.approve(proposed.scope, by="ann")
        assert conversation.pending_servers is None
        conversation.run("go")
        assert results_of(conversation)[0]["output"] == "hi"
        assert [(one.by, one.scope) for one in conversation.approvals] == [("ann", proposed.scope)]
        assert "start by approval 1: 'odd'" in notices(conversation)[0]
    assert (work / MARK).exists()


@pytest.mark.parametrize("policy", ["allow", lambda proposed: proposed.servers[0].name == "odd"], ids=["allow", "yes"])
def test_policy_or_callback_allows_them_as_an_approval(tmp_path: Path, runtime: Runtime, policy: Any) -> None:
    with converse(tmp_path, runtime, skill_servers=policy) as conversation:
        conversation.run("go")
        assert offered(conversation) == ["finish", "odd__echo", "odd__env"]
        [approval] = conversation.approvals
        assert isinstance(approval.scope, StartServers)
        assert approval.by in {"skill_servers=allow", "callback"}


@pytest.mark.parametrize("said", [False, None, 1, "yes"])
def test_callback_that_does_not_say_true_starts_nothing(
    tmp_path: Path, runtime: Runtime, work: Path, said: Any
) -> None:
    seen: list[ProposedServers] = []

    def ask(proposed: ProposedServers) -> Any:
        seen.append(proposed)
        return said

    with converse(tmp_path, runtime, skill_servers=ask) as conversation:
        conversation.run("go")
        conversation.run("again")
        assert [one.name for one in seen[0].servers] == ["odd"]
        assert (len(seen), conversation.approvals) == (1, [])
    assert not (work / MARK).exists()


def test_callback_that_fails_ends_the_run_and_starts_nothing(tmp_path: Path, runtime: Runtime, work: Path) -> None:
    def ask(_: ProposedServers) -> bool:
        raise LookupError("no window")

    with converse(tmp_path, runtime, skill_servers=ask) as conversation:
        assert conversation.run("go") == Status.ERROR
        assert "no window" in str(conversation.error)
    assert not (work / MARK).exists()


def test_callback_is_asked_in_the_runs_thread(tmp_path: Path, runtime: Runtime) -> None:
    threads: list[threading.Thread] = []
    options: dict[str, Any] = {"skill_servers": lambda _: threads.append(threading.current_thread())}
    with converse(tmp_path, runtime, **options) as conversation:
        assert threads == []
        conversation.run("go")
    assert threads[0] is not threading.current_thread()


def test_never_does_not_even_look(tmp_path: Path) -> None:
    class Unread(RecordingRuntime):
        def list_dir(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("looked")

    with converse(tmp_path, Unread(), settings=Settings(skill_servers="never"), limits=None) as conversation:
        assert conversation.run("go") == Status.IDLE
        assert (conversation.pending_servers, notices(conversation)) == (None, [])


def test_setting_counts_where_the_parameter_is_not_given(tmp_path: Path, runtime: Runtime) -> None:
    with converse(tmp_path, runtime, settings=Settings(skill_servers="allow")) as conversation:
        conversation.run("go")
        assert "odd__echo" in offered(conversation)
    with converse(
        tmp_path, runtime, settings=Settings(skill_servers="allow"), skill_servers="ask", conversation_id="two"
    ) as conversation:
        conversation.run("go")
        assert "odd__echo" not in offered(conversation)


@pytest.mark.parametrize("wrong", ["yes", True, 1, ["ask"]])
def test_wrong_policy_is_refused_on_entry(wrong: Any) -> None:
    with pytest.raises(UsageError, match="skill_servers="):
        Conversation(skill_servers=wrong)


# --- resuming -----------------------------------------------------------------------------------------


def _approved(tmp_path: Path, runtime: Runtime) -> None:
    with converse(tmp_path, runtime) as conversation:
        assert conversation.pending_servers is not None
        conversation.approve(conversation.pending_servers.scope)
        conversation.run("go")


def test_resumed_conversation_starts_what_was_allowed_and_asks_nobody(tmp_path: Path, runtime: Runtime) -> None:
    _approved(tmp_path, runtime)

    def ask(_: ProposedServers) -> bool:
        raise AssertionError("asked")

    with converse(tmp_path, runtime, skill_servers=ask) as conversation:
        conversation.run("and now")
        assert "odd__echo" in offered(conversation)


@pytest.mark.parametrize(
    "changed",
    [{"odd": entry("grown")}, {"odd": entry(env={"A": "b"})}, {"odd": entry(), "more": entry()}, {"other": entry()}],
    ids=["arguments", "a variable", "one more", "a name"],
)
def test_changed_definition_asks_again(tmp_path: Path, runtime: Runtime, work: Path, changed: Any) -> None:
    _approved(tmp_path, runtime)
    (work / MARK).unlink()
    bring(work, **changed)
    with converse(tmp_path, runtime) as conversation:
        assert conversation.pending_servers is not None
        conversation.run("and now")
        assert offered(conversation) == ["finish"]
    assert not (work / MARK).exists()


def test_other_conversation_and_other_directory_ask_again(tmp_path: Path, runtime: Runtime, work: Path) -> None:
    _approved(tmp_path, runtime)
    with converse(tmp_path, runtime, conversation_id="two") as conversation:
        assert conversation.pending_servers is not None
    other = work.rename(tmp_path / "moved")
    with CLIRuntime(other, bubblewrap=False, quiet=True) as moved, converse(tmp_path, moved) as conversation:
        assert conversation.pending_servers is not None


def test_approval_in_a_container_is_none_for_this_machine(tmp_path: Path, runtime: Runtime) -> None:
    class Contained(CLIRuntime):
        isolated = True

    with Contained(runtime.workdir, bubblewrap=False, quiet=True) as contained:
        _approved(tmp_path, contained)
    with converse(tmp_path, runtime) as conversation:
        assert conversation.pending_servers is not None


def test_revoked_approval_ends_them_at_the_next_request_and_for_good(tmp_path: Path, runtime: Runtime) -> None:
    _approved(tmp_path, runtime)
    model = FakeModel(answer("one"), answer("", call("odd__echo", {"text": "hi"})))
    with converse(tmp_path, runtime, model) as conversation:
        conversation.run("go")
        assert "odd__echo" in offered(conversation)
        conversation.revoke(1)
        conversation.run("go on")
        assert offered(conversation) == ["finish"]
        assert "Unknown tool: odd__echo" in str(results_of(conversation)[0]["error"])
    with converse(tmp_path, runtime) as conversation:
        conversation.run("and now")
        assert offered(conversation) == ["finish"]


def test_approval_revoked_before_the_first_message_offers_nothing(tmp_path: Path, runtime: Runtime) -> None:
    _approved(tmp_path, runtime)
    with converse(tmp_path, runtime) as conversation:
        conversation.revoke(1)
        conversation.run("go")
        assert offered(conversation) == ["finish"]
        assert "are not started" in notices(conversation)[-1]


# --- what they cannot do ------------------------------------------------------------------------------


def test_variables_of_this_machine_and_of_other_servers_do_not_reach_them(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_TOKEN", "s3cret-of-the-person")
    configured = {"mcpServers": {"mine": entry(env={"T": "${TRACKER_TOKEN}"})}}
    model = FakeModel(answer("", call("odd__env"), call("mine__env")))
    with converse(tmp_path, runtime, model, mcp_config=configured, skill_servers="allow") as conversation:
        conversation.run("go")
        theirs, *_ = results_of(conversation)
        assert theirs["status"] == "ok"
        assert "TRACKER_TOKEN" not in str(theirs["output"])
        assert "s3cret" not in str(theirs["output"])


def test_their_tools_never_take_a_name_from_others(tmp_path: Path, runtime: Runtime, work: Path) -> None:
    bring(work, odd=entry(), mine=entry(), Execute_Bash=entry())
    configured = {"mcpServers": {"mine": entry(include=["echo"])}}
    with converse(tmp_path, runtime, mcp_config=configured, skill_servers="allow") as conversation:
        conversation.run("go")
        assert offered(conversation) == ["finish", "echo", "odd__echo", "odd__env"]
        *refused, started = notices(conversation)
        assert [sentence.partition(" in ")[0] for sentence in refused] == [
            "A skill's MCP server is not started. 'mine'", "A skill's MCP server is not started. 'Execute_Bash'",
        ]  # fmt: skip
        assert "start by approval 1: 'odd'" in started


def test_servers_that_run_already_get_no_company(tmp_path: Path, runtime: Runtime, work: Path) -> None:
    with (
        MCPServers(MCPConfig(), runtime) as lent,
        converse(tmp_path, runtime, mcp_config=lent, skill_servers="allow") as conversation,
    ):
        conversation.run("go")
        assert "run already and are their owner's" in notices(conversation)[0]
    assert not (work / MARK).exists()


def test_refused_definition_is_told_in_the_log(tmp_path: Path, runtime: Runtime, work: Path) -> None:
    bring(work, odd=entry(where="host"))
    with converse(tmp_path, runtime, skill_servers="allow") as conversation:
        conversation.run("go")
        [told] = notices(conversation)
        assert "asks to run on" in told
    assert not (work / MARK).exists()


@pytest.mark.docker
def test_url_does_not_reach_this_machine_from_a_sandbox_without_network(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as host:
        port = host.getsockname()[1]
        urls = [f"http://{name}:{port}/mcp" for name in ("127.0.0.1", "localhost", "0x7f000001", "172.17.0.1")]
        servers = {f"s{number}": {"url": url} for number, url in enumerate(urls)}
        text = f"---\nmcp_tools:\n  mcpServers: {json.dumps(servers)}\n---\n"
        with DockerRuntime(os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")) as sandbox:
            sandbox.write_bytes(".openhands/microagents/repo.md", text.encode())
            with converse(tmp_path, sandbox, skill_servers="allow") as conversation:
                conversation.run("go")
                told = [data["message"] for data in data_of(conversation.events(), "notice") if data["code"] == "MCP"]
        assert len([message for message in told if "cannot be reached" in message]) == len(urls), told
        host.settimeout(0)
        with pytest.raises(BlockingIOError):
            host.accept()
