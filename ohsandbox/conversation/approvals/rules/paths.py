"""Rules for paths: keys, files that other programs run, devices, and paths outside the workspace."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, known_names, quoted
from ohsandbox.runtime.workspace.sensitive_paths import runs_when_opened
from ohsandbox.text import quoted_brackets

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECRETS = re.compile(
    r"(?:^|[/~\s\"'=@])(?:\.ssh(?:/|\b)|\.aws/|\.gnupg\b|\.netrc\b|\.pypirc\b|\.git-credentials\b|\.kube/config|"
    r"\.docker/config\.json|\.config/gcloud|id_(?:rsa|dsa|ecdsa|ed25519)\b(?!\.pub))|"
    r"/etc/(?:shadow|gshadow|sudoers)|/proc/[^/\s]+/(?:environ|mem)\b"
)

_SECRET_NAMES = known_names("secret files")
"""Files and directories that hold keys or passwords, and components of their paths."""

_SECRET_FILES = re.compile(
    r"(?:^|/)(?:\.env\.(?!example$|sample$|template$|dist$|defaults$|schema$)[\w.-]+|[\w.-]+\.(?:kdbx|p12|pfx|jks|keystore|ppk)|"
    r"[\w-]*(?:private|priv|server|client|tls|ssl|host|domain|ca|signing)[\w-]*\.key|priv[\w-]*\.pem|[\w-]+_(?:rsa|ed25519|ecdsa)|"
    r"ssh_host_\w+_key|login\.keychain(?:-db)?|(?:credentials|secrets?)\.(?:json|ya?ml|toml|ini|env))$|"
    r"^/proc/[^/]+/(?:environ|mem|maps|cmdline)$|^/proc/kcore|^/dev/(?:mem|kmem|port)$|^/(?:var/)?run/secrets|"
    r"^/etc/(?:ssl/private|sudoers|security/opasswd|krb5\.keytab|kubernetes/.*\.conf|ssh/ssh_host)"
)
_NO_SECRET = re.compile(r"\.env/(?:bin|lib|Scripts|include)(?:/|$)|\.pub$")
_GLOB = re.compile(r"[*?\[]")

_RUN_BY_THEMSELVES = re.compile(
    r"(?:^|/)\.(?:bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|gitconfig|xinitrc|xprofile)$|"
    r"(?:^|/)authorized_keys$|(?:^|/)\.git/(?:hooks|config|info|modules|worktrees|commondir)(?:/|\.|$)|(?:^|/)\.git$|"
    r"(?:^|/)\.config/(?:autostart|systemd|git|fish|environment\.d)/|"
    r"(?:^|/)\.cargo/(?:env|bin)|"
    r"(?:^|/)\.(?:inputrc|npmrc|yarnrc(?:\.yml)?|pythonrc|gdbinit|tmux\.conf|screenrc|Rprofile|"
    r"pre-commit-config\.yaml|bash_aliases|zlogin|login|cshrc|kshrc|lesskey|lldbinit|psqlrc|sqliterc|irbrc|pryrc)$|"
    r"(?:^|/)(?:sitecustomize|usercustomize)\.py$|\.pth$|"
    r"^/etc/(?:cron|profile|rc\.|init|systemd|sudoers|ld\.so|pam\.d|passwd|group|hosts)|^/var/spool/cron|"
    r"^/(?:lib|usr/lib)/systemd/"
)
"""Files of a home directory, of git and of the system, in addition to `runs_when_opened`."""

_GIT = re.compile(r"(?:^|/)\.git/")
_LISTED_BY_GIT = re.compile(r"(?:^|/)\.(?:gitmodules|gitattributes|github/workflows/.*|gitlab-ci\.yml)$")
"""Files of the repository that make git or a build server run programs."""

_DEVICE = re.compile(r"^/dev/(?:sd|hd|vd|nvme|xvd|mmcblk|dm-|loop|mem|kmem|disk/|mapper/)|^/sys/|^/proc/sys")
_SOCKET = re.compile(r"docker\.sock|containerd\.sock|podman\.sock")

_ANYBODYS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - no file is made there
_HARMLESS = re.compile(r"^/dev/(?:null|zero|full|random|urandom|tty|stdin|stdout|stderr|fd/\d+)$")

_UNKNOWN = re.compile(r"[$`]")
"""A path that the shell computes."""


def place_findings(path: str, *, workdir: str) -> Iterator[Finding]:
    """Findings for writing to path. Links are not followed: only the sandbox knows their targets."""
    path = _HOME.sub("~", path)
    if _HARMLESS.match(path):
        return
    full = path if path.startswith("~") else posixpath.normpath(posixpath.join(workdir, path))
    full = re.sub(r"^//+", "/", full)
    if _RUN_BY_THEMSELVES.search(full) or runs_when_opened(full):
        yield Finding("HIGH", f"Writes {quoted(path)}, which other programs run or trust by themselves.")
    elif _GIT.search(full):
        yield Finding("MEDIUM", f"Writes git's own files: {quoted(path)}.")
    elif _LISTED_BY_GIT.search(full):
        yield Finding("MEDIUM", f"Writes {quoted(path)}, by which git or a build server runs programs.")
    if _DEVICE.search(full):
        yield Finding("HIGH", f"Writes to a device or the kernel: {quoted(path)}.")
    yield from secret_findings(full)
    if unknown := _UNKNOWN.search(full):
        full = full[: unknown.start()].rpartition("/")[0] or (
            "/" if full.startswith("/") and unknown.start() > 0 else workdir
        )
    if not is_inside(full, workdir) and not any(is_inside(full, at) for at in _ANYBODYS):
        yield Finding("HIGH", f"Writes outside the workspace: {quoted(path)}.")


def secret_findings(text: str) -> Iterator[Finding]:
    """Findings for paths of keys and passwords in the text, and for sockets of container engines."""
    if secret := _SECRETS.search(text):
        yield Finding("HIGH", f"Touches keys or passwords: {quoted(secret[0].strip())}.")
    if secret := _SOCKET.search(text):
        yield Finding("HIGH", f"Touches a container engine's socket: {quoted(secret[0])}.")


def secret_of_word(word: str) -> str:
    """Return a word of a command if it names a file of keys or passwords, also by a pattern of the shell; else ""."""
    if len(word) > _MAX_PATH_CHARS or _NO_SECRET.search(word):
        return ""
    for path in {word, re.split(r"[=:@]", word)[-1]}:
        if _SECRET_FILES.search(_HOME.sub("~", path)):
            return word
        parts = path.split("/")
        for number, part in enumerate(parts):
            if (
                part in _SECRET_NAMES
                or f"{part}/{parts[number + 1] if number + 1 < len(parts) else ''}" in _SECRET_NAMES
            ):
                return word
            if (
                _GLOB.search(part)
                and part[0] in ".[i"
                and any(fnmatch.fnmatchcase(name, quoted_brackets(part)) for name in _SECRET_NAMES)
            ):
                return word
    return ""


_MAX_PATH_CHARS = 4096


def is_home(path: str) -> bool:
    """Whether the path is a home directory, or a directory that contains them."""
    path = _HOME.sub("~", path).rstrip("/")
    return path in {"~", "", "/root", "/home", "/etc", "/proc", "/Users", "/run", "/var"} or bool(
        re.fullmatch(r"~[\w-]*|/(?:home|Users)/[^/]+", path)
    )


def is_inside(path: str, directory: str) -> bool:
    """Whether a normalised path is the directory or lies in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_wide(path: str, *, workdir: str) -> bool:
    """Whether a recursive deletion or change of path would affect files outside the workspace, or all of it."""
    path = _HOME.sub("~", path)
    bare = path.rstrip("*").rstrip("/") if path.rstrip("*") != "" else path
    if path.startswith("~") or path.rstrip("/*") == "":
        return path.startswith(("/", "~"))
    full = posixpath.normpath(posixpath.join(workdir, bare))
    if any(is_inside(full, at) and full != at for at in _ANYBODYS):
        return False
    return not is_inside(full, workdir) or full == workdir


_HOME = re.compile(r"^\$(?:HOME\b|\{HOME\})")
