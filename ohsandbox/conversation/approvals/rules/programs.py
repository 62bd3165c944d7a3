"""Rules for single commands: a table of programs, and a function for those whose options decide."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, quoted
from ohsandbox.conversation.approvals.rules.git import git_findings
from ohsandbox.conversation.approvals.rules.known_programs import DEVELOPMENT, HARMLESS, READING_SUBCOMMANDS
from ohsandbox.conversation.approvals.rules.network import NETWORK, address_findings
from ohsandbox.conversation.approvals.rules.paths import is_inside, is_wide, place_findings, secret_findings
from ohsandbox.conversation.approvals.rules.shell_syntax import COMPUTED, is_option
from ohsandbox.conversation.approvals.rules.wrappers import is_interpreter, is_wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_ANOTHER_USER = Finding("HIGH", "Becomes another user.")
_DISK = Finding("HIGH", "Writes to disks or file systems as a whole.")
_MACHINE = Finding("HIGH", "Stops or restarts the machine.")
_REMOTE = Finding("HIGH", "Works on another machine, or sends files there.")
_KERNEL = Finding("HIGH", "Changes mounts, the kernel or namespaces.")
_FIREWALL = Finding("HIGH", "Changes the firewall or access control.")
_STAYS = Finding("HIGH", "Leaves something behind that runs by itself.")
_INSTALLS = Finding("MEDIUM", "Installs or removes software.")
_KILLS = Finding("MEDIUM", "Ends other processes.")

_PROGRAMS: dict[Finding, str] = {
    _ANOTHER_USER: "sudo su doas pkexec runuser",
    _DISK: "mkfs mke2fs wipefs fdisk sfdisk parted shred mkswap blkdiscard",
    _MACHINE: "shutdown reboot halt poweroff",
    _REMOTE: "ssh scp sftp ftp tftp nc ncat netcat socat telnet",
    _KERNEL: "mount umount insmod modprobe rmmod nsenter unshare pivot_root kexec",
    _FIREWALL: "iptables ip6tables nft ufw setenforce visudo passwd chpasswd useradd usermod userdel adduser",
    _STAYS: "crontab at batch",
    _KILLS: "killall pkill",
}
_RULE_OF = {name: finding for finding, names in _PROGRAMS.items() for name in names.split()}

_INSTALLERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("apt", "apt-get", "yum", "dnf", "brew"), frozenset({"install", "remove", "purge", "upgrade"})),
    **dict.fromkeys(("pip", "pip3", "npm", "pnpm", "gem", "cargo", "uv"), frozenset({"install", "i", "uninstall"})),
    **dict.fromkeys(("apk", "yarn"), frozenset({"add", "del", "remove"})),
}

_FETCHES_AND_RUNS = frozenset({"npx", "bunx", "uvx", "pipx", "pnpx"})

_PUBLISHES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("npm", "pnpm", "yarn", "cargo", "poetry", "uv", "flit", "hatch"), frozenset({"publish"})),
    "gem": frozenset({"push"}),
    "twine": frozenset({"upload"}),
    "docker": frozenset({"push"}),
    "gh": frozenset({"merge", "create", "delete", "close", "edit"}),
    "kubectl": frozenset({"delete", "apply", "exec", "drain", "replace", "scale"}),
    "terraform": frozenset({"destroy", "apply", "rm"}),
    "aws": frozenset({"rm", "cp", "sync", "mv", "delete-object", "terminate-instances"}),
    "gcloud": frozenset({"delete", "deploy"}),
    "helm": frozenset({"install", "uninstall", "upgrade", "delete"}),
    "systemctl": frozenset({"enable", "disable", "mask", "stop", "start", "restart", "edit"}),
}

_WRITERS = frozenset(
    {"tee", "touch", "mkdir", "truncate", "ln", "cp", "mv", "install", "rsync", "rmdir", "unlink", "xxd", "uniq",
     "split", "csplit", "gzip", "gunzip", "patch"}
)  # fmt: skip
_LAST_OPERAND_ONLY = frozenset({"ln", "cp", "install", "rsync"})
_SECOND_OPERAND = frozenset({"xxd", "uniq"})
_NAMES_VARIABLES = frozenset({"read", "printf", "declare", "typeset", "local", "export", "mapfile", "readarray"})
_HAS_HOST = re.compile(r"^(?:[\w.-]+@)?[\w.-]+:(?!\\)|^rsync://")
_OUTPUT_OPTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("gcc", "cc", "g++", "c++", "clang", "clang++", "ld", "rustc", "sort", "go"), frozenset({"-o"})),
    **dict.fromkeys(("tar", "make"), frozenset({"-C", "--directory", "--output"})),
    "git": frozenset({"-C", "-o", "--directory", "--output", "--output-directory", "--separate-git-dir"}),
    **dict.fromkeys(("tree", "pandoc", "strip", "xz", "zstd", "iconv", "dot", "bison"), frozenset({"-o", "--output"})),
    "tsc": frozenset({"--outDir", "--outFile"}),
    **dict.fromkeys(("curl", "wget"), frozenset({"-o", "--output", "-O", "--output-document", "-P", "--output-dir"})),
    "csplit": frozenset({"-f", "--prefix"}),
    "unzip": frozenset({"-d"}),
    "javac": frozenset({"-d"}),
    "patch": frozenset({"-d", "-o"}),
    "cp": frozenset({"-t", "--target-directory"}),
    "mv": frozenset({"-t", "--target-directory"}),
    "install": frozenset({"-t", "--target-directory"}),
    "ln": frozenset({"-t", "--target-directory"}),
    "find": frozenset({"-fprint", "-fprintf", "-fls", "-fprint0"}),
}
"""Options whose argument is an output path."""

RUN_BY_SHELL = frozenset(
    {"PROMPT_COMMAND", "BASH_ENV", "ENV", "LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PYTHONSTARTUP",
     "PERL5OPT", "RUBYOPT", "PERL5DB", "PYTHONINSPECT", "PS0", "PS4", "BASH_FUNC", "SHELLOPTS", "BASHOPTS",
     "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_PARAMETERS", "GIT_TEMPLATE_DIR", "GIT_EXEC_PATH",
     "LD_LIBRARY_PATH", "GCONV_PATH"}
)  # fmt: skip
"""Variables that make other programs run code that no command names."""

_STEERING = frozenset(
    {"PYTEST_PLUGINS", "PYTHONBREAKPOINT", "PYTHONHOME", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS",
     "RUBYLIB", "PERL5LIB", "RUSTC", "DOCKER_HOST", "GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "CDPATH",
     "BUNDLE_GEMFILE", "LUA_INIT", "R_PROFILE", "NODE_PATH", "CLASSPATH", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
     "UV_INDEX_URL", "GOPROXY", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}
)  # fmt: skip
_STEERING_NAMES = re.compile(
    r"CARGO_(?:BUILD|TARGET)_\w*(?:WRAPPER|RUNNER|LINKER|RUSTC)$|(?:npm_config|NPM_CONFIG)_(?:script_shell|shell|registry|node_options)$",
    re.IGNORECASE,
)
_OUTSIDE = r"(?:^|:)(?:/(?!workspace(?:/|:|$))|~|\.\.)"
_STEERING_VALUES = {
    "PYTHONPATH": _OUTSIDE, "PYTEST_ADDOPTS": r"(?:^|\s)(?:-p|-c|--rootdir|-o|--override-ini)",
    "GOFLAGS": r"-(?:toolexec|exec|vettool)", "RUSTFLAGS": r"linker=|-Zcodegen",
    **dict.fromkeys(("MAVEN_OPTS", "GRADLE_OPTS"), r"agent"),
}  # fmt: skip
"""Variables that make a workspace tool run code from outside it: `_STEERING` with any value, these with a match."""

_TAKES_VARIABLES = frozenset({"env", "sudo", "doas", "cross-env", "make", "gmake", "systemd-run"})
"""Programs whose arguments may set variables."""

_TAKES_NAMES = frozenset(
    {"let", "test", "[", "printf", "unset", "read", "declare", "typeset", "local", "export", "readonly",
     "wait", "getopts", "mapfile", "readarray"}
)  # fmt: skip
_COMMAND_IN_INDEX = re.compile(r"\w\[[^\]\n]{0,200}(?:\$\(|`)")

_GIVES_CODE: dict[str, frozenset[str]] = {
    "cmake": frozenset({"-E", "-P"}),
    "ctest": frozenset({"-S", "-SP"}),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), frozenset({"-wrapper", "-fplugin", "-specs"})),
    "go": frozenset({"-toolexec", "-vettool", "-exec", "-w"}),
    "cargo": frozenset({"--config"}),
    "node": frozenset({"-r", "--require", "--import", "--loader", "--experimental-loader"}),
    "php": frozenset({"-d", "-S"}),
    "lua": frozenset({"-l"}),
    "sqlite3": frozenset({"-init", "-cmd"}),
    "xmllint": frozenset({"--shell"}),
    "just": frozenset({"--shell", "--shell-arg", "--shell-command"}),
    "pandoc": frozenset({"--lua-filter", "-L", "--filter", "-F", "--pdf-engine"}),
    **dict.fromkeys(("pdflatex", "latexmk"), frozenset(
        {"-shell-escape", "--shell-escape", "--enable-write18", "-enable-write18", "-e", "-pdflatex", "-latex", "-r"}
    )),
    "protoc": frozenset({"--plugin"}),
    **dict.fromkeys(("gradle", "gradlew"), frozenset({"-I", "--init-script"})),
    **dict.fromkeys(("mvn", "mvnw"), frozenset({"exec:exec", "exec:java"})),
    "mix": frozenset({"-e", "--eval"}),
    **dict.fromkeys(("stack", "cabal", "composer"), frozenset({"exec"})),
    **dict.fromkeys(("rake", "rspec"), frozenset({"-e", "--execute", "-r", "--require"})),
    "npm": frozenset({"--script-shell"}),
}  # fmt: skip
"""Options and subcommands that make build and test tools run code that is in no workspace file."""

_LEADS_TO = frozenset(
    {"-C", "-f", "-c", "-d", "-B", "--prefix", "--rootdir", "--config", "--file", "--directory", "--manifest-path",
     "--cwd", "--justfile", "--project", "--config-file"}
)  # fmt: skip
"""Options that name a file or directory that a tool works with."""

_COMMAND_VARIABLES = frozenset(
    {"GIT_SSH_COMMAND", "GIT_SSH", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "PAGER", "MANPAGER", "EDITOR", "VISUAL",
     "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_ASKPASS", "SSH_ASKPASS", "LESSOPEN", "LESSCLOSE", "BROWSER",
     "GIT_PROXY_COMMAND", "SHELL", "RUSTC_WRAPPER", "CC", "CXX", "LD", "AR", "MAKE", "PS1", "PS2", "TAR_OPTIONS",
     "RSYNC_RSH", "MAKEFLAGS"}
)  # fmt: skip
"""Variables that hold a command."""

_OPTIONS_THAT_RUN = frozenset(
    {"--to-command", "--checkpoint-action", "--use-compress-program", "--unzip-command", "-TT", "--rmt-command",
     "--rsh-command", "--filter", "--compress-program", "--pre", "--pager", "--info-script", "--new-volume-script",
     "--hostname-bin"}
)  # fmt: skip
"""Options of archivers and similar programs whose argument is a program."""

_AWK_RUNS = re.compile(r"\bsystem\b|\bgetline\b|(?<!\|)\|(?!\|)|@|\bprintf?\b(?:[^;}\n]{0,200}>|[^;}\n]{200})")
_SED_PLAIN = re.compile(
    r"\s{0,8}(?:(?:\d{1,9}|\$|/(?:[^/\\\n]|\\.)*/)(?:,[+~]?(?:\d{1,9}|\$|/(?:[^/\\\n]|\\.)*/))?\s{0,4}!?\s{0,4})?"
    r"(?:[pdq=DNGHhgx]|\d{0,9}q|s(?P<end>[^\w\s\\])(?:(?!(?P=end))[^\\\n]|\\.)*(?P=end)"
    r"(?:(?!(?P=end))[^\\\n]|\\.)*(?P=end)[gpiIm\d]{0,9}|y/[^/]*/[^/]*/|[aic]\\?[^;\n]*)?\s{0,8}"
)
"""One sed command without `e` and `w`, up to a `;` or the end of the line."""


def is_known(command: SimpleCommand) -> bool:
    """Whether the rules know what the program does with these arguments."""
    name = command.program
    part = next(iter(command.operands), "")
    if name in READING_SUBCOMMANDS:
        told = READING_SUBCOMMANDS[name] | _INSTALLERS.get(name, frozenset()) | _PUBLISHES.get(name, frozenset())
        return not part or bool(told & set(command.operands[:2]))
    return (
        name in HARMLESS
        or name in DEVELOPMENT
        or name in _OF_PROGRAM
        or name in NETWORK
        or name in _PUBLISHES
        or name in _INSTALLERS
        or name.split(".", 1)[0] in _RULE_OF
        or is_interpreter(name)
        or is_wrapper(name)
    )


def simple_findings(command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    """Findings in one command by itself."""
    name = command.program
    if rule := _RULE_OF.get(name.split(".", 1)[0]):
        yield rule
    words = set(command.operands[:4])
    if words & _INSTALLERS.get(name, frozenset()) or (name == "go" and any("@" in word for word in words)):
        yield _INSTALLS
    if words & _PUBLISHES.get(name, frozenset()):
        yield Finding("HIGH", f"Changes what others use or see: {quoted(' '.join([name, *command.operands[:2]]))}.")
    if name in _FETCHES_AND_RUNS or (name in {"npm", "pnpm", "yarn"} and words & {"exec", "x", "dlx"}):
        yield Finding("MEDIUM", f"Runs a package that it may download first ({name}).")
    if name in _OF_PROGRAM:
        yield from _OF_PROGRAM[name](command, workdir)
    if name in NETWORK:
        yield from address_findings(command)
    yield from secret_findings(" ".join(command.arguments))
    yield from _variables(command)
    yield from _indices(command)
    yield from _steered(command, workdir)
    for target in _written(command):
        yield from place_findings(command.full(target), workdir=workdir)
        if target.startswith(("$", "`")) and not target.startswith(("$HOME", "${HOME")):
            yield Finding("MEDIUM", f"Writes to a path that the shell computes: {quoted(target)}.")


def _written(command: SimpleCommand) -> Iterator[str]:
    yield from command.written
    if command.program in _WRITERS:
        targets = command.operands[-1:] if command.program in _LAST_OPERAND_ONLY else command.operands
        targets = targets[1:] if command.program in _SECOND_OPERAND else targets
        yield from (target for target in targets if not _HAS_HOST.match(target))
    options = _OUTPUT_OPTIONS.get(command.program, frozenset())
    for word, following in command.pairs:
        option, equals, value = word.partition("=")
        if is_option(option, options):
            if equals or not following.startswith(("-", "http")):
                yield value if equals else following
        elif len(word) > 2 and word[0] == "-" and word[1] != "-" and word[:2] in options:  # noqa: PLR2004 - `-oFILE`
            yield word[2:]


def _variables(command: SimpleCommand) -> Iterator[Finding]:
    if command.program in _NAMES_VARIABLES:
        named = {*command.arguments, *(value for _, value in command.assigned)} & RUN_BY_SHELL
        if command.program != "printf" or "-v" in command.arguments:
            yield from (Finding("HIGH", f"Sets {name}, by which other programs run code unasked.") for name in named)
    given = [word.partition("=")[::2] for word in command.arguments if "=" in word]
    for name, value in (*command.assigned, *(given if command.program in _TAKES_VARIABLES else ())):
        if (
            name in RUN_BY_SHELL
            or name.startswith(("BASH_FUNC", "GIT_CONFIG_"))
            or (name == "NODE_OPTIONS" and re.search(r"-r\b|--(?:require|import|eval|loader)", value))
        ):
            yield Finding("HIGH", f"Sets {name}, by which other programs run code unasked.")
        elif name in _STEERING or _STEERING_NAMES.match(name) or re.search(_STEERING_VALUES.get(name, r"(?!)"), value):
            yield Finding("MEDIUM", f"Sets {name}, by which other programs run other code, or work elsewhere.")
        elif name == "IFS":
            yield Finding("MEDIUM", "Changes where the shell splits words (IFS).")
        elif name == "PATH" and not value.startswith(
            ("$PATH", "${PATH", "/usr/", "/opt/", "/root/", "/home/", "$HOME/", "~/")
        ):
            yield Finding("MEDIUM", "Changes where programs are found first (PATH).")


def _indices(command: SimpleCommand) -> Iterator[Finding]:
    """bash(1), "Arithmetic Evaluation": an array index in a name, even quoted, is expanded, and its commands run."""
    texts = [value for _, value in command.assigned]
    if command.program in _TAKES_NAMES:
        texts += [*command.arguments, command.stdin or ""]
    if any(_COMMAND_IN_INDEX.search(text.replace(COMPUTED, "")) for text in texts):
        yield Finding("HIGH", "Hides a command in the index of an array.")


def _steered(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    """Findings for a build or test tool that is given code from outside the workspace."""
    runs = _GIVES_CODE.get(command.program, frozenset())
    if runs and any(is_option(word, runs) or word in runs for word in command.arguments):
        yield Finding("MEDIUM", f"Gives {command.program} code, or a program, of its own to run.")
    if command.program not in DEVELOPMENT | READING_SUBCOMMANDS.keys():
        return
    for word, following in command.pairs:
        option, equals, value = word.partition("=")
        short = word[:2] if word[:1] == "-" and word[1:2] != "-" and len(word) > len("-f") else ""
        target = value if equals and option in _LEADS_TO else word[2:] if short in _LEADS_TO else following
        if (option in _LEADS_TO or short in _LEADS_TO) and target[:1] in {"/", "~", ".", "$"}:
            full = command.full(target)
            if not is_inside(full.rstrip("/"), workdir):
                yield Finding("MEDIUM", f"Has {command.program} work by files outside the workspace: {quoted(target)}.")


def command_variables(command: SimpleCommand) -> Iterator[str]:
    """Values of the command's variables that another program runs as commands."""
    for name, value in command.assigned:
        if name in _COMMAND_VARIABLES or name in RUN_BY_SHELL:
            yield value


def _rm(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    recursive = bool(set(command.flags) & {"r", "R"}) or command.has("--recursive")
    if command.has("--no-preserve-root"):
        yield Finding("HIGH", "Deletes the root directory.")
    for target in command.operands:
        path = command.full(target)
        if recursive and is_wide(path, workdir=workdir):
            yield Finding("HIGH", f"Deletes {quoted(target)} as a tree, which is more than the workspace's own files.")
        elif recursive and path[:1] in {"$", "`"}:
            yield Finding("HIGH", f"Deletes as a tree what {quoted(path)} stands for; if empty, perhaps all.")
        else:
            yield from place_findings(path, workdir=workdir)
    if recursive:
        yield Finding("MEDIUM", "Deletes a whole tree.")
    elif any(re.search(r"[$`]", target) for target in command.operands):
        yield Finding("MEDIUM", "Deletes what the shell computes.")
    if {"xargs", "fd", "fdfind", "parallel"} & set(command.wrapped_by):
        yield Finding("MEDIUM", "Deletes what another program lists.")


def _change_rights(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    recursive = "R" in command.flags or command.has("--recursive")
    mode, *targets = command.operands or [""]
    for target in map(command.full, targets):
        if recursive and is_wide(target, workdir=workdir):
            yield Finding("HIGH", f"Changes the rights of {quoted(target)} as a tree.")
        elif is_wide(target, workdir=workdir):
            yield from place_findings(target, workdir=workdir)
    if command.program == "chmod" and re.fullmatch(r"[ugoa]*[+=][rwx]*s[rwx]*|0?[2-7]\d{3}", mode):
        yield Finding("HIGH", "Lets a program run with its owner's rights (setuid, setgid).")


def _git(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    yield from git_findings(command)


def _dd(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for word in command.arguments:
        if word.startswith("of="):
            yield from place_findings(command.full(word.removeprefix("of=")), workdir=workdir)


def _find(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    if command.has("-delete") or ("rm" in command.arguments and command.has("-exec", "-execdir")):
        targets = [command.full(target) for target in command.operands[:1]]
        wide = any(is_wide(target, workdir=workdir) and target.rstrip("/") != workdir for target in targets)
        wide = wide and not command.operands[0].startswith(".")
        yield Finding("HIGH" if wide else "MEDIUM", "Deletes what `find` finds.")
    if command.has("-exec", "-execdir", "-ok", "-okdir") and "{}" in command.arguments:
        runners = {word.rsplit("/", 1)[-1] for word in command.arguments} & {
            "sh",
            "bash",
            "dash",
            "zsh",
            "xargs",
            "eval",
        }
        if runners:
            yield Finding("MEDIUM", "Runs a shell for what `find` finds.")


def _copy_out(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if any(_HAS_HOST.match(word) for word in command.operands):
        yield _REMOTE
    if command.has("--delete", "--remove-source-files"):
        yield Finding("MEDIUM", "Deletes at the target what the source has not.")
    if command.has("-e", "--rsh", "--rsync-path"):
        yield Finding("HIGH", "Lets rsync run a program that is named in its words.")


def _docker(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    text = " ".join(command.arguments)
    if command.has("--privileged", "--pid", "--cap-add") or re.search(r"(?:-v|--volume|source)[= ]/(?::|\s|,)", text):
        yield Finding("HIGH", "Starts a container that reaches the host.")
    if {"prune", "rm", "rmi"} & set(command.operands):
        yield Finding("MEDIUM", "Removes containers, images or volumes.")


def _kill(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if "-1" in command.arguments[1:] or command.arguments[-1:] == ("-1",):
        yield Finding("HIGH", "Ends every process.")


def _sed(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    scripts, files, in_place = _sed_words(command.arguments)
    if in_place:
        for target in files:
            yield from place_findings(command.full(target), workdir=workdir)
    for script in scripts:
        pieces = re.split(r"[;\n{}]", script)
        if not _SED_PLAIN.fullmatch(script[:2000]) and not all(_SED_PLAIN.fullmatch(piece[:2000]) for piece in pieces):
            yield Finding("MEDIUM", "A sed script that may run commands or write files.")


def _sed_words(arguments: tuple[str, ...]) -> tuple[list[str], list[str], bool]:
    """The sed scripts, the files, and whether sed writes to them; short options may be clustered."""
    scripts: list[str] = []
    rest: list[str] = []
    in_place = False
    words = iter(arguments)
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            in_place = in_place or is_option(name, {"--in-place"})
            if is_option(name, {"--expression"}):
                scripts.append(value if equals else next(words, ""))
            elif is_option(name, {"--file"}):
                scripts.append("e")
        elif word.startswith("-") and len(word) > 1:
            found = re.search("[efil]", word)
            letter, value = (found[0], word[found.end() :]) if found else ("", "")
            in_place = in_place or letter == "i"
            if letter in {"e", "f", "l"}:
                value = value or next(words, "")
            scripts += [value if letter == "e" else "e"] if letter in {"e", "f"} else []
        else:
            rest.append(word)
    return (scripts, rest, in_place) if scripts else (rest[:1], rest[1:], in_place)


def _awk(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if _AWK_RUNS.search(" ".join(command.operands)) or command.has(
        "-f", "-l", "-i", "--file", "--include", "--load", "-e"
    ):
        yield Finding("MEDIUM", "An awk program that may run commands or write files.")


def _history(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if "c" in command.flags:
        yield Finding("HIGH", "Wipes the shell's history.")


def _init(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if set(command.operands) & {"0", "6"}:
        yield _MACHINE


def _eval(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    yield Finding("MEDIUM", f"Runs a text as a command ({command.program}).")


def _kept(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if command.operands:
        yield Finding("MEDIUM", f"Leaves a command that runs later ({command.program}).")


def _move(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1]:
        if is_wide(command.full(target), workdir=workdir):
            yield Finding("HIGH", f"Moves {quoted(target)} away.")
        yield from (found for found in place_findings(command.full(target), workdir=workdir) if ".git" in target)


def _link(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1] or command.operands:
        if list(place_findings(command.full(target), workdir=workdir)):
            yield Finding("MEDIUM", f"Makes a link to {quoted(target)}, which is outside the workspace.")


def _change_directory(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:1]:
        inside = command.full(target).rstrip("/") + "/x"
        if any(
            found.risk == "HIGH" and "outside" not in found.what for found in place_findings(inside, workdir=workdir)
        ):
            yield Finding("HIGH", f"Goes to {quoted(target)}, whose files run by themselves.")
        elif list(place_findings(inside, workdir=workdir)):
            yield Finding("MEDIUM", f"Leaves the workspace: {quoted(target)}.")


def _archive(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    letters = command.flags + "".join(command.arguments[:1]) if command.program == "tar" else ""
    runs = bool(set("IF") & set(letters)) and not command.arguments[0].startswith("--")
    if runs or command.has(*_OPTIONS_THAT_RUN) or any(word.startswith("-TT") for word in command.arguments):
        yield Finding("HIGH", f"Lets {command.program} run a program that is named in its words.")
    if "P" in command.flags + "".join(command.arguments[:1]) or command.has("--absolute-names"):
        yield Finding("MEDIUM", "Unpacks to wherever the archive says.")


def _runs_programs(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    yield from (found for found in _archive(command, workdir) if found.risk == "HIGH")


def _make(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    outside = any(word.startswith(("/", "..", "~", "-")) and before in {"-f", "--file"}
                  for before, word in zip(command.arguments, command.arguments[1:], strict=False))  # fmt: skip
    outside = outside or bool({"-f-", "-"} & set(command.arguments))
    outside = outside or any(word.startswith("SHELL=") for word in command.arguments)
    if (
        outside
        or command.has("--eval", "-E")
        or any(re.search(r"[\s$`;|]", word.partition("=")[2]) for word in command.arguments)
    ):
        yield Finding("MEDIUM", "Gives make commands of its own.")


def _database(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    text = " ".join([*command.arguments, command.stdin or ""])
    if re.search(r"(?:^|\s)(?:\.(?:sh|sy|lo|im|o|re|exc|ba|cl)|\\!|system\s)|\b(?:writefile|load_extension)\b", text):
        yield Finding("MEDIUM", f"Lets {command.program} run a program.")


def _enable(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if "f" in command.flags or "p" in command.flags:
        yield Finding("HIGH", f"Replaces what a name runs ({command.program}).")


def _mapfile(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if "C" in command.flags:
        yield Finding("MEDIUM", f"Runs a text as a command ({command.program}).")


def _dc(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if "!" in " ".join([*command.arguments, command.stdin or ""]):
        yield Finding("MEDIUM", "A dc program that may run commands.")


def _bind(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    if command.arguments:
        yield Finding("MEDIUM", f"Binds keys or completions to commands ({command.program}).")


_OF_PROGRAM: dict[str, Callable[[SimpleCommand, str], Iterator[Finding]]] = {
    "rm": _rm,
    "chmod": _change_rights,
    "chown": _change_rights,
    "chgrp": _change_rights,
    "git": _git,
    "dd": _dd,
    "find": _find,
    "fd": _find,
    "rsync": _copy_out,
    "docker": _docker,
    "podman": _docker,
    "kill": _kill,
    "sed": _sed,
    "gsed": _sed,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    "history": _history,
    "init": _init,
    "eval": _eval,
    "mv": _move,
    "ln": _link,
    **dict.fromkeys(("cd", "pushd"), _change_directory),
    **dict.fromkeys(("trap", "alias"), _kept),
    "tar": _archive,
    **dict.fromkeys(("zip", "sort", "split", "rg", "bat"), _runs_programs),
    **dict.fromkeys(("make", "gmake"), _make),
    **dict.fromkeys(("sqlite3", "psql", "mysql", "mariadb"), _database),
    **dict.fromkeys(("enable", "hash"), _enable),
    **dict.fromkeys(("bind", "complete", "compgen"), _bind),
    **dict.fromkeys(("mapfile", "readarray"), _mapfile),
    "dc": _dc,
}
