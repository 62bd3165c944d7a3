"""`SecurityAnalyzer`: rates the risk of a call, by the model's rating, by rules, or by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.review_text import concealed_in
from ohsandbox.text import texts_in

if TYPE_CHECKING:
    from ohsandbox.agent import ActionEvent

LOW, MEDIUM, HIGH, UNKNOWN = ActionSecurityRisk

_LEVELS = {UNKNOWN: -1, LOW: 0, MEDIUM: 1, HIGH: 2}

DEFAULT_WORKDIR = "/workspace"


class Assessment(NamedTuple):
    """A risk level, with the reasons for it in words for the user."""

    risk: ActionSecurityRisk
    """The risk; UNKNOWN if the analyzer has no opinion."""
    why: tuple[str, ...] = ()


class SecurityAnalyzer(Protocol):
    """Rates a call before it runs. It cannot detect everything: only the sandbox prevents harm reliably."""

    def assess(self, call: ActionEvent) -> Assessment:
        """Return the risk of a call that has a tool and an action. An exception counts as HIGH."""


class ModelsWord:
    """Uses the `security_risk` that the model stated."""

    def assess(self, call: ActionEvent) -> Assessment:
        """Return the model's rating; UNKNOWN if it gave none."""
        if call.security_risk is None or call.security_risk is UNKNOWN:
            return Assessment(UNKNOWN)
        return Assessment(call.security_risk, (f"The model calls it {call.security_risk.value}.",))


class RaisedByModel:
    """Raises an analyzer's rating to the model's, if that is higher; UNKNOWN becomes HIGH or stays."""

    def __init__(self, analyzer: SecurityAnalyzer) -> None:
        self.analyzer = analyzer

    def assess(self, call: ActionEvent) -> Assessment:
        """Return the analyzer's rating, or the model's if it is higher."""
        assessment, model_assessment = self.analyzer.assess(call), ModelsWord().assess(call)
        if assessment.risk is UNKNOWN:
            return model_assessment if model_assessment.risk is HIGH else assessment
        if level(model_assessment.risk) > level(assessment.risk):
            return model_assessment
        return Assessment(
            assessment.risk,
            (*model_assessment.why, *assessment.why) if model_assessment.risk is assessment.risk else assessment.why,
        )


def conceals(name: str, arguments: Any) -> tuple[str, ...]:
    """Return what a user would not see in a call's name and arguments; a call with anything hidden is always HIGH."""
    texts = [*texts_in(arguments), name]
    return tuple(dict.fromkeys(why for text in texts for why in concealed_in(text)))


def level(risk: ActionSecurityRisk) -> int:
    """Return the risk as a number for comparisons; UNKNOWN is the lowest."""
    return _LEVELS[risk]
