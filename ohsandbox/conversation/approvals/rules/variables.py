"""Rules for variables that a command sets and by which programs run code that no command names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, names
from ohsandbox.conversation.approvals.rules.shell_syntax import COMPUTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

RUN_BY_SHELL = names(
    """
    PROMPT_COMMAND BASH_ENV ENV LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES PYTHONSTARTUP PERL5OPT RUBYOPT PERL5DB
    PYTHONINSPECT PS0 PS4 BASH_FUNC SHELLOPTS BASHOPTS GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_PARAMETERS
    GIT_TEMPLATE_DIR GIT_EXEC_PATH LD_LIBRARY_PATH GCONV_PATH
    """
)
"""Variables that make other programs run code that no command names."""

_COMMANDS = names(
    """
    GIT_SSH_COMMAND GIT_SSH GIT_EXTERNAL_DIFF GIT_PAGER PAGER MANPAGER EDITOR VISUAL GIT_EDITOR GIT_SEQUENCE_EDITOR
    GIT_ASKPASS SSH_ASKPASS LESSOPEN LESSCLOSE BROWSER GIT_PROXY_COMMAND SHELL RUSTC_WRAPPER CC CXX LD AR MAKE PS1
    PS2 TAR_OPTIONS RSYNC_RSH MAKEFLAGS
    """
)
"""Variables that hold a command."""

_STEERING = names(
    """
    PYTEST_PLUGINS PYTHONBREAKPOINT PYTHONHOME JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS RUBYLIB PERL5LIB RUSTC
    DOCKER_HOST GIT_DIR GIT_WORK_TREE GIT_OBJECT_DIRECTORY CDPATH BUNDLE_GEMFILE LUA_INIT R_PROFILE NODE_PATH CLASSPATH
    PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_INDEX_URL GOPROXY http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy
    ALL_PROXY
    """
)
_STEERING_NAMES = re.compile(
    r"CARGO_(?:BUILD|TARGET)_\w*(?:WRAPPER|RUNNER|LINKER|RUSTC)$|(?:npm_config|NPM_CONFIG)_(?:script_shell|shell|registry|node_options)$",
    re.IGNORECASE,
)
_STEERING_VALUES = {
    "PYTHONPATH": re.compile(r"(?:^|:)(?:/(?!workspace(?:/|:|$))|~|\.\.)"),
    "PYTEST_ADDOPTS": re.compile(r"(?:^|\s)(?:-p|-c|--rootdir|-o|--override-ini)"),
    "GOFLAGS": re.compile(r"-(?:toolexec|exec|vettool)"),
    "RUSTFLAGS": re.compile(r"linker=|-Zcodegen"),
    "MAVEN_OPTS": re.compile(r"agent"),
    "GRADLE_OPTS": re.compile(r"agent"),
}
"""Variables that make a workspace tool run code from outside it: those of `_STEERING` with any value, these if their
value matches."""

_RUNS_IN_NODE = re.compile(r"-r\b|--(?:require|import|eval|loader)")
_USUAL_PATHS = ("$PATH", "${PATH", "/usr/", "/opt/", "/root/", "/home/", "$HOME/", "~/")

_NAMES_VARIABLES = frozenset({"read", "printf", "declare", "typeset", "local", "export", "mapfile", "readarray"})
_TAKES_VARIABLES = frozenset({"env", "sudo", "doas", "cross-env", "make", "gmake", "systemd-run"})
"""Programs whose arguments may set variables."""

_EVALUATES_NAMES = _NAMES_VARIABLES | {"let", "test", "[", "unset", "readonly", "wait", "getopts"}
_COMMAND_IN_INDEX = re.compile(r"\w\[[^\]\n]{0,200}(?:\$\(|`)")
"""bash(1), "Arithmetic Evaluation": an array index in a name, even quoted, is expanded, and its commands run."""


def variable_findings(command: SimpleCommand) -> Iterator[Finding]:
    """Findings in the variables that a command sets or names."""
    name, values = command.program, [value for _, value in command.assigned]
    if name in _NAMES_VARIABLES and (name != "printf" or "-v" in command.arguments):
        for variable in {*command.arguments, *values} & RUN_BY_SHELL:
            yield Finding("HIGH", f"Sets {variable}, by which other programs run code unasked.")
    assignments = [word.partition("=")[::2] for word in command.arguments if "=" in word and name in _TAKES_VARIABLES]
    yield from (finding for pair in (*command.assigned, *assignments) if (finding := _value_finding(*pair)))
    if name in _EVALUATES_NAMES:
        values += [*command.arguments, command.stdin or ""]
    if any(_COMMAND_IN_INDEX.search(text.replace(COMPUTED, "")) for text in values):
        yield Finding("HIGH", "Hides a command in the index of an array.")


def _value_finding(name: str, value: str) -> Finding | None:
    runs = name in RUN_BY_SHELL or name.startswith(("BASH_FUNC", "GIT_CONFIG_"))
    if runs or (name == "NODE_OPTIONS" and _RUNS_IN_NODE.search(value)):
        return Finding("HIGH", f"Sets {name}, by which other programs run code unasked.")
    steers = name in _STEERING_VALUES and _STEERING_VALUES[name].search(value)
    if steers or name in _STEERING or _STEERING_NAMES.match(name):
        return Finding("MEDIUM", f"Sets {name}, by which other programs run other code, or work elsewhere.")
    if name == "IFS":
        return Finding("MEDIUM", "Changes where the shell splits words (IFS).")
    if name == "PATH" and not value.startswith(_USUAL_PATHS):
        return Finding("MEDIUM", "Changes where programs are found first (PATH).")
    return None


def command_variables(command: SimpleCommand) -> Iterator[str]:
    """Values of the command's variables that another program runs as commands."""
    return (value for name, value in command.assigned if name in _COMMANDS or name in RUN_BY_SHELL)
