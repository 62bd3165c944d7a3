"""`ConfirmationPolicy`: which calls a person must confirm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, Protocol

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import only_reads
from ohsandbox.agent.held import Verdict
from ohsandbox.arguments import expect_method
from ohsandbox.conversation.approvals.analysis import SecurityAnalyzer, conceals, default_analyzer, level
from ohsandbox.conversation.approvals.scopes import PendingCall
from ohsandbox.errors import UsageError
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.agent import ActionEvent
    from ohsandbox.agent.held import Screen

PolicyName = Literal["never", "always", "risky", "medium"]
POLICIES: tuple[PolicyName, ...] = ("never", "always", "risky", "medium")


_WORDS = frozenset({"thought", "question", "answer"})
"""Kinds of calls without an effect."""


class ConfirmationPolicy(Protocol):
    """Decides by a call and its risk. One instance may be used by many conversations."""

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:
        """Whether a person must allow the call."""


class NeverConfirm:
    """Everything runs at once."""

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:  # noqa: ARG002 - a signature
        """No."""
        return False


class AlwaysConfirm:
    """Every call asks, except `think`, `finish` and `ask_human`, which have no effect."""

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:  # noqa: ARG002 - a signature
        """Yes, except for actions without an effect."""
        return call.hint.kind not in _WORDS


class ConfirmRisky:
    """Calls ask from a threshold on, and calls of unknown risk, unless the tool only reads."""

    def __init__(
        self, threshold: ActionSecurityRisk = ActionSecurityRisk.HIGH, *, confirm_unknown: bool = True
    ) -> None:
        """Ask from threshold on, and where confirm_unknown about calls of which nobody knows anything.

        Raises:
            UsageError: threshold is UNKNOWN.
        """
        if threshold is ActionSecurityRisk.UNKNOWN:
            raise UsageError("The threshold cannot be UNKNOWN. Take LOW, MEDIUM or HIGH; see confirm_unknown.")
        self.threshold = threshold
        self.confirm_unknown = confirm_unknown

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:
        """By the risk; a tool that only reads has one where its address carries data, or its text hides characters."""
        if call.hint.kind in _WORDS:
            return False
        if risk is ActionSecurityRisk.UNKNOWN:
            return self.confirm_unknown and not (call.tool is not None and only_reads(call.tool, call.action))
        return level(risk) >= level(self.threshold)


def policy_given(given: ConfirmationPolicy | str | None) -> ConfirmationPolicy | None:
    """The policy that was given, itself or by name.

    Raises:
        UsageError: it is none, or there is none of that name.
    """
    if isinstance(given, str):
        return policy_of(given)
    expect_method("confirmation", given, "asks", "a ConfirmationPolicy or its name")
    return given


def policy_of(name: str) -> ConfirmationPolicy:
    """The policy of that name, with its defaults.

    Raises:
        UsageError: there is none.
    """
    made: dict[str, Callable[[], ConfirmationPolicy]] = {
        "never": NeverConfirm,
        "always": AlwaysConfirm,
        "risky": ConfirmRisky,
        "medium": lambda: ConfirmRisky(ActionSecurityRisk.MEDIUM),
    }
    if name not in made:
        told = f"Unknown confirmation policy {name!r}. Take one of: {', '.join(made)}."
        raise UsageError(told + did_you_mean(name, made))
    return made[name]()


def approval_filter_of(
    policy: ConfirmationPolicy,
    analyzer: SecurityAnalyzer | None = None,
    *,
    workdir: str | None = None,
    approval_for: Callable[[PendingCall], int | None],
) -> Screen | None:
    """A function that decides which calls of a response wait for a person; None under a policy that never asks.

    Args:
        policy: decides.
        analyzer: None is `default_analyzer`.
        workdir: the workspace in the sandbox, for rules about paths.
        approval_for: the number of a standing approval that lets a call pass.
    """
    if isinstance(policy, NeverConfirm):
        return None
    analysis = analyzer or default_analyzer(workdir)

    def screen(planned: Sequence[ActionEvent]) -> Sequence[Verdict] | None:
        verdicts = [approved(call, _verdict(call, policy, analysis)) for call in planned]
        return verdicts if any(verdict.asks or verdict.approval is not None for verdict in verdicts) else None

    def approved(call: ActionEvent, verdict: Verdict) -> Verdict:
        if not verdict.asks:
            return verdict
        arguments = json.loads(call.arguments)
        waiting = PendingCall(call.tool_call_id, call.name, arguments, verdict.risk, verdict.why, call.hint)
        number = approval_for(waiting)
        return verdict._replace(asks=number is None, approval=number)

    return screen


def _verdict(call: ActionEvent, policy: ConfirmationPolicy, analyzer: SecurityAnalyzer) -> Verdict:
    """The verdict; what would not run anyway never asks, and an analyser that fails counts as the highest risk."""
    if call.refusal is not None:
        return Verdict(ActionSecurityRisk.LOW, ("Nothing would run.",))
    try:
        risk, why = analyzer.assess(call)
    except Exception as error:  # noqa: BLE001 - foreign code; a fault in it must let nothing pass
        risk, why = ActionSecurityRisk.HIGH, (f"The security analysis failed: {type(error).__name__}: {error}",)
    if hidden := conceals(call.name, json.loads(call.arguments)):
        risk, why = ActionSecurityRisk.HIGH, (*hidden, *(why if risk is ActionSecurityRisk.HIGH else ()))
    return Verdict(risk, why, policy.asks(call, risk))
