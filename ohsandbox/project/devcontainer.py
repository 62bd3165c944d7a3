"""A project's devcontainer.json, read as data: which parts a sandbox gets, and which not, with the reasons.

The file was written for a tool that grants a container everything it asks for. Here it is treated as `.ohsandbox.toml`
is: it has no effect before the user trusts it, nothing of it runs on this machine, and it gives the sandbox no more
rights.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.private_files import open_regular
from ohsandbox.project.features import MAX_FEATURES, Feature, feature_of, in_order, read_feature
from ohsandbox.project.registry import fetch_feature, parse_reference
from ohsandbox.runtime.build_options import Build
from ohsandbox.strict_json import number_faults

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""Paths relative to the project; otherwise the only file `.devcontainer/NAME/devcontainer.json`."""
MAX_FILE_BYTES = 256 * 1024
"""Maximum size; the largest file seen had 30 KiB."""
MAX_DEPTH = 32
_SETUP_KEYS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""Keys of setup commands in the order in which they run, once for a new sandbox."""
_SILENT = frozenset({
    "$schema", "name", "customizations", "extensions", "settings", "portsAttributes", "otherPortsAttributes", "waitFor",
    "userEnvProbe", "shutdownAction", "updateRemoteUserUID", "hostRequirements", "overrideCommand", "init", "secrets",
    "service", "runServices", "workspaceMount", "devPort",
})  # fmt: skip
"""Keys that concern an editor or a cloud machine, or have no meaning here."""
_READ = frozenset({
    "image", "build", "dockerFile", "dockerfile", "context", "features", "containerEnv", "remoteEnv", "containerUser",
    "remoteUser", "mounts", "forwardPorts", "appPort", "workspaceFolder", "postStartCommand", "runArgs",
    "dockerComposeFile", "overrideFeatureInstallOrder", *_SETUP_KEYS,
})  # fmt: skip
_NO_MORE_RIGHTS = "a sandbox gets no more rights; --profile trusted is what there is"
_NEVER = {
    "privileged": _NO_MORE_RIGHTS,
    "capAdd": _NO_MORE_RIGHTS,
    "securityOpt": _NO_MORE_RIGHTS,
    "initializeCommand": "it would run on this machine, which nothing of a project does",
    "postAttachCommand": "it is for an editor; run it yourself where you need it",
}
_QUIET_ARGUMENTS = frozenset(
    {"--name", "--rm", "--init", "--label", "-l", "--hostname", "-h", "--tty", "-it", "-i", "-t"}
)
_WITH_VALUE = frozenset({
    "--name", "--label", "-l", "--hostname", "-h", "--cap-add", "--cap-drop", "--security-opt", "--device", "--network",
    "--net", "-v", "--volume", "--mount", "-p", "--publish", "--env-file", "--gpus", "--ipc", "--pid", "--shm-size",
    "--memory", "-m", "--cpus", "--add-host", "--group-add", "--ulimit", "--userns", "--dns", "--platform", "--runtime",
    "-w", "--workdir", "--restart", "--entrypoint",
})  # fmt: skip
_VARIABLE = re.compile(r"\$\{([A-Za-z]{1,40})(?::([^{}:]{0,200}))?(?::([^{}]{0,1000}))?\}")
_PLACE = re.compile(r" near ([0-9]{1,9})")
_BYTES = re.compile(r"b'([A-Za-z0-9]{1,20})'")
_CODE_POINT = re.compile(r"U\+([0-9a-fA-F]{4,5})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_PORTS = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
MAX_PORT = 65535


def _names_a_place(name: str, value: str) -> bool:
    """Whether a variable of this machine is part of a path, and not a secret, which must not be shown."""
    return name in {"USER", "LOGNAME", "USERNAME"} or (value.startswith("/") and os.path.lexists(value))


class DevContainer(NamedTuple):
    """The validated content of a devcontainer.json, before any use."""

    path: Path
    image: str | None
    build: Build | None
    """As in the file, its context relative to the file's directory; of a `Project`, the paths are absolute."""
    env: dict[str, str]
    local: dict[str, tuple[str, str]]
    """Variables of the sandbox with the value of one of this machine: that one's name, and the default."""
    user: str | None
    setup: tuple[str, ...]
    start: tuple[str, ...]
    """Commands that run at each start of the sandbox."""
    mounts: tuple[str, ...]
    """Mounts as SOURCE:TARGET[:ro]."""
    forward: tuple[str, ...]
    folder: str
    """Path of the project's files in the sandbox."""
    left_out: tuple[str, ...]
    """Properties that are not used, each with the reason."""
    features: tuple[Feature, ...] = ()
    """Features in the project, in the order of their installation on the image."""
    registry: tuple[tuple[str, Any], ...] = ()
    """Features of registries with their options, before they are fetched; features then have no order yet."""
    users: dict[str, str] = {}  # noqa: RUF012 - a default that nobody changes
    """Variables with the users' names for features' scripts."""
    first: tuple[str, ...] = ()
    """References of features to install first."""

    @property
    def is_used(self) -> bool:
        """Whether any part of the file is used."""
        return bool(self.folder)

    def shown_features(self) -> list[str]:
        """Return a line for each feature, for the question whether to trust it."""
        lines = [one.shown() for one in self.features]
        for name, given in self.registry:
            options = f" {json.dumps(given, ensure_ascii=False)}" if given not in ({}, "", True) else ""
            host = name.partition("/")[0]
            lines.append(f"{name}{options} (fetched from {host} after your yes, and kept as it is then)")
        return lines

    def fetched(self, project: Path) -> DevContainer:
        """Return a copy with registries' features fetched, in order; `left_out` then has features' unused parts.

        Raises:
            UsageError: features depend on each other.
        """
        features, left_out = [*self.features], list[str]()
        for name, given in self.registry:
            try:
                features.append(feature_of(fetch_feature(project, name), name, given, self.users))
            except UsageError as error:
                left_out.append(f"feature {name} ({str(error).removeprefix(f'feature {name!r}: ')})")
        return self.ordered(features, left_out)

    def ordered(self, features: list[Feature], left_out: list[str]) -> DevContainer:
        """Return a copy with these features in order, and left_out extended by their unused parts."""
        try:
            ordered, missing = in_order(features, self.first)
        except UsageError as error:
            raise fault(self.path, str(error)) from None
        left_out += [f"feature {one.reference} (it depends on {need}, which is not installed)" for one, need in missing]
        return self._replace(features=tuple(ordered), registry=(), left_out=(*left_out, *_unused(ordered)))


def _unused(features: Sequence[Feature]) -> list[str]:
    """Return the unused parts of features."""
    why = "only its script, variables and order are used"
    return [f"{key} of feature {one.reference} ({why})" for one in features for key in one.left_out]


def find_devcontainer(directory: Path, named: str | None = None) -> DevContainer | None:
    """Return the file of a project's directory, or the one named relative to it; None if there is none.

    Raises:
        UsageError: it is not a regular file or not JSON with comments, or says something of the wrong kind.
    """
    if named is not None:
        return _read(directory / named, directory)
    for place in PLACES:
        if os.path.lexists(directory / place):
            return _read(directory / place, directory)
    several = sorted(directory.glob(".devcontainer/*/devcontainer.json"))
    if len(several) > 1:
        names = ", ".join(str(one.relative_to(directory)) for one in several[:5])
        return _nothing(
            several[0], f'there are {len(several)} ({names}): name one, devcontainer = "PATH" in .ohsandbox.toml'
        )
    return _read(several[0], directory) if several else None


def _nothing(path: Path, why: str) -> DevContainer:
    return DevContainer(path, None, None, {}, {}, None, (), (), (), (), "", (f"all of it: {why}",))


def _json_fault(error: Exception, text: str) -> str:
    """Return the parser's error in plain words, with the line; the parser gives an offset or nothing."""
    said = str(error.args[0] if error.args else error).partition("\n")[0][:200]
    said = _BYTES.sub(r"\1", _CODE_POINT.sub(lambda found: repr(chr(int(found[1], 16))), said))
    if (place := _PLACE.search(said)) is None:
        return said
    line = text.count("\n", 0, int(place[1])) + 1
    return f"line {line}: {said[: place.start()]}{said[place.end() :]}"


def _read(path: Path, directory: Path) -> DevContainer:
    inside = path.parent.resolve()
    if not inside.is_relative_to(directory):
        raise fault(path, "it lies outside of the project. Name one that lies in it.")
    with os.fdopen(open_regular(inside / path.name, os.O_RDONLY, name="Devcontainer file"), "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise fault(path, f"over {MAX_FILE_BYTES} bytes. Shorten it.")
    import pyjson5  # noqa: PLC0415 - most directories have no such file

    try:
        text = data.decode("utf-8-sig")
        said = pyjson5.decode(text, maxdepth=MAX_DEPTH)
    except UnicodeDecodeError:
        raise fault(path, "not UTF-8. Correct it.") from None
    except (ValueError, RecursionError, pyjson5.Json5Exception) as error:
        raise fault(path, f"not JSON with comments: {_json_fault(error, text)}. Correct it.") from None
    for location, message in number_faults(said):
        raise fault(path, f"{'.'.join(location)} {message}. Correct it.")
    if not isinstance(said, dict):
        raise fault(path, "not an object. Correct it.")
    if "dockerComposeFile" in said:
        return _nothing(path, "it is a Compose project; say image or build, and services, in .ohsandbox.toml")
    return _Reader(path, directory, said).result()


def fault(path: Path, told: str) -> UsageError:
    """Return an error with what is wrong in the file, and the remedies."""
    return UsageError(
        f"Devcontainer file {str(path)!r}: {told} (`devcontainer = false` in .ohsandbox.toml, or --no-project of run, "
        "exec, shell and mcp serve, leaves it out.)"
    )


class _Reader:
    def __init__(self, path: Path, directory: Path, said: dict[str, Any]) -> None:
        self._path, self._directory, self._said = path, directory, said
        self._left_out: list[str] = []
        folder = said.get("workspaceFolder")
        default = f"/workspaces/{directory.name}"
        self._folder = default
        self._folder = (
            default if folder is None else self._plain("workspaceFolder", self._text("workspaceFolder", folder))
        )
        if not self._folder.startswith("/") or ".." in self._folder.split("/"):
            raise self._wrong("workspaceFolder", "an absolute path")

    def result(self) -> DevContainer:
        said = self._said
        for key in said:
            if key in _NEVER and said[key] not in (None, False, "", [], {}):
                self._drop(key, _NEVER[key])
            elif key not in _READ and key not in _SILENT and key not in _NEVER:
                self._drop(key, "nothing here has this name")
        env, local = self._environment()
        user = said.get("remoteUser") or said.get("containerUser")
        user = None if user is None else self._plain("remoteUser", self._text("remoteUser", user))
        more, user_of_arguments = self._run_arguments()
        image = said.get("image")
        build = self._build()
        if image is not None and build is not None:
            raise fault(self._path, "'image' and 'build' exclude each other. Leave one out.")
        dev = DevContainer(
            self._path, None if image is None else self._plain("image", self._text("image", image)), build,
            more | env, local, user or user_of_arguments,
            tuple(one for key in _SETUP_KEYS for one in self._commands(key)), tuple(self._commands("postStartCommand")),
            self._mounts(), self._ports(), self._folder, left_out=(),
        )  # fmt: skip
        return self._with_features(dev, user or user_of_arguments)

    # --- parts of the file ---

    def _build(self) -> Build | None:
        said = self._said
        build = said.get("build")
        if build is None:
            file = said.get("dockerFile", said.get("dockerfile"))
            if file is None:
                return None
            build = {"dockerfile": file, "context": said.get("context", ".")}
        build = self._object("build", build)
        for key in build.keys() - {"dockerfile", "context", "args", "target", "cacheFrom", "options"}:
            self._drop(f"build.{key}", "nothing here has this name")
        if build.get("options"):
            self._drop("build.options", "arguments of a builder that is not ours")
        args = {
            name: self._plain("build.args", str(value))
            for name, value in self._object("build.args", build.get("args", {})).items()
        }
        context = self._plain("build.context", self._text("build.context", build.get("context", ".")))
        file = self._plain("build.dockerfile", self._text("build.dockerfile", build.get("dockerfile", "Dockerfile")))
        target = build.get("target")
        return Build(context, file, args, None if target is None else self._text("build.target", target))

    def _with_features(self, dev: DevContainer, user: str | None) -> DevContainer:
        """Return dev with the project's installable features, and those of registries by name; note the others."""
        named = {"_REMOTE_USER": user, "_CONTAINER_USER": self._said.get("containerUser")}
        users = {name: self._text("containerUser", value) for name, value in named.items() if value is not None}
        own, registry = [], []
        for name, given in self._object("features", self._said.get("features", {})).items():
            if dev.image is None and dev.build is None:
                self._drop(f"feature {name}", "the file has neither image nor build to install it in")
            elif name.startswith("./"):
                own.append((name, given))
            elif parse_reference(name) is not None:
                registry.append((name, given))
            else:
                self._drop(f"feature {name}", "it is neither ./NAME nor HOST/PATH:TAG of a registry")
        if len(own) + len(registry) > MAX_FEATURES:
            raise fault(self._path, f"over {MAX_FEATURES} features. Leave some out.")
        first = self._texts("overrideFeatureInstallOrder", self._said.get("overrideFeatureInstallOrder", []))
        try:
            features = [read_feature(self._path.parent, name, given, users) for name, given in own]
        except UsageError as error:
            raise fault(self._path, str(error)) from None
        dev = dev._replace(users=users if own or registry else {}, first=tuple(first), left_out=tuple(self._left_out))
        if registry:
            left_out = (*dev.left_out, *_unused(features))
            return dev._replace(features=tuple(features), registry=tuple(registry), left_out=left_out)
        return dev.ordered(features, [*self._left_out])

    def _environment(self) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        env: dict[str, str] = {}
        local: dict[str, tuple[str, str]] = {}
        for key in ("containerEnv", "remoteEnv"):
            for name, value in self._object(key, self._said.get(key, {})).items():
                if value is None:
                    env.pop(name, None)
                    local.pop(name, None)
                    continue
                if not _NAME.fullmatch(name) or not isinstance(value, str | int | float | bool):
                    raise self._wrong(key, "names of variables with texts")
                text = str(value).lower() if isinstance(value, bool) else str(value)
                whole = _VARIABLE.fullmatch(text)
                if whole and whole[1] in {"localEnv", "env"} and whole[2] and _NAME.fullmatch(whole[2]):
                    env.pop(name, None)
                    local[name] = whole[2], whole[3] or ""
                elif "${localEnv:" in text:
                    self._drop(f"{key} {name}", "a variable of this machine is given as a whole value alone")
                else:
                    local.pop(name, None)
                    env[name] = self._plain(f"{key} {name}", text)
        return env, local

    def _run_arguments(self) -> tuple[dict[str, str], str | None]:
        """Return variables and user from the arguments of `docker run`; the others are not used."""
        left = list(self._texts("runArgs", self._said.get("runArgs", [])))
        env: dict[str, str] = {}
        user: str | None = None
        dropped: list[str] = []
        while left:
            name, is_one, value = left.pop(0).partition("=")
            takes = name in _WITH_VALUE | {"-e", "--env", "-u", "--user"}
            if takes and not is_one and left:
                value = left.pop(0)
            if name in {"-e", "--env"} and "=" in value and "${" not in value:
                env[value.partition("=")[0]] = value.partition("=")[2]
            elif name in {"-u", "--user"} and "${" not in value:
                user = value
            elif name not in _QUIET_ARGUMENTS:
                dropped.append(name)
        if dropped:
            self._drop(f"runArgs {' '.join(dict.fromkeys(dropped))[:200]}", _NO_MORE_RIGHTS)
        return env, user

    def _mounts(self) -> tuple[str, ...]:
        found = []
        for one in self._list("mounts", self._said.get("mounts", [])):
            parts = one if isinstance(one, dict) else self._mount_parts(self._text("mounts", one))
            kind = str(parts.get("type", "volume"))
            target = str(parts.get("target", parts.get("destination", parts.get("dst", ""))))
            source = self._with_variables(str(parts.get("source", parts.get("src", ""))), "mounts", local=True)
            target = self._plain("mounts", target)
            if kind != "bind":
                self._drop(f"mount {target}", f"a {kind}; its files are the sandbox's own")
            elif not source.startswith("/") or not target.startswith("/") or ":" in source + target:
                self._drop(f"mount {source} at {target}", "its paths are not absolute, or hold a colon")
            else:
                read_only = any(key in parts and str(parts[key]).lower() != "false" for key in ("readonly", "ro"))
                found.append(f"{source}:{target}{':ro' if read_only else ''}")
        return tuple(found)

    def _mount_parts(self, text: str) -> dict[str, str]:
        return {key.strip(): value for key, _, value in (part.partition("=") for part in text.split(","))}

    def _ports(self) -> tuple[str, ...]:
        found = []
        app = self._said.get("appPort", [])
        listed = self._list("forwardPorts", self._said.get("forwardPorts", []))
        for one in [*listed, *(app if isinstance(app, list) else [app])]:
            text = str(one).removeprefix("localhost:").removeprefix("127.0.0.1:")
            numbers = _PORTS.fullmatch(text)
            if numbers and all(0 < int(number) <= MAX_PORT for number in numbers.groups() if number):
                found.append(text)
            else:
                self._drop(f"port {text[:100]}", "it is not a port of the sandbox")
        return tuple(dict.fromkeys(found))

    def _commands(self, key: str) -> list[str]:
        """Return the commands of one property; named ones run one after another here."""
        value = self._said.get(key)
        found = []
        for one in value.values() if isinstance(value, dict) else [value]:
            if one in (None, "", []):
                continue
            if isinstance(one, list):
                found.append(shlex.join(self._in_command(key, word) for word in self._texts(key, one)))
            else:  # in a shell of its own, so that `cd` and `exit` have no effect after it
                found.append(f"sh -c {shlex.quote(self._in_command(key, self._text(key, one)))}")
        return found

    def _in_command(self, key: str, text: str) -> str:
        """Substitute only variables that name a path: a shell has variables of its own."""
        return self._with_variables(text, key, is_shell=True)

    # --- variables and types ---

    def _plain(self, key: str, text: str) -> str:
        return self._with_variables(text, key)

    def _with_variables(self, text: str, key: str, *, local: bool = False, is_shell: bool = False) -> str:
        def value(found: re.Match[str]) -> str:
            kind, name, default = found[1], found[2], found[3] or ""
            known = {
                "localWorkspaceFolder": str(self._directory), "localWorkspaceFolderBasename": self._directory.name,
                "containerWorkspaceFolder": self._folder,
                "containerWorkspaceFolderBasename": self._folder.rpartition("/")[2],
                "devcontainerId": hashlib.sha256(os.fsencode(self._directory)).hexdigest()[:52],
            }  # fmt: skip
            if name is None and kind in known:
                return known[kind]
            if kind in {"localEnv", "env"} and name is not None:
                if local and ((said := os.environ.get(name, default)) in {"", default} or _names_a_place(name, said)):
                    return said
                self._drop(
                    f"${{{kind}:{name[:60]}}} in {key}",
                    "a variable of this machine is for containerEnv, remoteEnv, and in mounts one that is a path",
                )
                return default
            return found[0] if is_shell or kind == "containerEnv" else ""

        return _VARIABLE.sub(value, text)

    def _drop(self, what: str, why: str) -> None:
        told = f"{what} ({why})"
        if told not in self._left_out:
            self._left_out.append(told)

    def _wrong(self, key: str, expected: str) -> UsageError:
        return fault(self._path, f"{key!r} is not {expected}. Correct it.")

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise self._wrong(key, "a text")
        return value

    def _list(self, key: str, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def _texts(self, key: str, value: object) -> list[str]:
        return [self._text(key, one) for one in self._list(key, value)]

    def _object(self, key: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value
