"""`SecurityAnalyzer`: how much harm a call could do, by the model's word, by rules, and both together."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import only_reads
from ohsandbox.conversation.approvals.rules.commands import cell_findings, command_findings, input_findings
from ohsandbox.conversation.approvals.rules.network import browser_findings, web_findings
from ohsandbox.conversation.approvals.rules.paths import place_findings
from ohsandbox.conversation.subagents.agent import DELEGATING
from ohsandbox.mcp.definition import MCPToolAction
from ohsandbox.review_text import concealed_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ohsandbox.agent import ActionEvent
    from ohsandbox.conversation.approvals.rules import Finding

LOW, MEDIUM, HIGH, UNKNOWN = (
    ActionSecurityRisk.LOW,
    ActionSecurityRisk.MEDIUM,
    ActionSecurityRisk.HIGH,
    ActionSecurityRisk.UNKNOWN,
)

_LEVELS = {UNKNOWN: -1, LOW: 0, MEDIUM: 1, HIGH: 2}

_BASH, _PYTHON, _WEB, _BROWSER = "execute_bash", "execute_ipython_cell", "web_read", "browser"

_FILE_TOOLS = frozenset({"file_write", "file_editor", "edit_file"})
"""Ours, that change one file and do nothing else."""

_SAY_MORE = _FILE_TOOLS | {_BASH, _PYTHON, _WEB, _BROWSER}
"""Tools of ours whose arguments say more than their hints."""

_PATHS = ("path", "file_path")
"""Arguments by which our tools and most of others name a file."""

_DEFAULT_WORKDIR = "/workspace"


class Assessment(NamedTuple):
    """A risk, and for a person what makes it so."""

    risk: ActionSecurityRisk
    """UNKNOWN is no opinion."""
    why: tuple[str, ...] = ()


class SecurityAnalyzer(Protocol):
    """Looks at a call before it runs. It is a net, not a wall: what must not happen is the sandbox's to prevent."""

    def assess(self, call: ActionEvent) -> Assessment:
        """The risk of a call that has a tool and an action. What it raises counts as HIGH."""


class ModelsWord:
    """The `security_risk` that the model gave."""

    def assess(self, call: ActionEvent) -> Assessment:
        """UNKNOWN where it gave none."""
        if call.security_risk is None or call.security_risk is UNKNOWN:
            return Assessment(UNKNOWN)
        return Assessment(call.security_risk, (f"The model calls it {call.security_risk.value}.",))


class CommandRules:
    """Rules on commands, code, addresses and paths, of the tools that take some."""

    def __init__(self, workdir: str | None = None) -> None:
        """Paths outside workdir are outside the workspace; None is /workspace."""
        self._workdir = posixpath.normpath(workdir or _DEFAULT_WORKDIR)

    def assess(self, call: ActionEvent) -> Assessment:
        """The highest of the rules that match; where none does LOW for what they look at, else UNKNOWN.

        By the name of the tool only where it is ours: a server may call its tools as it likes.
        """
        arguments = {} if call.action is None else call.action.model_dump()
        if _is_ours(call) and (found := self._of_ours(call.name, arguments)) is not None:
            assessed = _of_findings(found)
            return Assessment(LOW, ("No rule speaks against it.",)) if assessed.risk is UNKNOWN else assessed
        paths = [arguments[name] for name in _PATHS if isinstance(arguments.get(name), str)]
        if not paths or (call.tool is not None and only_reads(call.tool, call.action)):
            return Assessment(UNKNOWN)
        assessed = _of_findings(finding for path in paths for finding in place_findings(path, workdir=self._workdir))
        if assessed.risk is UNKNOWN and call.name in _FILE_TOOLS and _is_ours(call):
            return Assessment(LOW, ("A file of the workspace.",))
        if assessed.risk is MEDIUM and AnnotationRules().assess(call).risk is UNKNOWN and call.name not in _FILE_TOOLS:
            return Assessment(UNKNOWN, assessed.why)  # a path with a fault is no better than a path without
        return assessed

    def _of_ours(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Finding] | None:
        """What is found in the text that one of our tools takes; None is another tool."""
        if name == _BASH:
            rules = input_findings if arguments.get("is_input") else command_findings
            return rules(str(arguments.get("command", "")), workdir=self._workdir)
        if name == _PYTHON:
            return cell_findings(str(arguments.get("code", "")), workdir=self._workdir)
        if name == _WEB:
            return web_findings(str(arguments.get("url", "")))
        return browser_findings(str(arguments.get("code", ""))) if name == _BROWSER else None


class AnnotationRules:
    """What a tool says of itself. What a server says of its own tools, see `believed` in `ohsandbox.mcp.definition`."""

    def assess(self, call: ActionEvent) -> Assessment:
        """HIGH: it says outright that it destroys. LOW: it only reads, or neither destroys nor reaches out.

        A tool that says nothing is UNKNOWN, and so is one that says that it reaches out: a danger that is declared is
        never better than silence.
        """
        hints = None if call.tool is None else call.tool.annotations
        if _is_ours(call) and call.name in DELEGATING:
            return Assessment(LOW, ("The sub-agent's own calls are looked at one by one.",))
        if hints is None or (_is_ours(call) and call.name in _SAY_MORE):
            return Assessment(UNKNOWN)
        said = hints.model_fields_set
        if "destructiveHint" in said and hints.destructiveHint:
            return Assessment(HIGH, ("The tool says that it may overwrite or delete.",))
        if hints.readOnlyHint or not (hints.destructiveHint or hints.openWorldHint):
            return Assessment(LOW, ("The tool says that it destroys nothing.",))
        return Assessment(UNKNOWN)


class Highest:
    """Several together: the highest risk counts, so that no good word takes back a bad one."""

    def __init__(self, *analyzers: SecurityAnalyzer) -> None:
        self.analyzers = analyzers

    def assess(self, call: ActionEvent) -> Assessment:
        """UNKNOWN only where none has an opinion."""
        found = [analyzer.assess(call) for analyzer in self.analyzers]
        risk = max((each.risk for each in found), key=level, default=UNKNOWN)
        return Assessment(risk, tuple(word for each in found if each.risk is risk for word in each.why))


class RaisedByModel:
    """An analyzer, and on top of it the model's word, which never lowers: UNKNOWN stays, unless the model says HIGH."""

    def __init__(self, analyzer: SecurityAnalyzer) -> None:
        self.analyzer = analyzer

    def assess(self, call: ActionEvent) -> Assessment:
        """The analyzer's, or the model's where that is higher."""
        found, said = self.analyzer.assess(call), ModelsWord().assess(call)
        if found.risk is UNKNOWN:
            return said if said.risk is HIGH else found
        if level(said.risk) > level(found.risk):
            return said
        return Assessment(found.risk, (*said.why, *found.why) if said.risk is found.risk else found.why)


def concealment(call: ActionEvent) -> tuple[str, ...]:
    """What of a call's name and arguments a person would not see as it is; such a call is HIGH, whatever it does."""
    return conceals(call.name, json.loads(call.arguments))


def conceals(name: str, arguments: Any) -> tuple[str, ...]:
    """`concealment`, of a call as the log has it."""
    texts = [*_texts_in(arguments), name]
    return tuple(dict.fromkeys(why for text in texts for why in concealed_in(text)))


def _texts_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    below = [value]
    while below:
        one = below.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            below += [*one.values(), *one]
        elif isinstance(one, list):
            below += one


def default_analyzer(workdir: str | None = None) -> SecurityAnalyzer:
    """All our rules, and the model's word where it is worse."""
    return RaisedByModel(Highest(CommandRules(workdir), AnnotationRules()))


def level(risk: ActionSecurityRisk) -> int:
    """For comparison; UNKNOWN is the lowest."""
    return _LEVELS[risk]


def _is_ours(call: ActionEvent) -> bool:
    return not isinstance(call.action, MCPToolAction)


def _of_findings(findings: Iterable[Finding]) -> Assessment:
    found = list(findings)
    risk = max((ActionSecurityRisk(finding.risk) for finding in found), key=level, default=UNKNOWN)
    words = (finding.what for finding in found if finding.risk == risk.value)
    return Assessment(risk, tuple(dict.fromkeys(words)))
