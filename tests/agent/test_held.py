"""Calls that are held back, as read from a log that somebody may have damaged."""

from types import SimpleNamespace
from typing import Any

import pytest

from ohsandbox.agent.held import HeldCalls


def held_under_approval(number: int, *, arguments: object = "{}") -> HeldCalls:
    held: Any = {"risk": "LOW", "why": [], "asks": False, "only_reads": False}
    call = {"tool_call_id": "c", "name": "execute_bash", "arguments": arguments, "held": held, "approval": number}
    calls = HeldCalls()
    calls.add(SimpleNamespace(type="tool_call", data=call))  # type: ignore[arg-type]
    return calls


@pytest.mark.parametrize("data", [{"number": 1}, {"number": "1"}, {}], ids=["its number", "no number", "nothing"])
def test_a_call_waits_again_once_its_approval_is_revoked(data: dict[str, Any]) -> None:
    calls = held_under_approval(1)
    assert calls.waiting == []
    calls.add(SimpleNamespace(type="approval_revoked", data=data))  # type: ignore[arg-type]
    assert [call.tool_call_id for call in calls.waiting] == ["c"]


def test_another_approvals_end_holds_nothing_back() -> None:
    calls = held_under_approval(1)
    calls.add(SimpleNamespace(type="approval_revoked", data={"number": 2}))  # type: ignore[arg-type]
    assert calls.waiting == []


@pytest.mark.parametrize("arguments", ['{"command": "ls"', "[]", {"command": "ls"}])
def test_a_call_whose_arguments_are_no_json_object_never_runs(arguments: object) -> None:
    [call] = held_under_approval(1, arguments=arguments).all
    assert call.arguments == "{}"
    assert "as a JSON object" in str(call.refusal)
