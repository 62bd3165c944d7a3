"""`ConfirmationPolicy`: which calls a user must confirm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import only_reads
from ohsandbox.agent.held import Verdict
from ohsandbox.arguments import expect_method
from ohsandbox.conversation.approvals.analysis import (
    DEFAULT_WORKDIR,
    SecurityAnalyzer,
    conceals,
    level,
)
from ohsandbox.conversation.approvals.scopes import PendingCall
from ohsandbox.errors import UsageError
from ohsandbox.strict_json import load_json
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.agent import ActionEvent
    from ohsandbox.agent.held import ApprovalFilter

PolicyName = Literal["never", "always", "risky", "medium", "plan"]
POLICIES: tuple[PolicyName, ...] = ("never", "always", "risky", "medium", "plan")


_WORDS = frozenset({"thought", "question", "answer"})
"""Kinds of calls without effect."""
_HARMLESS = _WORDS | {"tasks"}
"""Kinds of calls that change only the agent's own plan."""


class ConfirmationPolicy(Protocol):
    """Decides by a call and its risk whether to ask. Many conversations may share one instance."""

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:
        """Whether the user must allow the call."""


class _NeverConfirm:
    """Never asks: every call runs at once."""

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:  # noqa: ARG002 - a signature
        """Return False."""
        return False


class _AlwaysConfirm:
    """Asks about every call, except `think`, `finish` and `ask_human`, which have no effect."""

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:  # noqa: ARG002 - a signature
        """Return True, except for calls without effect."""
        return call.hint.kind not in _WORDS


class ConfirmRisky:
    """Asks about calls of a minimum risk, and about calls of unknown risk unless the tool only reads."""

    def __init__(
        self, threshold: ActionSecurityRisk = ActionSecurityRisk.HIGH, *, confirm_unknown: bool = True
    ) -> None:
        """Ask about calls from threshold on and, if confirm_unknown is set, about calls of unknown risk.

        Raises:
            UsageError: threshold is UNKNOWN.
        """
        if threshold is ActionSecurityRisk.UNKNOWN:
            raise UsageError("The threshold cannot be UNKNOWN. Take LOW, MEDIUM or HIGH; see confirm_unknown.")
        self.threshold = threshold
        self.confirm_unknown = confirm_unknown

    def asks(self, call: ActionEvent, risk: ActionSecurityRisk) -> bool:
        """Decide by the risk; read-only tools have one if the address carries data, or the text hides characters."""
        if call.hint.kind in _WORDS:
            return False
        if risk is ActionSecurityRisk.UNKNOWN:
            return self.confirm_unknown and not (call.tool is not None and only_reads(call.tool, call.action))
        return level(risk) >= level(self.threshold)


class PlanMode(ConfirmRisky):
    """The agent may only read and must present a plan: calls that may change something are rejected without asking.

    These calls run: read-only tools, thoughts, questions and answers, the task list, and commands all of whose parts
    are known to write nothing. Risky ones among them ask as with `ConfirmRisky`. The model is told when the mode begins
    and ends.
    """

    def refusal(self, call: ActionEvent, *, workdir: str | None) -> str | None:
        """Return the model's result for a call that may not run; None if it may run."""
        if call.tool is None or only_reads(call.tool, call.action) or call.hint.kind in _HARMLESS:
            return None
        if call.hint.kind == "command":
            from ohsandbox.conversation.approvals.rules.looking import only_looks  # noqa: PLC0415 - a run that asks nobody loads no rules

            text = str(load_json(call.arguments).get(call.hint.subject, ""))
            if only_looks(text, workdir=workdir or DEFAULT_WORKDIR):
                return None
            return f"{_PLAN_REFUSAL} Of commands only those run that are known to write nothing: {_LOOKING}."
        return _PLAN_REFUSAL


_PLAN_REFUSAL = (
    "Not executed: the user has switched to plan mode, in which you only look. Read and search what you need, then "
    "answer with your plan, and change nothing until the user says so."
)
_LOOKING = "ls, cat, head, tail, grep, rg, find, wc, sed -n 1,20p, git status, git log, git diff and the like"
PLAN_BEGINS = (
    "The user has switched to plan mode. From now on you only look: read and search, change nothing, and end with a "
    "plan for the user to agree to, as your answer. Calls that may change something are refused."
)
PLAN_IS_OVER = "The user has left plan mode: you may change things again, as the user's messages say."


def policy_given(given: ConfirmationPolicy | str | None) -> ConfirmationPolicy | None:
    """Return a policy that is given as an object or by name.

    Raises:
        UsageError: it is not a policy, or no policy has that name.
    """
    if isinstance(given, str):
        return policy_of(given)
    expect_method("confirmation", given, "asks", "a ConfirmationPolicy or its name")
    return given


def policy_of(name: str) -> ConfirmationPolicy:
    """Create the policy of that name, with its defaults.

    Raises:
        UsageError: no policy has that name.
    """
    factories: dict[str, Callable[[], ConfirmationPolicy]] = {
        "never": _NeverConfirm,
        "always": _AlwaysConfirm,
        "risky": ConfirmRisky,
        "medium": lambda: ConfirmRisky(ActionSecurityRisk.MEDIUM),
        "plan": PlanMode,
    }
    if name not in factories:
        message = f"Unknown confirmation policy {name!r}. Take one of: {', '.join(factories)}."
        raise UsageError(message + did_you_mean(name, factories))
    return factories[name]()


def approval_filter_of(
    policy: ConfirmationPolicy,
    analyzer: SecurityAnalyzer | None = None,
    *,
    workdir: str | None = None,
    keeps_files: bool = True,
    approval_for: Callable[[PendingCall], int | None],
) -> ApprovalFilter | None:
    """Return a function that decides which calls of a response wait or are refused; None if all may run.

    Args:
        policy: decides which calls need the user.
        analyzer: None is `default_analyzer`.
        workdir: the workspace in the sandbox, for rules about paths.
        keeps_files: see `default_analyzer`.
        approval_for: returns the number of a standing approval that lets a call pass.
    """
    if isinstance(policy, _NeverConfirm):
        return None
    if (analysis := analyzer) is None:
        from ohsandbox.conversation.approvals.rules.analyzers import default_analyzer  # noqa: PLC0415 - a run that asks nobody loads no rules

        analysis = default_analyzer(workdir, keeps_files=keeps_files)

    def verdicts_for(planned: Sequence[ActionEvent]) -> Sequence[Verdict] | None:
        verdicts = [approved(call, judged(call)) for call in planned]
        return (
            verdicts
            if any(verdict.asks or verdict.refusal or verdict.approval is not None for verdict in verdicts)
            else None
        )

    def judged(call: ActionEvent) -> Verdict:
        if isinstance(policy, PlanMode) and (refusal := policy.refusal(call, workdir=workdir)):
            return Verdict(ActionSecurityRisk.LOW, ("Nothing would run.",), refusal=refusal)
        return _verdict(call, policy, analysis)

    def approved(call: ActionEvent, verdict: Verdict) -> Verdict:
        if not verdict.asks:
            return verdict
        arguments = load_json(call.arguments)
        waiting = PendingCall(call.tool_call_id, call.name, arguments, verdict.risk, verdict.why, call.hint)
        number = approval_for(waiting)
        return verdict._replace(asks=number is None, approval=number)

    return verdicts_for


def _verdict(call: ActionEvent, policy: ConfirmationPolicy, analyzer: SecurityAnalyzer) -> Verdict:
    """Return the verdict. Calls that cannot run never ask; if the analyzer fails, the risk is HIGH."""
    if call.refusal is not None:
        return Verdict(ActionSecurityRisk.LOW, ("Nothing would run.",))
    try:
        risk, why = analyzer.assess(call)
    except Exception as error:  # noqa: BLE001 - foreign code; a fault in it must let nothing pass
        risk, why = ActionSecurityRisk.HIGH, (f"The security analysis failed: {type(error).__name__}: {error}",)
    if hidden := conceals(call.name, load_json(call.arguments)):
        risk, why = ActionSecurityRisk.HIGH, (*hidden, *(why if risk is ActionSecurityRisk.HIGH else ()))
    return Verdict(risk, why, policy.asks(call, risk))
