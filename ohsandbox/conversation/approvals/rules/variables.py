"""Rules for variables that a command sets: the table says of each name what programs do with its value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, names
from ohsandbox.conversation.approvals.rules.known_programs import UNKNOWN, Argument, variable_kinds, variables_of_kind
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

RUN_BY_SHELL = variables_of_kind("runs")
"""Variables that make other programs run code that no command names."""

_FAMILIES = re.compile(
    r"(?:_?JAVA|ANSIBLE|ANT|AWS|BASH|BUN|BUNDLE|CARGO|CGO|CHROME|CLOUDSDK|CMAKE|COMPOSER?|COVERAGE|CURL|CYPRESS|DENO|DOCKER|DOTNET|DYLD|"
    r"EDITOR|ELIXIR|EMACS|ENV|ERL|ESLINT|FZF|GCC|GDK|GEM|GH|GIT|GLIBC|GNUPG|GNUTLS|GO|GPG|GRADLE|GREP|GTK|HELM|HEX|HG|HIST|HOME$|INPUTRC|JDK|"
    r"JEST|JUPYTER|KRB5|KUBE|LD|LESS|LIBRARY|LLVM|LOCPATH|LUA|MAKE|MALLOC|MANPATH|MAVEN|MIX|MOCHA|MYPY|MYSQL|NIX|NODE|NPM|NSS|OPENSSL|PDM|PERL|"
    r"PG|PHP|PIP|PLAYWRIGHT|PNPM|POETRY|PSQL|PYTEST|PYTHON|QT_|R_|RAILS|RIPGREP|RSYNC|RUBY|RUFF|RUST|SBT|SHELL|SQLITE|SSH|SSL|SVN|SYSTEMD|TAR|TCL|TERM|TF|"
    r"TMPDIR|TOX|UV|VIM|VITE|WGET|XDG|YARN|ZDOTDIR|ZIP|ZSH|\w{0,60}(?:FLAGS|PATH|PRELOAD|STARTUP|INIT|RC|PAGER|EDITOR|SHELL|HOOKS?|WRAPPER|COMMAND|RUNNER|"
    r"OPTIONS|OPTS?|HISTORY|HISTFILE|CACHE_DIR|OUTPUT|DEPENDENCIES|FILE)$)",
    re.IGNORECASE,
)
"""Beginnings and ends of the names of variables that other programs read: such a one is unknown if no entry has it."""

_USUAL_PATHS = ("$PATH", "${PATH", "/usr/", "/opt/", "/root/", "/home/", "$HOME/", "~/")
_DEFAULT = re.compile(
    r"(?:GOPATH=~/go|CARGO_HOME=~/\.cargo|GIT_DIR=\.git)/?".replace("~", r"(?:~|\$HOME|\$\{HOME\}|/root|/home/\w+)")
)
"""Assignments of the value that the program takes anyway."""

_NAMES_VARIABLES = names("read printf declare typeset local export mapfile readarray")
_TAKES_VARIABLES = names("env sudo doas cross-env make gmake systemd-run")
"""Programs whose arguments may set variables."""

_DECLARES = names("declare typeset local export readonly")
_EVALUATES_NAMES = _NAMES_VARIABLES | names("let test [ unset readonly wait getopts")
_COMMAND_IN_INDEX = re.compile(r"\w\[[^\[\]\n]{0,200}(?:\$\(|`)")
"""bash(1), "Arithmetic Evaluation": an array index in a name, even quoted, is expanded, and its commands run."""


def variable_arguments(command: SimpleCommand) -> Iterator[Argument]:
    """The values of the variables that a command sets, with the kinds of the table."""
    for name, value in _assigned(command):
        if _DEFAULT.fullmatch(f"{name}={value}"):
            continue
        kinds = variable_kinds(name) or ((UNKNOWN,) if _FAMILIES.match(name) else ())
        for kind in kinds:
            is_path = kind == "project" and "://" not in value
            for text in value.split(":") if is_path else (value,):
                if not (is_path and (not text or text[0] == "$")):
                    yield Argument(kind, text, f"${name}")


def _assigned(command: SimpleCommand) -> tuple[tuple[str, str], ...]:
    """Variables that are set before the command, by it, or by its words."""
    words = command.arguments if command.program in _TAKES_VARIABLES else ()
    return command.assigned + tuple(word.partition("=")[::2] for word in words if "=" in word)


def variable_findings(command: SimpleCommand) -> Iterator[Finding]:
    """Findings in the names of variables, and in values that decide what the shell itself runs."""
    name, values = command.program, [value for _, value in command.assigned]
    if name in _NAMES_VARIABLES and (name != "printf" or "-v" in command.arguments):
        for variable in {*command.arguments, *values} & RUN_BY_SHELL:
            yield Finding("HIGH", f"Sets {variable}, by which other programs run code unasked.")
    assigned = dict(_assigned(command))
    if "IFS" in assigned:
        yield Finding("MEDIUM", "Changes where the shell splits words (IFS).")
    if "PATH" in assigned and not assigned["PATH"].startswith(_USUAL_PATHS):
        yield Finding("MEDIUM", "Changes where programs are found first (PATH).")
    literal = [word for word in command.arguments if name in _DECLARES and word not in command.computed and "(" in word]
    if any("$(" in word or "`" in word for word in literal):
        yield Finding("HIGH", "Hides a command in the value of an array.")
    if name in _EVALUATES_NAMES:
        values += [*command.arguments, command.stdin or ""]
    if any(_COMMAND_IN_INDEX.search(text.replace(COMPUTED, "")) for text in values):
        yield Finding("HIGH", "Hides a command in the index of an array.")
