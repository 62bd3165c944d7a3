"""The risk of a call: by what its tool says of itself, by the model's word, and by our rules on its arguments."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
from mcp_types import Tool

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import ActionEvent, ToolCallMetadata
from ohsandbox.conversation.approvals.policy import policy_of
from ohsandbox.conversation.approvals.rules.analyzers import default_analyzer
from ohsandbox.mcp import MCPConfig
from ohsandbox.mcp.definition import MCPToolAction, MCPToolDefinition, listed_tool
from ohsandbox.schema import Action
from ohsandbox.tool import CallHint, ToolDefinition
from tests.fakes import answer

NAMES = ("readOnlyHint", "destructiveHint", "openWorldHint")
DANGERS = NAMES[1:]
HINTS: list[dict[str, bool]] = [
    {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}
    for values in itertools.product((None, True, False), repeat=3)
]
WORDS = [None, *ActionSecurityRisk]
POLICIES = ["risky", "medium", "always"]


def mcp_call(
    hints: dict[str, bool], *, trusted: bool = False, word: ActionSecurityRisk | None = None, name: str = "t"
) -> ActionEvent:
    listed = listed_tool(
        "s", Tool.model_validate({"name": "t", "inputSchema": {"type": "object"}, "annotations": hints})
    )
    [tool] = MCPToolDefinition.create("s", listed, cast("Any", None), name=name, trusted=trusted)
    metadata = ToolCallMetadata("1", name, "r", 0, 1)
    return ActionEvent(answer(""), metadata, tool, MCPToolAction(), security_risk=word)


def asks(call: ActionEvent, policy: str = "risky") -> bool:
    return policy_of(policy).asks(call, default_analyzer().assess(call).risk)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_hint_of_a_server_that_nobody_trusts_lowers_anything(policy: str) -> None:
    for hints, word in itertools.product(HINTS, WORDS):
        assert asks(mcp_call(hints, word=word), policy), (hints, word)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_declared_danger_is_never_safer_than_silence(policy: str, trusted: bool) -> None:  # noqa: FBT001 - a column
    for hints, danger in itertools.product(HINTS, DANGERS):
        silent = {name: value for name, value in hints.items() if name != danger}
        declared = {**silent, danger: True}
        assert asks(mcp_call(declared, trusted=trusted), policy) >= asks(mcp_call(silent, trusted=trusted), policy)


@pytest.mark.parametrize("trusted", [False, True])
def test_what_says_that_it_destroys_asks_under_risky(trusted: bool) -> None:  # noqa: FBT001 - a column
    for hints in HINTS:
        assert asks(mcp_call({**hints, "destructiveHint": True}, trusted=trusted))


def test_a_trusted_server_is_believed_that_a_tool_only_reads() -> None:
    assert not asks(mcp_call({"readOnlyHint": True}, trusted=True))
    assert not asks(mcp_call({"destructiveHint": False, "openWorldHint": False}, trusted=True))
    assert asks(mcp_call({}, trusted=True))


@pytest.mark.parametrize("trusted", [True, False])
def test_files_are_not_kept_before_a_reading_tool_of_a_trusted_server_and_are_before_any_others(
    *, trusted: bool
) -> None:
    call = mcp_call({"readOnlyHint": True}, trusted=trusted)
    assert call.tool is not None
    assert call.tool.call_hint({}).writes is not trusted


class Saved(Action):
    path: str


@pytest.mark.parametrize("path", ["/workspace/a", "/workspace/.git/a", "/workspace/.gitmodules", "/etc/a"])
def test_a_path_with_a_fault_is_no_safer_than_one_without(path: str) -> None:
    tool = ToolDefinition(name="save", description="d", action_type=Saved, executor=cast("Any", None))
    assert asks(ActionEvent(answer(""), ToolCallMetadata("1", "save", "r", 0, 1), tool, Saved(path=path)))


class Ran(Action):
    line: str


@pytest.mark.parametrize(("line", "risk"), [("ls", "LOW"), ("curl x", "MEDIUM"), ("rm -rf /", "HIGH")])
def test_a_plug_in_tool_that_takes_commands_is_rated_by_what_they_do(line: str, risk: str) -> None:
    hint = CallHint(kind="command", subject="line")
    tool: ToolDefinition[Ran, Any] = ToolDefinition(name="remote", description="d", action_type=Ran, hint=hint)
    call = ActionEvent(answer(""), ToolCallMetadata("1", "remote", "r", 0, 1), tool, Ran(line=line))
    assert default_analyzer().assess(call).risk is ActionSecurityRisk(risk)


def test_trust_is_the_persons_word_in_the_configuration() -> None:
    servers = MCPConfig.parse({"mcpServers": {"a": {"command": "a"}, "b": {"command": "b", "trusted": True}}}).servers
    assert (servers["a"].trusted, servers["b"].trusted) == (False, True)
    assert servers["b"].identity == servers["b"].model_copy(update={"trusted": False}).identity


@pytest.mark.parametrize("name", ["delegate", "delegate_to_browsing_agent", "execute_bash", "file_write", "web_read"])
def test_a_servers_tool_by_the_name_of_one_of_ours_is_the_servers(name: str) -> None:
    for hints in HINTS:
        assert asks(mcp_call(hints, name=name)), hints


def test_the_models_word_only_raises() -> None:
    order = [ActionSecurityRisk.LOW, ActionSecurityRisk.MEDIUM, ActionSecurityRisk.HIGH]
    analyzer = default_analyzer()
    for hints, trusted in itertools.product(HINTS, [False, True]):
        silent = analyzer.assess(mcp_call(hints, trusted=trusted)).risk
        for word in order:
            risk = analyzer.assess(mcp_call(hints, trusted=trusted, word=word)).risk
            if silent is ActionSecurityRisk.UNKNOWN:
                assert risk in {ActionSecurityRisk.UNKNOWN, ActionSecurityRisk.HIGH}
            else:
                assert order.index(risk) == max(order.index(silent), order.index(word))
