"""Rules about single commands: a table of programs, and a function for those whose options decide."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.confirmation.findings import Finding, quoted
from ohsandbox.conversation.confirmation.places import is_wide, place_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.conversation.confirmation.shell_words import Simple

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php", "lua"}
DOWNLOADERS = frozenset({"curl", "wget", "fetch", "aria2c", "lynx"})

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

_PUBLISHES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("npm", "pnpm", "yarn", "cargo", "poetry", "uv", "flit", "hatch"), frozenset({"publish"})),
    "gem": frozenset({"push"}),
    "twine": frozenset({"upload"}),
    "docker": frozenset({"push"}),
    "gh": frozenset({"merge", "create", "delete", "close", "edit"}),
    "kubectl": frozenset({"delete", "apply", "exec", "drain", "replace", "scale"}),
    "terraform": frozenset({"destroy", "apply"}),
    "aws": frozenset({"rm", "cp", "sync", "mv", "delete-object", "terminate-instances"}),
    "gcloud": frozenset({"delete", "deploy"}),
    "helm": frozenset({"install", "uninstall", "upgrade", "delete"}),
    "systemctl": frozenset({"enable", "disable", "mask", "stop", "start", "restart", "edit"}),
}

_WRITERS = frozenset({"tee", "touch", "mkdir", "truncate", "ln", "cp", "mv", "install", "rsync", "rmdir", "unlink"})
_LAST_OPERAND_ONLY = frozenset({"ln", "cp", "install", "rsync"})
_HAS_HOST = re.compile(r"^(?:[\w.-]+@)?[\w.-]+:(?!\\)|^rsync://")


def simple_findings(command: Simple, *, workdir: str) -> Iterator[Finding]:
    """What the rules find in one command by itself."""
    name = command.program
    if rule := _RULE_OF.get(name.split(".", 1)[0]):
        yield rule
    words = set(command.operands[:4])
    if words & _INSTALLERS.get(name, frozenset()):
        yield _INSTALLS
    if words & _PUBLISHES.get(name, frozenset()):
        yield Finding("HIGH", f"Changes what others use or see: {quoted(' '.join([name, *command.operands[:2]]))}.")
    if name in _OF_PROGRAM:
        yield from _OF_PROGRAM[name](command, workdir)
    for target in command.written:
        yield from place_findings(target, workdir=workdir)
    if name in _WRITERS:
        targets = command.operands[-1:] if name in _LAST_OPERAND_ONLY else command.operands
        for target in targets:
            if not _HAS_HOST.match(target):
                yield from place_findings(target, workdir=workdir)
    if "$" in name or "`" in name:
        yield Finding("MEDIUM", f"The program itself is computed: {quoted(name)}.")


def _rm(command: Simple, workdir: str) -> Iterator[Finding]:
    recursive = bool(set(command.flags) & {"r", "R"}) or command.has("--recursive")
    if command.has("--no-preserve-root"):
        yield Finding("HIGH", "Deletes the root directory.")
    for target in command.operands:
        if recursive and is_wide(target, workdir=workdir):
            yield Finding("HIGH", f"Deletes {quoted(target)} as a tree, which is more than the workspace's own files.")
        elif recursive and target[:1] in {"$", "`"}:
            yield Finding("HIGH", f"Deletes as a tree what {quoted(target)} stands for; if empty, perhaps all.")
        else:
            yield from place_findings(target, workdir=workdir)
    if recursive:
        yield Finding("MEDIUM", "Deletes a whole tree.")
    if "xargs" in command.wrapped_by:
        yield Finding("MEDIUM", "Deletes what another program lists.")


def _change_rights(command: Simple, workdir: str) -> Iterator[Finding]:
    recursive = "R" in command.flags or command.has("--recursive")
    mode, *targets = command.operands or [""]
    for target in targets:
        if recursive and is_wide(target, workdir=workdir):
            yield Finding("HIGH", f"Changes the rights of {quoted(target)} as a tree.")
        elif is_wide(target, workdir=workdir):
            yield from place_findings(target, workdir=workdir)
    if command.program == "chmod" and re.fullmatch(r"[ugoa]*\+[rwx]*s[rwx]*|[2-7]\d{3}", mode):
        yield Finding("HIGH", "Lets a program run with its owner's rights (setuid, setgid).")


def _git(command: Simple, _workdir: str) -> Iterator[Finding]:
    words = command.operands
    if "push" in words:
        forced = "f" in command.flags or command.has("--force", "--force-with-lease", "--mirror", "--delete", "--prune")
        if forced or any(word.startswith(("+", ":")) for word in words[words.index("push") + 1 :]):
            yield Finding("HIGH", "Overwrites or deletes what others have (git push by force).")
        else:
            yield Finding("HIGH", "Sends commits out (git push).")
    if ("reset" in words and command.has("--hard")) or "clean" in words or "filter-branch" in words:
        yield Finding("MEDIUM", "Throws away work in the repository.")
    if "branch" in words and "D" in command.flags:
        yield Finding("MEDIUM", "Deletes a branch that may not be merged.")
    if "config" in words and command.has("--global", "--system"):
        yield _STAYS


def _web(command: Simple, workdir: str) -> Iterator[Finding]:
    sends = command.has(
        "--data", "--data-binary", "--data-raw", "--data-urlencode", "--json", "--form", "--upload-file",
        "--post-data", "--post-file", "--body-file", "--body-data", "--method",
    )  # fmt: skip
    short = [word[:2] for word in command.arguments]
    if sends or (command.program == "curl" and {"-d", "-F", "-T"} & set(short)):
        yield Finding("HIGH", f"Sends data out with {command.program}.")
    elif re.search(r"\$\(|`|\$[A-Z_]*(?:KEY|TOKEN|SECRET|PASS)", " ".join(command.arguments)):
        yield Finding("HIGH", f"Puts computed or secret text into a request of {command.program}.")
    else:
        yield Finding("MEDIUM", f"Uses the network ({command.program}).")
    options = zip(command.arguments, command.arguments[1:], strict=False)
    for option, value in options:
        if option in {"-o", "--output", "-O", "--output-document"} and not value.startswith(("-", "http")):
            yield from place_findings(value, workdir=workdir)


def _dd(command: Simple, workdir: str) -> Iterator[Finding]:
    for word in command.arguments:
        if word.startswith("of="):
            yield from place_findings(word.removeprefix("of="), workdir=workdir)


def _find(command: Simple, workdir: str) -> Iterator[Finding]:
    if command.has("-delete") or ("rm" in command.arguments and command.has("-exec", "-execdir")):
        wide = any(
            is_wide(target, workdir=workdir) and target.startswith(("/", "~")) for target in command.operands[:1]
        )
        yield Finding("HIGH" if wide else "MEDIUM", "Deletes what `find` finds.")


def _copy_out(command: Simple, _workdir: str) -> Iterator[Finding]:
    if any(_HAS_HOST.match(word) for word in command.operands):
        yield _REMOTE
    if command.has("--delete", "--remove-source-files"):
        yield Finding("MEDIUM", "Deletes at the target what the source has not.")


def _docker(command: Simple, _workdir: str) -> Iterator[Finding]:
    text = " ".join(command.arguments)
    if command.has("--privileged", "--pid", "--cap-add") or re.search(r"(?:-v|--volume|source)[= ]/(?::|\s|,)", text):
        yield Finding("HIGH", "Starts a container that reaches the host.")
    if {"prune", "rm", "rmi"} & set(command.operands):
        yield Finding("MEDIUM", "Removes containers, images or volumes.")


def _kill(command: Simple, _workdir: str) -> Iterator[Finding]:
    if "-1" in command.arguments[1:] or command.arguments[-1:] == ("-1",):
        yield Finding("HIGH", "Ends every process.")


def _in_place(command: Simple, workdir: str) -> Iterator[Finding]:
    if any(word.startswith(("-i", "--in-place")) for word in command.arguments):
        for target in command.operands[1:]:
            yield from place_findings(target, workdir=workdir)


def _history(command: Simple, _workdir: str) -> Iterator[Finding]:
    if "c" in command.flags:
        yield Finding("HIGH", "Wipes the shell's history.")


def _init(command: Simple, _workdir: str) -> Iterator[Finding]:
    if set(command.operands) & {"0", "6"}:
        yield _MACHINE


def _eval(_command: Simple, _workdir: str) -> Iterator[Finding]:
    yield Finding("MEDIUM", "Runs a text as a command (eval).")


def _move(command: Simple, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1]:
        if is_wide(target, workdir=workdir):
            yield Finding("HIGH", f"Moves {quoted(target)} away.")


_OF_PROGRAM: dict[str, Callable[[Simple, str], Iterator[Finding]]] = {
    "rm": _rm,
    "chmod": _change_rights,
    "chown": _change_rights,
    "chgrp": _change_rights,
    "git": _git,
    "curl": _web,
    "wget": _web,
    "dd": _dd,
    "find": _find,
    "rsync": _copy_out,
    "docker": _docker,
    "podman": _docker,
    "kill": _kill,
    "sed": _in_place,
    "history": _history,
    "init": _init,
    "eval": _eval,
    "mv": _move,
}
