"""Arithmetic in a shell text: bash runs commands in the index of an array, also in the value of a variable.

bash(1), "ARITHMETIC EVALUATION": a variable's value is evaluated in its turn, and an index is expanded. So
`x='a[$(id)]'; ((x))` runs `id`, and so do `[[ $x -eq 1 ]]`, `${y:x}` and `declare -i y=x`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox.conversation.approvals.rules import Finding, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    _Node = Mapping[str, Any]

_NUMBERS = names(
    "? # $ ! RANDOM SECONDS LINENO UID EUID PPID BASHPID OPTIND COLUMNS LINES BASH_SUBSHELL SHLVL EPOCHSECONDS"
)
"""Variables that hold a number, whatever a text does."""

_COMPARISONS = names("-eq -ne -lt -le -gt -ge -v -R")
_COUNTERS = names("wc nproc seq")
"""Programs that print numbers only, before the name of a file that they were given."""

_READERS = names("read mapfile readarray getopts")
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXPRESSION = re.compile(r"[\w\s.+*/%<>=!&|^~?:(),@#-]*")
"""Numbers, names and operators: nothing with an index."""


class Arithmetic:
    """Collects what a text evaluates as arithmetic, and what the variables in it may hold."""

    def __init__(self) -> None:
        self._evaluated: set[str] = set()
        """Names whose values are evaluated."""
        self._computed: set[str] = set()
        """Names that get what a command prints or a file holds."""
        self._set: set[str] = set()
        """Names that arithmetic itself sets; what they get is evaluated as well."""
        self._is_hidden = False
        """Whether something is evaluated that a command prints, or that is quoted and has an index."""

    def look(self, node: _Node) -> None:
        """Look at one node of the syntax tree; its children are visited on their own."""
        kind = node.get("Type")
        if kind in {"ArithmExp", "ArithmCmd", "UnaryArithm", "ParenArithm", "BinaryArithm"} or (
            kind in {"BinaryTest", "UnaryTest"} and node.get("Op") in _COMPARISONS
        ):
            self._operands(node.get("X"), node.get("Y"))
            if kind == "BinaryArithm" and node.get("Op") == "=":
                self._set.add(_literal(node.get("X")))
        elif kind == "CStyleLoop":
            self._operands(node.get("Init"), node.get("Cond"), node.get("Post"))
        elif kind == "LetClause":
            self._operands(*(node.get("Exprs") or ()))
        elif kind == "ParamExp":
            self._operands(node.get("Index"), *((node.get("Slice") or {}).values()))
        elif kind == "ForClause":
            loop = node.get("Loop") or {}
            self._assign((loop.get("Name") or {}).get("Value", ""), *(loop.get("Items") or ()))
        elif kind == "DeclClause":
            self._declared(node)
        elif kind in {None, "CallExpr"}:
            for item in node.get("Assigns") or ():
                self._assigned(item)

    def reads(self, program: str, words: tuple[str, ...]) -> None:
        """Note the variables that a `read` sets."""
        if program in _READERS:
            self._computed.update(words)
            if program == "read" and not _NAME.search(" ".join(words)):
                self._computed.add("REPLY")

    def findings(self, values: Mapping[str, list[str]]) -> Iterator[Finding]:
        """Findings at the end of a text whose variables get these values."""
        waiting, seen = [*self._evaluated], set(self._evaluated)
        risk: Literal["", "MEDIUM", "HIGH"] = "HIGH" if self._is_hidden else ""
        while waiting and risk != "HIGH":
            name = waiting.pop()
            held = [value.replace("$(...)", "0") for value in values.get(name, ())]
            if name in self._computed or any(not _EXPRESSION.fullmatch(value.replace("$", "")) for value in held):
                risk = "HIGH"
            elif not held and name not in self._set:
                risk = "MEDIUM"
            new = {each for value in held for each in _NAME.findall(value)} - seen - _NUMBERS
            seen |= new
            waiting += new
        if risk:
            yield Finding(
                risk, "Evaluates as arithmetic what a variable or a command gives, and bash runs an index in it."
            )

    def _declared(self, node: _Node) -> None:
        items = node.get("Args") or ()
        flags = "".join(_literal(item.get("Value")) for item in items if not item.get("Name"))
        for item in items:
            self._assigned(item)
            name = (item.get("Name") or {}).get("Value", "")
            if re.search(r"-\w*i", flags) and name:
                self._evaluated.add(name)

    def _assigned(self, item: _Node) -> None:
        self._operands(item.get("Index"))
        if item.get("Value"):
            self._assign((item.get("Name") or {}).get("Value", ""), item["Value"])

    def _assign(self, name: str, *values: _Node) -> None:
        if any(not _is_number(part) for value in values for part in _parts(value)):
            self._computed.add(name)

    def _operands(self, *operands: Any) -> None:
        for operand in operands:
            if isinstance(operand, dict) and operand.get("Type") == "Word":
                for part in _parts(operand):
                    self._operand(part)

    def _operand(self, part: _Node) -> None:
        kind, value = part.get("Type"), part.get("Value", "")
        if kind in {"Lit", "SglQuoted"}:
            if value in {"@", "*"}:
                return
            self._is_hidden |= not _EXPRESSION.fullmatch(value.replace("$", "") if kind == "Lit" else value)
            self._evaluated |= set(_NAME.findall(value)) - _NUMBERS
        elif kind == "ParamExp":
            name = (part.get("Param") or {}).get("Value", "")
            if not part.get("Length") and name not in _NUMBERS:
                self._evaluated.add(name)
            for inner in _parts((part.get("Exp") or {}).get("Word") or {}):
                self._operand(inner)
        elif not _is_number(part):
            self._is_hidden = True


def _parts(word: _Node) -> Iterator[_Node]:
    for part in word.get("Parts") or ():
        yield from (part.get("Parts") or ()) if part.get("Type") == "DblQuoted" else (part,)


def _literal(word: _Node | None) -> str:
    return "".join(part.get("Value", "") for part in _parts(word or {}) if part.get("Type") == "Lit")


def _is_number(part: _Node) -> bool:
    """Whether a part of a word is no command substitution, or one that prints a number only."""
    if part.get("Type") not in {"CmdSubst", "ProcSubst"}:
        return True
    statements = part.get("Stmts") or ()
    command = (statements[-1].get("Cmd") or {}) if statements else {}
    while command.get("Type") == "BinaryCmd" and command.get("Op") in {"|", "|&"}:
        command = (command.get("Y") or {}).get("Cmd") or {}
    words = [_literal(word) for word in command.get("Args") or ()]
    return (words[:1] == ["date"] and words[1:] in (["+%s"], ["+%s%N"], ["-u", "+%s"], ["+%Y"])) or (
        bool(words) and words[0] in _COUNTERS and all(word.startswith("-") or word.isdigit() for word in words[1:])
    )
