"""Servers through their life, in a container and on this machine."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.content import ImageContent
from ohsandbox.errors import ToolArgumentsError
from ohsandbox.mcp import (
    MCPAction,
    MCPConfig,
    MCPConfigError,
    MCPError,
    MCPServerGoneError,
    MCPServers,
    MCPTimeoutError,
    ServerConfig,
    ServerState,
)
from ohsandbox.schema import text_of
from tests.mcp.conftest import OURS, Servers, call, observe, odd, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime


def test_a_tool_is_called_with_its_arguments(servers: Servers) -> None:
    assert call(servers.odd(), "echo", text="naïve 漢字\n$(x) 'y'") == "naïve 漢字\n$(x) 'y'"


def test_numbers_written_as_text_reach_the_server_as_numbers(servers: Servers) -> None:
    assert len(call(servers.odd(), "big", bytes="20")) == 20


def test_wrong_arguments_never_reach_the_server(servers: Servers) -> None:
    (tool,) = (one for one in servers.odd().tools() if one.name == "big")
    with pytest.raises(ToolArgumentsError, match="bytes"):
        tool.action_from_arguments({"bytes": "many"})


def test_a_result_keeps_its_parts(servers: Servers) -> None:
    observation = observe(servers.odd(), "rich")
    shown = [part if isinstance(part, ImageContent) else part.text for part in observation.content]
    assert shown[0] == "words red "
    assert isinstance(shown[1], ImageContent)
    assert [str(part)[:12] for part in shown[2:]] == [
        "[image, imag", "[audio, audi", "[resource fi", "[resource fi", "[link to a r", '{"answer": 4',
    ]  # fmt: skip
    assert "inside a" in str(shown[4])
    assert observation.structured == {"answer": 42}


def test_a_tools_own_error_is_a_result(servers: Servers) -> None:
    observation = observe(servers.odd(), "wrong")
    assert observation.is_error
    assert "execute_bash" in str(observation.to_llm_content[0])


def test_a_server_has_its_own_variables_and_no_other_of_the_host(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHERS_KEY", "not-for-you")
    started = servers(
        {"odd": odd(env={"MINE": "${TOKEN}", "B": "${NOPE:-fallback}"})}, variables={"TOKEN": "a-long-secret"}
    )
    found = json.loads(call(started, "env"))
    assert "OTHERS_KEY" not in found
    assert "not-for-you" not in found.values()
    assert found["B"] == "fallback"
    assert found["MINE"] == "[value of TOKEN]"  # it has the value; who reads its answer has not


def test_cwd_is_where_it_starts(servers: Servers, sandbox: Runtime) -> None:
    started = servers({"odd": {"command": "python3", "args": [f"{sandbox.workdir}/odd.py"], "cwd": "/usr"}})
    assert call(started, "where") == "/usr"


def test_progress_and_logs_are_told(servers: Servers) -> None:
    started = servers.odd()
    assert call(started, "progress") == "done"
    assert started.last_progress("odd", "progress") == "0 of 3 step 0\n1 of 3 step 1\n2 of 3 step 2"
    told = [event.message for event in servers.events if event.kind in ("progress", "log")]
    assert told[:3] == ["progress: 0 of 3 step 0", "progress: 1 of 3 step 1", "progress: 2 of 3 step 2"]
    assert "info: logged red" in told


def test_requests_of_a_server_are_refused(servers: Servers) -> None:
    told = json.loads(call(servers.odd(), "ask"))
    assert told["0 sampling/createMessage"] == told["1 roots/list"] == told["2 elicitation/create"] == -32601
    assert told["4 made/up"] == -32601
    assert told["3 elicitation/create"] < 0
    assert told["5 ping"] == "answered"


def test_a_call_that_takes_too_long_is_cancelled(servers: Servers) -> None:
    started = servers({"odd": odd(timeout=0.3)})
    with pytest.raises(MCPTimeoutError, match=r"'odd' did not .* within 0.3 s"):
        call(started, "sleep", seconds=20)
    assert len(json.loads(call(started, "cancelled"))) == 1


def test_interrupting_a_call_tells_the_server(servers: Servers) -> None:
    started = servers.odd()
    sleep = next(tool for tool in started.tools() if tool.name == "sleep")
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            sleep(sleep.action_from_arguments({"seconds": 60}))
        except MCPError as error:
            failed.append(error)

    sleeper = threading.Thread(target=wait)
    sleeper.start()
    time.sleep(0.2)
    sleep.interrupt()
    sleeper.join(5)
    assert "interrupted" in str(failed[0])
    assert len(json.loads(call(started, "cancelled"))) == 1


def test_one_malformed_tool_is_left_out_and_no_other(servers: Servers) -> None:
    started = servers({"odd": odd("malformed", include=["echo", "odd_schema", "nothing"])})
    assert {tool.name for tool in started.tools()} == {"echo", "nothing"}
    refused = started.status()[0].refused
    assert "not of type object" in refused["odd_schema"]
    assert "(no name)" in refused


def test_a_schema_without_a_type_is_that_of_an_object(servers: Servers) -> None:
    started = servers({"odd": odd("brief")})
    assert [tool.name for tool in started.tools()] == ["echo", "env", "nothing", "pid", "where"]
    assert started.status()[0].refused == {}
    assert call(started, "echo", text="x") == "x"
    assert call(started, "pid").isdigit()


def test_an_unknown_part_of_a_result_is_told_and_the_others_are_shown(servers: Servers) -> None:
    result = observe(servers.odd(), "parts")
    texts = text_of(result).split("\n")
    assert (texts[0], texts[4:], result.is_error) == ("before", ["after", '{"result": ["a", 1]}'], False)
    assert texts[1] == "[content of type 'video', 33 characters: left out, not as MCP defines it]"
    assert "'image'" in texts[2]
    assert "'str'" in texts[3]


def test_an_empty_object_is_an_empty_result(servers: Servers) -> None:
    assert call(servers.odd(), "blank") == "[blank returned nothing.]"


def test_a_name_stays_with_its_tool_whichever_servers_come_and_go(servers: Servers) -> None:
    started = servers({"first": odd(include=["pid"]), "second": odd(include=["extra", "grow"])})
    (tool,) = (one for one in started.tools() if one.name == "pid")
    assert tool.server == "first"
    offer = started._servers["second"].filter
    all_tools = offer._resolved.config.model_copy(update={"include": ("*",)})
    offer._resolved = offer._resolved._replace(config=all_tools)
    call(started, "grow")
    until(servers, "tools_changed")
    names = {one.name: one.server for one in started.tools()}
    assert names["pid"] == "first"
    assert names["second__pid"] == "second"


@pytest.mark.slow
def test_what_a_server_prints_while_it_starts_is_told_and_gives_it_time(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.mcp.config.INITIALIZE_S", 2.0)
    slow = "for n in 1 2 3 4 5; do echo fetching $n >&2; sleep 0.6; done; exec python3 -u odd.py"
    silent = "sleep 20; exec python3 -u odd.py"
    started = servers(
        {"slow": {"command": "sh", "args": ["-c", slow]}, "silent": {"command": "sh", "args": ["-c", silent]}}
    )
    assert {tool.server for tool in started.tools()} == {"slow"}
    told = [event.message for event in servers.events if event.kind == "status"]
    assert [f"fetching {number}" for number in range(1, 6)] == told


@pytest.mark.slow
def test_two_hundred_calls_at_once_over_four_servers(servers: Servers) -> None:
    started = servers({f"s{number}": odd() for number in range(4)})
    tools = [tool for tool in started.tools() if tool.listed.name == "echo"]
    answers: dict[int, str] = {}

    def one(number: int) -> None:
        tool = tools[number % 4]
        observation = tool(tool.action_from_arguments({"text": f"{number}"}))
        answers[number] = observation.to_llm_content[0].text  # type: ignore[union-attr]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}" for number in range(200)}


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_server_that_is_stopped_ends_for_good_and_others_go_on(servers: Servers, *, is_ready: bool) -> None:
    ours = servers({"gone": odd(include=["echo"]), "stays": odd(include=["pid"])}, foreign=["gone"])
    if is_ready:
        assert call(ours, "gone__echo", text="hi") == "hi"
    ours.stop(["gone", "unknown"])
    ours.wait()
    assert [tool.name for tool in ours.tools()] == ["pid"]
    with pytest.raises(MCPServerGoneError, match="'gone' was closed"):
        ours.call("gone", "echo", {"text": "hi"})
    assert call(ours, "pid")
    assert {one.name: one.state for one in ours.status()} == {"gone": ServerState.CLOSED, "stays": ServerState.READY}


def test_tools_of_a_foreign_server_always_have_its_name_and_get_no_variable(servers: Servers) -> None:
    entries = {name: odd(include=["env"], env={"MINE": "${SOME}"}) for name in ("theirs", "ours")}
    both = servers(entries, foreign=["theirs"], variables={"SOME": "of the person"})
    both.wait()
    assert sorted(tool.name for tool in both.tools()) == ["env", "theirs__env"]
    assert json.loads(call(both, "env"))["MINE"] == "[value of SOME]"
    assert json.loads(call(both, "theirs__env"))["MINE"] == "${SOME}"


def test_same_names_get_their_servers_before_them(servers: Servers) -> None:
    started = servers({"one": odd(include=["echo", "pid"]), "two": odd(include=["echo"])}, reserved=["pid"])
    assert [tool.name for tool in started.tools()] == ["one__echo", "one__pid", "two__echo"]
    assert call(started, "one__echo", text="x") == "x"
    assert [tool.name for tool in servers.odd().tools(reserved=["pid", "echo"])][:2] == ["odd__echo", "nothing"]


@pytest.mark.parametrize("other", [{}, {"disabled": True}], ids=["ready", "disabled"])
def test_a_server_does_not_take_a_name_of_another_servers_tools(servers: Servers, other: dict[str, Any]) -> None:
    for of_other in ({}, {"other": odd(include=["echo"], **other)}):  # which is added later
        started = servers({"poses": odd("posing"), **of_other})
        assert call(started, "poses__other__echo") == "of the server that poses"
        assert "other__echo" not in {name for tool in started.tools() if tool.server == "poses"
                                     for name in (tool.name, *tool.aliases)}  # fmt: skip
    if not other:
        assert call(started, "other__echo", text="of the server other") == "of the server other"


@pytest.mark.parametrize(
    ("names", "fact"),
    [
        (["a__b"], "'a__b' is not 1 to 40 letters and digits"),
        (["a-"], "with single `_`, `-` or `.` between them. Rename it."),
        (["g\u0131thub"], "'g\u0131thub' is not"),
        (["a\u200bb"], "Rename it"),
        (["github", "GitHub"], "'github' and 'GitHub' differ only in case or in `_`, `-` and `.`. Rename one."),
        (["a.b", "a_b"], "'a.b' and 'a_b' differ only"),
    ],
)
def test_servers_whose_names_would_be_confused_are_refused_however_they_come(names: list[str], fact: str) -> None:
    entry = ServerConfig(url="http://localhost:1/mcp")
    with pytest.raises(MCPConfigError) as caught:
        MCPConfig.parse({"mcpServers": {name: {"url": entry.url} for name in names}})
    assert fact in str(caught.value)
    with pytest.raises(MCPConfigError) as caught:
        MCPServers(MCPConfig(servers=dict.fromkeys(names, entry)), None)
    assert fact in str(caught.value)


def test_a_lone_name_stays_and_answers_to_the_long_one_too(servers: Servers) -> None:
    started = servers({"odd": odd(include=["e*"], exclude=["env", "endless"])})
    (tool,) = started.tools()
    assert (tool.name, tool.aliases) == ("echo", ("odd__echo",))
    assert started.call_tool_mcp(MCPAction(name="odd__echo", arguments={"text": "y"})).content[0].text == "y"  # type: ignore[union-attr]
    with pytest.raises(MCPError, match="Unknown tool: nope"):
        started.call_tool_mcp(MCPAction(name="nope"))


def test_a_trusted_server_is_believed_which_tools_only_read(servers: Servers) -> None:
    started = servers({"odd": odd(include=["echo", "sleep"], trusted=True)})
    offered = {tool.name: tool.to_openai_tool()["function"]["parameters"]["properties"] for tool in started.tools()}
    assert "security_risk" in offered["sleep"]
    assert "security_risk" not in offered["echo"]


def test_what_the_model_is_offered(servers: Servers) -> None:
    tools = {tool.name: tool.to_openai_tool()["function"] for tool in servers.odd().tools()}
    assert "security_risk" in tools["sleep"]["parameters"]["properties"]
    assert "security_risk" in tools["echo"]["parameters"]["properties"]  # it says itself that it only reads
    assert tools["echo"]["parameters"]["properties"]["text"] == {"type": "string"}
    assert tools["echo"]["description"].startswith("Does echo.\n(Described by the MCP server 'odd'")


# --- a server that ends -------------------------------------------------------------------------


def test_a_server_that_dies_says_why_and_is_started_again(servers: Servers) -> None:
    started = servers.odd()
    first = call(started, "pid")
    with pytest.raises(MCPServerGoneError) as died:
        call(started, "die", code=7)
    assert "exit code 7" in str(died.value)
    assert "out of luck" in str(died.value)
    assert "\x1b" not in str(died.value)
    assert "restart 1 of 3" in str(died.value)
    assert call(started, "pid") != first
    assert servers.kinds().count("restarted") == 1


def test_a_call_in_flight_fails_when_its_server_dies(servers: Servers) -> None:
    started = servers.odd()
    pid = call(started, "pid")
    failed: list[BaseException] = []

    def sleep() -> None:
        try:
            call(started, "sleep", seconds=60)
        except MCPServerGoneError as error:
            failed.append(error)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    time.sleep(0.2)
    servers.runtime.run(["sh", "-c", f"kill -9 {pid}"])
    sleeper.join(5)
    assert "exit code 137" in str(failed[0])


def test_a_server_that_dies_is_noticed_though_its_child_holds_its_streams(servers: Servers) -> None:
    started = servers.odd()
    with pytest.raises(MCPServerGoneError, match="exit code 5"):
        call(started, "orphan")
    assert call(started, "echo", text="back") == "back"


def test_a_server_that_keeps_dying_is_switched_off(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.mcp.server.BACK_OFF_S", (0, 0, 0))
    started = servers({"odd": odd(), "other": odd()})
    for _ in range(4):
        with pytest.raises(MCPServerGoneError):
            call(started, "odd__die")
    with pytest.raises(MCPServerGoneError, match="switched off"):
        started.call("odd", "pid", {})
    assert "odd__pid" not in [tool.name for tool in started.tools()]
    assert started.status()[0].state is ServerState.OFF
    assert "switched off" in started.missing()
    assert call(started, "other__echo", text="on") == "on"


def test_an_answer_without_a_newline_before_the_end_counts(servers: Servers) -> None:
    assert call(servers.odd(), "half_line") == "no newline"


@pytest.mark.docker
def test_an_agent_that_kills_everything_has_its_servers_back(servers: Servers) -> None:
    if not servers.runtime.private_processes:
        pytest.skip("on this machine it would be everything of the person who runs the tests")
    started = servers.odd()
    first = call(started, "pid")
    servers.runtime.execute("kill -9 -1", timeout_s=10)
    assert servers.runtime.execute("echo back").output.strip() == "back"
    assert call(started, "pid") != first


def test_what_a_server_started_ends_with_it(servers: Servers) -> None:
    call(servers.odd("stays"), "spawn")
    assert servers.runtime.run(["sh", "-c", OURS]).stdout != b""
    servers.close()
    assert servers.runtime.run(["sh", "-c", OURS]).stdout == b""


SHELL_SERVER = """
sleep 7004 & setsid sleep 7005 & env -i setsid sleep 7006 &
while read -r line; do case $line in
  *'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{},'\\
'"serverInfo":{"name":"sh","version":"1"}}}';;
  *tools/list*) echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"hi","inputSchema":{"type":"object"}}]}}';;
  *tools/call*) echo '{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"from a shell"}]}}';;
esac; done
"""


@pytest.mark.docker
def test_a_server_on_busybox(started: Callable[[str], Runtime]) -> None:
    sandbox = started("busybox")
    servers = Servers(sandbox)
    assert call(servers({"sh": {"command": "sh", "args": ["-c", SHELL_SERVER]}}), "hi") == "from a shell"
    servers.close()
    listed = sandbox.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert b"sleep 70" not in listed


@pytest.mark.docker
def test_a_server_as_another_user(started: Callable[[str], Runtime]) -> None:
    sandbox = started("debian")
    servers = Servers(sandbox)
    up = servers({"odd": odd(user="65534")})
    pid = call(up, "pid")
    assert sandbox.run(["stat", "-c", "%u", f"/proc/{pid}"]).stdout == b"65534\n"
    servers.close()
    assert sandbox.run(["test", "-e", f"/proc/{pid}"]).exit_code == 1


def test_closing_ends_a_call_in_flight(servers: Servers) -> None:
    started = servers.odd()
    failed: list[BaseException] = []

    def sleep() -> None:
        try:
            call(started, "sleep", seconds=60)
        except MCPError as error:
            failed.append(error)

    sleeper = threading.Thread(target=sleep)
    started.wait()
    sleeper.start()
    time.sleep(0.2)
    started.close()
    sleeper.join(5)
    assert failed
    with pytest.raises(MCPServerGoneError, match="closed"):
        started.call("odd", "echo", {})


def test_closing_while_a_server_is_started_again(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.mcp.server.BACK_OFF_S", (0.3, 0, 0))
    started = servers.odd()
    with pytest.raises(MCPServerGoneError):
        call(started, "die")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(started.call, "odd", "pid", {})
        time.sleep(0.1)
        started.close()
        with pytest.raises(MCPServerGoneError, match="closed during the call"):
            waiting.result(5)  # the fixture looks for what is left


def test_closing_while_servers_start(servers: Servers) -> None:
    servers({"deaf": odd("deaf"), "slow": odd("slow")}).close()
    assert servers.runtime.run(["sh", "-c", OURS]).stdout == b""


# --- servers that do not come up ----------------------------------------------------------------


def test_one_bad_server_takes_nothing_from_the_others(servers: Servers) -> None:
    started = servers(
        {
            "missing": {"command": "no-such-program", "args": ["--x"]},
            "dies": odd("dies"),
            "away": {"command": "python3", "cwd": "/no/such/place"},
            "off": odd(disabled=True),
            "good": odd(),
        }
    )
    assert call(started, "echo", text="fine") == "fine"
    states = {one.name: (one.state, one.reason) for one in started.status()}
    assert states["missing"][0] is states["dies"][0] is states["away"][0] is ServerState.FAILED
    assert "'no-such-program' was not found" in states["missing"][1]
    assert "exit code 4" in states["dies"][1]
    assert "no licence" in states["dies"][1]
    assert "/no/such/place" in states["away"][1]
    assert states["off"][0] is ServerState.DISABLED
    assert "'dies' is failed" in started.missing()
    assert "off" not in started.missing()


def test_a_server_that_never_answers_is_left_out(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.mcp.config.INITIALIZE_S", 1.0)
    started = servers({"deaf": odd("deaf"), "good": odd()})
    assert {tool.server for tool in started.tools()} == {"good"}
    assert "printed nothing for 1 s and did not answer" in started.status()[0].reason


def test_a_deadline_leaves_out_who_still_starts(servers: Servers) -> None:
    started = servers({"slow": odd("slow"), "good": odd(include=["echo"])})
    started.wait()
    assert {tool.server for tool in started.tools(timeout_s=0.01)} == {"slow", "good"}
    later = servers({"deaf": odd("deaf")})
    assert later.tools(timeout_s=0.01) == []
    assert later.status()[0].state in (ServerState.WAITING, ServerState.STARTING)


def test_four_slow_servers_start_at_the_same_time(servers: Servers) -> None:
    """Each takes a second to answer: all four are starting while none has answered."""
    four = servers({f"s{number}": odd("slow", include=["echo"]) for number in range(4)})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(four.tools)
        while {one.state for one in four.status()} != {ServerState.STARTING}:
            assert not waiting.done()
            time.sleep(0.01)
        assert len(waiting.result()) == 4


@pytest.mark.docker
def test_a_download_without_a_network_is_told_with_the_remedy(started: Callable[[str], Runtime]) -> None:
    entry = {"command": "sh", "args": ["-c", "echo cannot resolve >&2; exit 1"]}
    with MCPServers(MCPConfig.parse({"mcpServers": {"far": entry}}), started("debian")) as made:
        made.wait()
        assert "cannot resolve The sandbox has no network" in made.missing()
        assert "--allow packages" in made.missing()
