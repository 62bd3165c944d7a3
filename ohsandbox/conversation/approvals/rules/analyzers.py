"""The analyzers of our rules: for commands, code, addresses and paths, and for a tool's own annotations."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import only_reads
from ohsandbox.conversation.approvals.analysis import (
    DEFAULT_WORKDIR,
    HIGH,
    LOW,
    MEDIUM,
    UNKNOWN,
    Assessment,
    RaisedByModel,
    level,
)
from ohsandbox.conversation.approvals.rules.commands import cell_findings, command_findings, input_findings
from ohsandbox.conversation.approvals.rules.looking import lasting
from ohsandbox.conversation.approvals.rules.network import browser_findings, web_findings
from ohsandbox.conversation.approvals.rules.paths import place_findings
from ohsandbox.tool import CallHint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ohsandbox.agent import ActionEvent
    from ohsandbox.conversation.approvals.analysis import SecurityAnalyzer
    from ohsandbox.conversation.approvals.rules import Finding

_PATHS = ("path", "file_path")
"""Names of arguments that hold a path, in the built-in tools and in most others."""

_TEXT_RULES: dict[str, Callable[[str, str], Iterable[Finding]]] = {
    "command": lambda text, workdir: command_findings(text, workdir=workdir),
    "input": lambda text, workdir: input_findings(text, workdir=workdir),
    "python": lambda text, workdir: cell_findings(text, workdir=workdir),
    "url": lambda text, _: web_findings(text),
    "browser": lambda text, _: browser_findings(text),
}
"""Rules by what a tool's calls contain (`CallHint.kind`); calls of MCP servers' tools have no kind."""


class CommandRules:
    """Applies rules to the commands, code, addresses and paths in a call's arguments."""

    def __init__(self, workdir: str | None = None, *, keeps_files: bool = True) -> None:
        """Paths outside workdir are outside the workspace; None is /workspace.

        keeps_files: whether checkpoints can restore deleted files; if not, deleting is HIGH.
        """
        self._workdir = posixpath.normpath(workdir or DEFAULT_WORKDIR)
        self._keeps_files = keeps_files

    def assess(self, call: ActionEvent) -> Assessment:
        """Return the highest risk of the matching rules; if none matches, LOW for calls with rules, else UNKNOWN."""
        arguments = {} if call.action is None else call.action.model_dump()
        hint = CallHint() if call.tool is None else call.tool.call_hint(arguments)
        if (rules := _TEXT_RULES.get(hint.kind)) is not None:
            text = str(arguments.get(hint.subject, ""))
            findings = [*rules(text, self._workdir)]
            if hint.kind == "command" and not self._keeps_files:
                findings = lasting(findings, text, workdir=self._workdir)
            assessed = _of_findings(findings)
            return Assessment(LOW, ("No rule speaks against it.",)) if assessed.risk is UNKNOWN else assessed
        names = {*_PATHS, hint.subject} if hint.kind == "edit" else _PATHS
        paths = [arguments[name] for name in names if isinstance(arguments.get(name), str)]
        if not paths or (call.tool is not None and only_reads(call.tool, call.action)):
            return Assessment(UNKNOWN)
        assessed = _of_findings(finding for path in paths for finding in place_findings(path, workdir=self._workdir))
        if hint.kind == "edit":
            return Assessment(LOW, ("A file of the workspace.",)) if assessed.risk is UNKNOWN else assessed
        if assessed.risk is MEDIUM and AnnotationRules().assess(call).risk is UNKNOWN:
            return Assessment(UNKNOWN, assessed.why)  # a path with a finding must not lower the risk
        return assessed


class AnnotationRules:
    """Uses a tool's own annotations; for an MCP server's tools see `believed` in `ohsandbox.mcp.definition`."""

    def assess(self, call: ActionEvent) -> Assessment:
        """Return HIGH if the tool declares that it destroys; LOW if it only reads, or neither destroys nor reaches out.

        A tool without annotations is UNKNOWN, and so is one that declares that it reaches out: declaring a danger never
        gives a lower risk than declaring nothing.
        """
        hints, kind = None if call.tool is None else call.tool.annotations, call.hint.kind
        if kind == "delegation":
            return Assessment(LOW, ("The sub-agent's own calls are looked at one by one.",))
        says_more = kind in _TEXT_RULES or kind == "edit"
        if hints is None or says_more or (kind == "read" and not hints.readOnlyHint):
            return Assessment(UNKNOWN)
        stated = hints.model_fields_set
        if "destructiveHint" in stated and hints.destructiveHint:
            return Assessment(HIGH, ("The tool says that it may overwrite or delete.",))
        if hints.readOnlyHint or not (hints.destructiveHint or hints.openWorldHint):
            return Assessment(LOW, ("The tool says that it destroys nothing.",))
        return Assessment(UNKNOWN)


def _of_findings(findings: Iterable[Finding]) -> Assessment:
    listed = list(findings)
    risk = max((ActionSecurityRisk(finding.risk) for finding in listed), key=level, default=UNKNOWN)
    words = (finding.what for finding in listed if finding.risk == risk.value)
    return Assessment(risk, tuple(dict.fromkeys(words)))


class _Highest:
    """Combines several analyzers: the highest risk counts, so no analyzer can lower another's rating."""

    def __init__(self, *analyzers: SecurityAnalyzer) -> None:
        self.analyzers = analyzers

    def assess(self, call: ActionEvent) -> Assessment:
        """Return the highest risk; UNKNOWN only if no analyzer has an opinion."""
        found = [analyzer.assess(call) for analyzer in self.analyzers]
        risk = max((each.risk for each in found), key=level, default=UNKNOWN)
        return Assessment(risk, tuple(word for each in found if each.risk is risk for word in each.why))


def default_analyzer(workdir: str | None = None, *, keeps_files: bool = True) -> SecurityAnalyzer:
    """Return an analyzer by all our rules, raised by the model's rating; see `CommandRules` for keeps_files."""
    return RaisedByModel(_Highest(CommandRules(workdir, keeps_files=keeps_files), AnnotationRules()))
