"""`SecurityAnalyzer`: how much harm a call could do, by the model's word, by rules, and both together."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.calls import only_reads
from ohsandbox.conversation.confirmation.commands import command_findings
from ohsandbox.conversation.confirmation.places import place_findings
from ohsandbox.conversation.sub_agent import DELEGATING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.agent import ActionEvent
    from ohsandbox.conversation.confirmation.findings import Finding

LOW, MEDIUM, HIGH, UNKNOWN = (
    ActionSecurityRisk.LOW,
    ActionSecurityRisk.MEDIUM,
    ActionSecurityRisk.HIGH,
    ActionSecurityRisk.UNKNOWN,
)

_LEVELS = {UNKNOWN: -1, LOW: 0, MEDIUM: 1, HIGH: 2}

_COMMANDS = {"execute_bash": "command", "execute_ipython_cell": "code"}
"""Tools that run a program of the model's, and the argument that holds it."""

_FILE_TOOLS = frozenset({"file_write", "file_editor", "edit_file"})
"""Ours, that change one file and do nothing else."""

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
    """Rules on commands and paths, of the tools that take some."""

    def __init__(self, workdir: str | None = None) -> None:
        """Paths outside workdir are outside the workspace; None is /workspace."""
        self._workdir = posixpath.normpath(workdir or _DEFAULT_WORKDIR)

    def assess(self, call: ActionEvent) -> Assessment:
        """The highest of the rules that match; where none does LOW for what they look at, else UNKNOWN.

        So a model that says nothing of a command's risk is not asked about more than one that says LOW: neither word
        can be relied on, and the rules look at both.
        """
        arguments = {} if call.action is None else call.action.model_dump()
        command = arguments.get(_COMMANDS.get(call.name, ""))
        if isinstance(command, str):
            found = _of_findings(command_findings(command, workdir=self._workdir))
            return Assessment(LOW, ("No rule speaks against it.",)) if found.risk is UNKNOWN else found
        paths = [arguments[name] for name in _PATHS if isinstance(arguments.get(name), str)]
        if not paths or (call.tool is not None and only_reads(call.tool, call.action)):
            return Assessment(UNKNOWN)
        found = _of_findings(finding for path in paths for finding in place_findings(path, workdir=self._workdir))
        if found.risk is UNKNOWN and call.name in _FILE_TOOLS:
            return Assessment(LOW, ("A file of the workspace.",))
        return found


class AnnotationRules:
    """What a tool says of itself. A tool that says nothing has no LOW from here, and no word against it either."""

    def assess(self, call: ActionEvent) -> Assessment:
        """LOW: it only reads, or neither destroys nor reaches out. MEDIUM: it says outright that it destroys."""
        hints = None if call.tool is None else call.tool.annotations
        if call.name in DELEGATING:
            return Assessment(LOW, ("The sub-agent's own calls are looked at one by one.",))
        if hints is None or call.name in _COMMANDS or call.name in _FILE_TOOLS:
            return Assessment(UNKNOWN)  # of ours, what they are told to do says more
        if hints.readOnlyHint or not (hints.destructiveHint or hints.openWorldHint):
            return Assessment(LOW, ("The tool says that it destroys nothing.",))
        said = hints.model_fields_set
        if "destructiveHint" in said and hints.destructiveHint:
            return Assessment(MEDIUM, ("The tool says that it may overwrite or delete.",))
        if "openWorldHint" in said and hints.openWorldHint:
            return Assessment(MEDIUM, ("The tool says that it reaches beyond the sandbox.",))
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


def default_analyzer(workdir: str | None = None) -> SecurityAnalyzer:
    """The model's word and all our rules."""
    return Highest(ModelsWord(), CommandRules(workdir), AnnotationRules())


def level(risk: ActionSecurityRisk) -> int:
    """For comparison; UNKNOWN is the lowest."""
    return _LEVELS[risk]


def _of_findings(findings: Iterable[Finding]) -> Assessment:
    found = list(findings)
    risk = max((ActionSecurityRisk(finding.risk) for finding in found), key=level, default=UNKNOWN)
    words = (finding.what for finding in found if finding.risk == risk.value)
    return Assessment(risk, tuple(dict.fromkeys(words)))
