"""Rules for variables that a command sets and by which programs run code that no command names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, names
from ohsandbox.conversation.approvals.rules.paths import place_findings
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED

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

_COMMANDS = re.compile(
    r"(?:\w{1,60}_)?(?:\w{0,20}(?:PAGER|EDITOR)|COMMAND|SSH|SHELL|ASKPASS|WRAPPER|RUNNER|BROWSER|RSH|EXTERNAL_DIFF)|VISUAL|LESS(?:OPEN|CLOSE)?|"
    r"CC|CXX|LD|AR|MAKE|PS[0124]|TAR_OPTIONS|MAKEFLAGS|PROMPT_COMMAND|BASH_ENV|ENV"
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
}
"""Variables that make a workspace tool run code from outside it: those of `_STEERING` with any value, these if their
value matches."""

_FAMILIES = re.compile(
    r"(?:_?JAVA|ANSIBLE|ANT|AWS|BASH|BUN|BUNDLE|CARGO|CGO|CHROME|CLOUDSDK|CMAKE|COMPOSER?|COVERAGE|CURL|CYPRESS|DENO|DOCKER|DOTNET|DYLD|"
    r"EDITOR|ELIXIR|EMACS|ENV|ERL|ESLINT|FZF|GCC|GDK|GEM|GH|GIT|GLIBC|GNUPG|GNUTLS|GO|GPG|GRADLE|GREP|GTK|HELM|HEX|HG|HIST|HOME$|INPUTRC|JDK|"
    r"JEST|JUPYTER|KRB5|KUBE|LD|LESS|LIBRARY|LOCPATH|LUA|MAKE|MALLOC|MANPATH|MAVEN|MIX|MOCHA|MYPY|MYSQL|NIX|NODE|NPM|NSS|OPENSSL|PDM|PERL|"
    r"PG|PHP|PIP|PLAYWRIGHT|PNPM|POETRY|PSQL|PYTEST|PYTHON|QT_|R_|RAILS|RIPGREP|RSYNC|RUBY|RUST|SBT|SHELL|SSH|SSL|SVN|SYSTEMD|TAR|TCL|TERM|TF|"
    r"TMPDIR|TOX|UV|VIM|VITE|WGET|XDG|YARN|ZDOTDIR|ZIP|ZSH|\w{0,60}(?:FLAGS|PATH|PRELOAD|STARTUP|INIT|RC|PAGER|EDITOR|SHELL|HOOKS?|WRAPPER|COMMAND|RUNNER)$)",
    re.IGNORECASE,
)
"""Beginnings and ends of the names of variables that other programs read."""

_HARMLESS = re.compile(
    r"PYTHON(?:PATH|UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER|DEVMODE|TRACEMALLOC|ASYNCIODEBUG)|NODE_(?:ENV|OPTIONS)|"
    r"RUST_(?:LOG|BACKTRACE|TEST_THREADS|MIN_STACK)|CARGO_(?:TERM_COLOR|INCREMENTAL|TARGET_DIR|NET_OFFLINE|BUILD_JOBS)|GO(?:OS|ARCH|ARM|MAXPROCS|FLAGS|"
    r"111MODULE|TRACEBACK|GC)|CGO_ENABLED|GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)|GIT_(?:TERMINAL_PROMPT|MERGE_AUTOEDIT|OPTIONAL_LOCKS|EDITOR|"
    r"SEQUENCE_EDITOR|PAGER)|PAGER|EDITOR|VISUAL|MANPAGER|LESS|PYTEST_(?:ADDOPTS|DISABLE_PLUGIN_AUTOLOAD|CURRENT_TEST)|RUSTFLAGS|(?:MAVEN|GRADLE)_OPTS|"
    r"PIP_(?:NO_INPUT|DISABLE_PIP_VERSION_CHECK|NO_CACHE_DIR|QUIET)|UV_(?:OFFLINE|NO_CACHE|FROZEN|NO_PROGRESS)|DOCKER_BUILDKIT|COMPOSE_PROJECT_NAME|TERM|"
    r"TF_LOG|AWS_(?:DEFAULT_)?REGION|PATH|MYPY_FORCE_COLOR|RAILS_ENV|MIX_ENV|JEST_WORKER_ID|C(?:XX|PP)?FLAGS|LDFLAGS|MAKEFLAGS|VITE_\w+|NEXT_\w+|PGPORT|"
    r"PGHOST|PGUSER|PGDATABASE|CC|CXX|LD|AR|MAKE|RUSTC_WRAPPER|GIT_SSH_COMMAND|SHELL|GIT_EXTERNAL_DIFF|HISTSIZE|HISTCONTROL|NPM_TOKEN|NODE_NO_WARNINGS"
)
"""Those of them that only change what is printed, how fast or for which target; commands in them are read as such."""

_WRITTEN = re.compile(
    r"GIT_(?:WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|TRACE\w*)|CARGO_(?:TARGET_DIR|INSTALL_ROOT|HOME)|DESTDIR|[Pp]refix|PREFIX|CMAKE_INSTALL_PREFIX|"
    r"PIP_(?:TARGET|PREFIX|LOG|CACHE_DIR)|PYTHON(?:USERBASE|PYCACHEPREFIX)|GOBIN|GOPATH|GOCACHE|COVERAGE_FILE|HISTFILE|TMPDIR|npm_config_(?:prefix|cache)|"
    r"NPM_CONFIG_PREFIX|INSTALL_ROOT|OUT(?:PUT)?_?DIR|BUILDDIR"
)
"""Variables that say where a program writes."""

_RUNS_BY_OPTION = re.compile(
    r"NODE_OPTIONS=.*(?:-r\b|--(?:require|import|eval|(?:experimental-)?loader))|GOFLAGS=.*-(?:toolexec|exec|vettool)|"
    r"RUSTFLAGS=.*(?:linker|codegen-backend)=|\w{0,20}(?:JAVA|JDK|MAVEN|GRADLE|SBT)\w{0,20}=.*(?:-(?:java)?agent|-XX:On)|"
    r"(?:MAKEFLAGS|GNUMAKEFLAGS)=.*(?:SHELL|--eval)",
    re.DOTALL,
)
"""Variables with an option that names code to run, as NAME=VALUE."""

_USUAL_PATHS = ("$PATH", "${PATH", "/usr/", "/opt/", "/root/", "/home/", "$HOME/", "~/")

_NAMES_VARIABLES = frozenset({"read", "printf", "declare", "typeset", "local", "export", "mapfile", "readarray"})
_TAKES_VARIABLES = frozenset({"env", "sudo", "doas", "cross-env", "make", "gmake", "systemd-run"})
"""Programs whose arguments may set variables."""

_DECLARES = frozenset({"declare", "typeset", "local", "export", "readonly"})
_EVALUATES_NAMES = _NAMES_VARIABLES | {"let", "test", "[", "unset", "readonly", "wait", "getopts"}
_COMMAND_IN_INDEX = re.compile(r"\w\[[^\[\]\n]{0,200}(?:\$\(|`)")
"""bash(1), "Arithmetic Evaluation": an array index in a name, even quoted, is expanded, and its commands run."""


def variable_findings(command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    """Findings in the variables that a command sets or names."""
    name, values = command.program, [value for _, value in command.assigned]
    if name in _NAMES_VARIABLES and (name != "printf" or "-v" in command.arguments):
        for variable in {*command.arguments, *values} & RUN_BY_SHELL:
            yield Finding("HIGH", f"Sets {variable}, by which other programs run code unasked.")
    yield from (finding for pair in _set_by(command) if (finding := _value_finding(*pair)))
    for variable, value in _set_by(command):
        if _WRITTEN.fullmatch(variable) and value[:1] in {"/", "~", "."}:
            yield from place_findings(command.full(value), workdir=workdir)
    literal = [word for word in command.arguments if name in _DECLARES and word not in command.computed and "(" in word]
    if any("$(" in word or "`" in word for word in literal):
        yield Finding("HIGH", "Hides a command in the value of an array.")
    if name in _EVALUATES_NAMES:
        values += [*command.arguments, command.stdin or ""]
    if any(_COMMAND_IN_INDEX.search(text.replace(COMPUTED, "")) for text in values):
        yield Finding("HIGH", "Hides a command in the index of an array.")


def _value_finding(name: str, value: str) -> Finding | None:
    runs = name in RUN_BY_SHELL or name.startswith(("BASH_FUNC", "GIT_CONFIG_"))
    if runs or _RUNS_BY_OPTION.match(f"{name}={value}"):
        return Finding("HIGH", f"Sets {name}, by which other programs run code unasked.")
    steers = name in _STEERING_VALUES and _STEERING_VALUES[name].search(value)
    if steers or name in _STEERING or _STEERING_NAMES.match(name):
        return Finding("MEDIUM", f"Sets {name}, by which other programs run other code, or work elsewhere.")
    if name == "IFS":
        return Finding("MEDIUM", "Changes where the shell splits words (IFS).")
    if name == "PATH" and not value.startswith(_USUAL_PATHS):
        return Finding("MEDIUM", "Changes where programs are found first (PATH).")
    if _FAMILIES.match(name) and not _HARMLESS.fullmatch(name):
        return Finding("MEDIUM", f"Sets {name}, by which other programs may do other things.")
    return None


def command_variables(command: SimpleCommand) -> Iterator[str]:
    """Values of the command's variables that another program runs as commands."""
    return (value for name, value in _set_by(command) if _COMMANDS.fullmatch(name) or name in RUN_BY_SHELL)


def _set_by(command: SimpleCommand) -> Iterator[tuple[str, str]]:
    """The variables that the command sets with their values, also by words such as those of env(1)."""
    yield from command.assigned
    if command.program in _TAKES_VARIABLES:
        yield from (word.partition("=")[::2] for word in command.arguments if "=" in word)
