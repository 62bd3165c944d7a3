"""`SecurityAnalyzer`: rates the risk of a call, by the model's rating, by rules, or by both."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import only_reads
from ohsandbox.conversation.approvals.rules.commands import cell_findings, command_findings, input_findings
from ohsandbox.conversation.approvals.rules.looking import lasting
from ohsandbox.conversation.approvals.rules.network import browser_findings, web_findings
from ohsandbox.conversation.approvals.rules.paths import place_findings
from ohsandbox.review_text import concealed_in
from ohsandbox.text import texts_in
from ohsandbox.tool import CallHint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ohsandbox.agent import ActionEvent
    from ohsandbox.conversation.approvals.rules import Finding

LOW, MEDIUM, HIGH, UNKNOWN = ActionSecurityRisk

_LEVELS = {UNKNOWN: -1, LOW: 0, MEDIUM: 1, HIGH: 2}

_PATHS = ("path", "file_path")
"""Names of arguments that hold a path, in the built-in tools and in most others."""

DEFAULT_WORKDIR = "/workspace"


class _Assessment(NamedTuple):
    """A risk level, with the reasons for it in words for the user."""

    risk: ActionSecurityRisk
    """The risk; UNKNOWN if the analyzer has no opinion."""
    why: tuple[str, ...] = ()


class SecurityAnalyzer(Protocol):
    """Rates a call before it runs. It cannot detect everything: only the sandbox prevents harm reliably."""

    def assess(self, call: ActionEvent) -> _Assessment:
        """Return the risk of a call that has a tool and an action. An exception counts as HIGH."""


class ModelsWord:
    """Uses the `security_risk` that the model stated."""

    def assess(self, call: ActionEvent) -> _Assessment:
        """Return the model's rating; UNKNOWN if it gave none."""
        if call.security_risk is None or call.security_risk is UNKNOWN:
            return _Assessment(UNKNOWN)
        return _Assessment(call.security_risk, (f"The model calls it {call.security_risk.value}.",))


_TEXT_RULES: dict[str, Callable[[str, str], Iterable[Finding]]] = {
    "command": lambda text, workdir: command_findings(text, workdir=workdir),
    "input": lambda text, workdir: input_findings(text, workdir=workdir),
    "python": lambda text, workdir: cell_findings(text, workdir=workdir),
    "url": lambda text, _: web_findings(text),
    "browser": lambda text, _: browser_findings(text),
}
"""Rules by what a tool's calls contain (`CallHint.kind`); calls of MCP servers' tools have no kind."""


class _CommandRules:
    """Applies rules to the commands, code, addresses and paths in a call's arguments."""

    def __init__(self, workdir: str | None = None, *, keeps_files: bool = True) -> None:
        """Paths outside workdir are outside the workspace; None is /workspace.

        keeps_files: whether checkpoints can restore deleted files; if not, deleting is HIGH.
        """
        self._workdir = posixpath.normpath(workdir or DEFAULT_WORKDIR)
        self._keeps_files = keeps_files

    def assess(self, call: ActionEvent) -> _Assessment:
        """Return the highest risk of the matching rules; if none matches, LOW for calls with rules, else UNKNOWN."""
        arguments = {} if call.action is None else call.action.model_dump()
        hint = CallHint() if call.tool is None else call.tool.call_hint(arguments)
        if (rules := _TEXT_RULES.get(hint.kind)) is not None:
            text = str(arguments.get(hint.subject, ""))
            found = [*rules(text, self._workdir)]
            if hint.kind == "command" and not self._keeps_files:
                found = lasting(found, text, workdir=self._workdir)
            assessed = _of_findings(found)
            return _Assessment(LOW, ("No rule speaks against it.",)) if assessed.risk is UNKNOWN else assessed
        names = {*_PATHS, hint.subject} if hint.kind == "edit" else _PATHS
        paths = [arguments[name] for name in names if isinstance(arguments.get(name), str)]
        if not paths or (call.tool is not None and only_reads(call.tool, call.action)):
            return _Assessment(UNKNOWN)
        assessed = _of_findings(finding for path in paths for finding in place_findings(path, workdir=self._workdir))
        if hint.kind == "edit":
            return _Assessment(LOW, ("A file of the workspace.",)) if assessed.risk is UNKNOWN else assessed
        if assessed.risk is MEDIUM and AnnotationRules().assess(call).risk is UNKNOWN:
            return _Assessment(UNKNOWN, assessed.why)  # a path with a finding must not lower the risk
        return assessed


class AnnotationRules:
    """Uses a tool's own annotations; for an MCP server's tools see `believed` in `ohsandbox.mcp.definition`."""

    def assess(self, call: ActionEvent) -> _Assessment:
        """Return HIGH if the tool declares that it destroys; LOW if it only reads, or neither destroys nor reaches out.

        A tool without annotations is UNKNOWN, and so is one that declares that it reaches out: declaring a danger never
        gives a lower risk than declaring nothing.
        """
        hints, kind = None if call.tool is None else call.tool.annotations, call.hint.kind
        if kind == "delegation":
            return _Assessment(LOW, ("The sub-agent's own calls are looked at one by one.",))
        says_more = kind in _TEXT_RULES or kind == "edit"
        if hints is None or says_more or (kind == "read" and not hints.readOnlyHint):
            return _Assessment(UNKNOWN)
        said = hints.model_fields_set
        if "destructiveHint" in said and hints.destructiveHint:
            return _Assessment(HIGH, ("The tool says that it may overwrite or delete.",))
        if hints.readOnlyHint or not (hints.destructiveHint or hints.openWorldHint):
            return _Assessment(LOW, ("The tool says that it destroys nothing.",))
        return _Assessment(UNKNOWN)


class _Highest:
    """Combines several analyzers: the highest risk counts, so no analyzer can lower another's rating."""

    def __init__(self, *analyzers: SecurityAnalyzer) -> None:
        self.analyzers = analyzers

    def assess(self, call: ActionEvent) -> _Assessment:
        """Return the highest risk; UNKNOWN only if no analyzer has an opinion."""
        found = [analyzer.assess(call) for analyzer in self.analyzers]
        risk = max((each.risk for each in found), key=level, default=UNKNOWN)
        return _Assessment(risk, tuple(word for each in found if each.risk is risk for word in each.why))


class RaisedByModel:
    """Raises an analyzer's rating to the model's, if that is higher; UNKNOWN becomes HIGH or stays."""

    def __init__(self, analyzer: SecurityAnalyzer) -> None:
        self.analyzer = analyzer

    def assess(self, call: ActionEvent) -> _Assessment:
        """Return the analyzer's rating, or the model's if it is higher."""
        found, said = self.analyzer.assess(call), ModelsWord().assess(call)
        if found.risk is UNKNOWN:
            return said if said.risk is HIGH else found
        if level(said.risk) > level(found.risk):
            return said
        return _Assessment(found.risk, (*said.why, *found.why) if said.risk is found.risk else found.why)


def conceals(name: str, arguments: Any) -> tuple[str, ...]:
    """Return what a user would not see in a call's name and arguments; a call with anything hidden is always HIGH."""
    texts = [*texts_in(arguments), name]
    return tuple(dict.fromkeys(why for text in texts for why in concealed_in(text)))


def default_analyzer(workdir: str | None = None, *, keeps_files: bool = True) -> SecurityAnalyzer:
    """Return an analyzer by all our rules, raised by the model's rating; see `_CommandRules` for keeps_files."""
    return RaisedByModel(_Highest(_CommandRules(workdir, keeps_files=keeps_files), AnnotationRules()))


def level(risk: ActionSecurityRisk) -> int:
    """Return the risk as a number for comparisons; UNKNOWN is the lowest."""
    return _LEVELS[risk]


def _of_findings(findings: Iterable[Finding]) -> _Assessment:
    found = list(findings)
    risk = max((ActionSecurityRisk(finding.risk) for finding in found), key=level, default=UNKNOWN)
    words = (finding.what for finding in found if finding.risk == risk.value)
    return _Assessment(risk, tuple(dict.fromkeys(words)))
