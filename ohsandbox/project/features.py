"""Features of a devcontainer in the project: directories whose install script runs while an image is built.

Features are read once, with limits and without following links, so that exactly what the user trusts is built. The
script gets its options as variables from a quoted file, never as text of a Dockerfile.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import shutil
import stat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import opened_dir
from ohsandbox.strict_json import number_faults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MANIFEST = "devcontainer-feature.json"
MAX_FEATURES = 32
MAX_FILES = 200
"""Maximum number of files of one feature; install scripts have two or three."""
MAX_BYTES = 2 * 1024 * 1024
"""Maximum size of all files of one feature together."""
MAX_DEPTH = 16
"""Maximum depth of one feature's directories."""
STAGED = "feature-builds"
"""Directory below the state directory with the files from which features are built, by hash; the modification time is
that of the last use."""
_QUIET = frozenset({
    "id", "version", "name", "description", "documentationURL", "licenseURL", "keywords", "options", "containerEnv",
    "customizations", "installsAfter", "dependsOn", "legacyIds", "deprecated", "$schema",
})  # fmt: skip
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FeatureFile(NamedTuple):
    """A file of a feature, as it was read."""

    path: str
    is_program: bool
    content: bytes


class Feature(NamedTuple):
    """A validated feature; none of it has run."""

    reference: str
    """The reference in the devcontainer.json."""
    id: str
    version: str
    variables: dict[str, str]
    """Variables for its script: its options, and the users that the devcontainer names."""
    container_env: dict[str, str]
    after: tuple[str, ...]
    needs: tuple[str, ...]
    files: tuple[FeatureFile, ...]
    left_out: tuple[str, ...]
    """Properties that are not used."""

    def shown(self) -> str:
        """Return one line for the question: the feature, its version, options, and the hash of its files."""
        digest = hashlib.sha256(repr(self.files).encode()).hexdigest()[:12]
        given = "".join(f" {name}={value!r}" for name, value in self.variables.items() if not name.startswith("_"))
        return f"{self.reference} {self.version} ({digest}){given}"


def read_feature(devcontainer: Path, reference: str, given: object, users: Mapping[str, str]) -> Feature:
    """Read the feature in a directory below that of a devcontainer.json; its options and users become variables.

    Raises:
        UsageError: the feature is missing or elsewhere, has links or too many or large files, or its manifest or an
            option is wrong.
    """
    return feature_of(_files(devcontainer, reference), reference, given, users)


def feature_of(files: tuple[FeatureFile, ...], reference: str, given: object, users: Mapping[str, str]) -> Feature:
    """Return the feature with these files; given and users are as for `read_feature`.

    Raises:
        UsageError: a file is missing, or its manifest or an option is wrong.
    """
    import pyjson5  # noqa: PLC0415 - few projects have a feature

    contents = {one.path: one.content for one in files}
    if MANIFEST not in contents or "install.sh" not in contents:
        raise UsageError(f"feature {reference!r} has no {MANIFEST} or no install.sh. Add it.")
    try:
        said = pyjson5.decode(contents[MANIFEST].decode("utf-8-sig"), maxdepth=16)
    except (ValueError, RecursionError, pyjson5.Json5Exception):
        raise UsageError(f"feature {reference!r}: its {MANIFEST} is not JSON with comments. Correct it.") from None
    for location, message in number_faults(said):
        raise UsageError(f"feature {reference!r}: in its {MANIFEST}, {'.'.join(location)} {message}. Correct it.")
    if not isinstance(said, dict) or not isinstance(said.get("id"), str) or not _ID.fullmatch(said["id"]):
        raise UsageError(f"feature {reference!r}: its {MANIFEST} has no valid 'id'. Correct it.")
    environment = _object(said, "containerEnv", reference)
    for name, value in environment.items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or _CONTROL.search(value):
            raise UsageError(f"feature {reference!r}: containerEnv {name!r} is not a variable of one line. Correct it.")
    after = said.get("installsAfter", [])
    if not isinstance(after, list):
        raise UsageError(f"feature {reference!r}: 'installsAfter' is not a list. Correct it.")
    return Feature(
        reference, str(said["id"]), str(said.get("version", "")),
        _variables(_object(said, "options", reference), given, reference) | dict(users), environment,
        tuple(map(str, after)), tuple(_object(said, "dependsOn", reference)), files,
        tuple(sorted(key for key in said if key not in _QUIET and said[key] not in (None, False, "", [], {}))),
    )  # fmt: skip


def in_order(features: Sequence[Feature], first: Sequence[str]) -> tuple[list[Feature], list[tuple[Feature, str]]]:
    """Return the features in the order of installation, and those that need a missing one, with its name.

    Among features that could be next, those in `first` come first, then the order of the file decides.

    Raises:
        UsageError: features depend on each other.
    """
    left, missing = list(features), list[tuple[Feature, str]]()
    while lacking := [
        (one, need) for one in left for need in one.needs if not any(_names(need, other) for other in left)
    ]:
        missing.append(lacking[0])
        left.remove(lacking[0][0])
    rank = {name: place for place, name in reversed(list(enumerate(first)))}
    left.sort(key=lambda one: min((at for name, at in rank.items() if _names(name, one)), default=len(rank)))
    ordered: list[Feature] = []
    while left:
        ready = (
            one
            for one in left
            if not any(other is not one and _names(name, other) for name in one.after + one.needs for other in left)
        )
        if (following := next(ready, None)) is None:
            raise UsageError(f"features {', '.join(one.reference for one in left)} wait for each other. Correct them.")
        ordered.append(following)
        left.remove(following)
    return ordered, missing


def staged(features: Sequence[Feature]) -> Path:
    """Write the features to a directory of ours, from which they are built as a `Build` with a `base`; return it.

    Raises:
        OSError: the directory cannot be written.
    """
    contents: dict[str, tuple[bytes, int]] = {"Dockerfile": (_dockerfile(features).encode(), 0o644)}
    for number, feature in enumerate(features):
        contents[f"{number}/run"] = _script(feature, number).encode("utf-8", "surrogateescape"), 0o755
        for one in feature.files:
            mode = 0o755 if one.is_program or one.path == "install.sh" else 0o644
            contents[f"{number}/feature/{one.path}"] = one.content, mode
    directory = subdirectory(STAGED) / hashlib.sha256(repr(contents).encode()).hexdigest()
    if directory.is_dir():
        os.utime(directory)
        return directory
    new = directory.with_name(secrets.token_hex(16))
    for name, (content, mode) in contents.items():
        file = new / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
    for above in (new, *new.rglob("*")):
        if above.is_dir():
            above.chmod(0o755)  # the script may run as any user; the directory above is accessible only to us
    try:
        new.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
        shutil.rmtree(new)  # another process has created it first
    return directory


def _files(devcontainer: Path, reference: str) -> tuple[FeatureFile, ...]:
    """Return all files of a feature; no link is followed, and other file types do not block."""
    parts = PurePosixPath(reference).parts
    if ".." in parts or not parts or "\0" in reference:
        raise UsageError(f"feature {reference!r} is outside of the devcontainer's directory. Move it there.")
    found: list[FeatureFile] = []
    total = directories = 0
    try:
        with opened_dir(devcontainer.resolve(), *parts) as here:
            for above, below, names, descriptor in os.fwalk(".", dir_fd=here, follow_symlinks=False):
                links = (one for one in below if _is_link(one, descriptor))
                directories += len(below)
                if above.count("/") > MAX_DEPTH or directories > MAX_FILES:
                    raise UsageError(f"feature {reference!r} has too many directories. Remove some.")
                for name in (*names, *links):
                    path = os.path.normpath(f"{above}/{name}")
                    with os.fdopen(os.open(name, _FILE, dir_fd=descriptor), "rb") as file:
                        facts = os.fstat(file.fileno())
                        if not stat.S_ISREG(facts.st_mode):
                            raise UsageError(f"feature {reference!r}: {path!r} is not a regular file. Remove it.")
                        content = file.read(MAX_BYTES + 1 - total)
                    total += len(content)
                    found.append(FeatureFile(path, bool(facts.st_mode & stat.S_IXUSR), content))
                    if total > MAX_BYTES or len(found) > MAX_FILES:
                        raise UsageError(
                            f"feature {reference!r} has over {MAX_FILES} files or {MAX_BYTES} bytes. Shorten it."
                        )
    except OSError as error:
        raise UsageError(
            f"feature {reference!r} cannot be read through no link: {error.filename!r}: {error.strerror}. Correct it."
        ) from None
    return tuple(sorted(found))


def _is_link(name: str, above: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _object(said: dict[str, Any], key: str, reference: str) -> dict[str, Any]:
    value = said.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"feature {reference!r}: {key!r} is not an object. Correct it.")
    return value


def _variables(known: dict[str, Any], given: object, reference: str) -> dict[str, str]:
    """Return the options as variables: the given values, or else the defaults."""
    chosen = given if isinstance(given, dict) else {"version": given}
    if not isinstance(given, dict | str | bool):
        raise UsageError(f"feature {reference!r}: its options are not an object. Correct them.")
    if given in ("", True) or (isinstance(given, str) and "version" not in known):
        chosen = {}
    found: dict[str, str] = {}
    for name in (*known, *(name for name in chosen if name not in known)):
        told = known.get(name)
        if not isinstance(told, dict):
            raise UsageError(f"feature {reference!r} has no option {name!r}. It has: {', '.join(known) or 'none'}.")
        value: object = chosen.get(name, told.get("default", False if told.get("type") == "boolean" else ""))
        wanted = bool if told.get("type") == "boolean" else str
        if not isinstance(value, wanted) and str(value).lower() not in {"true", "false"}:
            raise UsageError(f"feature {reference!r}: option {name!r} is not a {told.get('type')}. Correct it.")
        if isinstance(told.get("enum"), list) and value not in told["enum"]:
            raise UsageError(f"feature {reference!r}: option {name!r} is not one of {told['enum']}. Correct it.")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if "\0" in text:
            raise UsageError(f"feature {reference!r}: option {name!r} holds a NUL byte. Correct it.")
        found[re.sub(r"^[\d_]+", "_", re.sub(r"[^A-Za-z0-9_]", "_", name)).upper()] = text
    return found


def _names(reference: str, feature: Feature) -> bool:
    """Whether a reference names a feature; its version is ignored."""
    bare = re.sub(r"(?:@[^@/]*|:[^:/]*)$", "", reference)
    return bare == feature.reference or bare.rpartition("/")[2] == feature.id


def _dockerfile(features: Sequence[Feature]) -> str:
    lines = ["ARG BASE", "FROM ${BASE}", "ARG BASE_USER", "ARG BASE_ID", "USER root"]
    for number, feature in enumerate(features):
        for name, value in feature.container_env.items():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'ENV {name}="{escaped}"')
        lines.append(f"COPY {number} {_place(number)}")
        lines.append(f'RUN ["/bin/sh", "{_place(number)}/run"]')
    return "\n".join([*lines, "USER ${BASE_USER}", ""])


def _place(number: int) -> str:
    return f"/var/tmp/ohsandbox-feature-{number}"  # noqa: S108 - in the image


def _script(feature: Feature, number: int) -> str:
    """Return the commands that root runs: the feature's script with quoted variables, then removal of its files."""
    own = [f"export {name}={shlex.quote(value)}" for name, value in feature.variables.items()]
    return "\n".join([
        "set -eu",
        'home_of() { while IFS=: read -r name _ uid _ _ home _; do if [ "$name" = "$1" ] || [ "$uid" = "$1" ]; then',
        'echo "$home"; return; fi; done < /etc/passwd; }',
        'image_user="${BASE_USER%%:*}"',
        *(f"{name}={shlex.quote(feature.variables.get(name, ''))}" for name in ("_REMOTE_USER", "_CONTAINER_USER")),
        '_CONTAINER_USER="${_CONTAINER_USER:-$image_user}"',
        '_REMOTE_USER="${_REMOTE_USER:-$_CONTAINER_USER}"',
        '_REMOTE_USER_HOME="$(home_of "$_REMOTE_USER")" _CONTAINER_USER_HOME="$(home_of "$_CONTAINER_USER")"',
        *(one for one in own if not one.startswith(("export _REMOTE_USER=", "export _CONTAINER_USER="))),
        "export _REMOTE_USER _CONTAINER_USER _REMOTE_USER_HOME _CONTAINER_USER_HOME",
        f"cd {_place(number)}/feature",
        "./install.sh",
        f"/bin/rm -rf {_place(number)}",
        "",
    ])  # fmt: skip
