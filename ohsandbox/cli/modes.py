"""The modes of a session: what is asked before it runs, in a person's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.conversation.approvals.policy import PolicyName


class Mode(NamedTuple):
    """How a policy is told."""

    short: str
    """For the bottom line."""
    asks: str
    """Behind "asks about"."""
    told: str
    """When it has begun."""


MODES: dict[PolicyName, Mode] = {
    "never": Mode("asks nothing", "nothing before it runs", "nothing is asked before it runs"),
    "risky": Mode("asks risky", "risky calls", "risky calls are asked about before they run"),
    "medium": Mode(
        "asks unknown", "risky calls, and what no rule can judge", "risky calls, and what no rule can judge, are asked"
    ),
    "always": Mode("asks all", "every call", "every call is asked about before it runs"),
    "plan": Mode(
        "plan mode",
        "risky looks; what may change something is refused (plan mode)",
        "plan mode: the agent only looks, and presents a plan",
    ),
}
_CYCLE: tuple[PolicyName, ...] = ("never", "risky", "always", "plan")


def next_mode(now: PolicyName, *, isolated: bool) -> PolicyName:
    """The mode after this one. On this host none runs everything unasked by a key alone: `/mode never` does."""
    names: Sequence[PolicyName] = [name for name in _CYCLE if isolated or name != "never"]
    if now not in names:
        return "always" if now == "medium" else names[0]
    return names[(names.index(now) + 1) % len(names)]
