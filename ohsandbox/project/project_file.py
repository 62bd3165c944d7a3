"""A project's file: `.ohsandbox.toml`, or `[tool.ohsandbox]` of a pyproject.toml, and what needs the user's trust.

The file is as untrusted as its repository, so it is only data. It can narrow what the user's settings allow. Everything
else it asks for (an image is foreign code, a limit may be raised) takes effect only once the user trusts the directory
with exactly this content. Some settings are always refused in it: see `setting_rules`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import UsageError
from ohsandbox.paths import path_below, subdirectory
from ohsandbox.private_files import open_regular, write_atomically
from ohsandbox.project.devcontainer import DevContainer, find_devcontainer
from ohsandbox.project.devcontainer import fault as devcontainer_fault
from ohsandbox.project.features import staged
from ohsandbox.project.setting_rules import FILES, NEVER, needs_trust
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.factory import build_digest, check_mount
from ohsandbox.runtime.mount_text import Mount
from ohsandbox.settings import Settings, SettingsLayer
from ohsandbox.strict_toml import InvalidToml, parse_toml
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.runtime.service_options import Service

FILE_NAME = ".ohsandbox.toml"
_PYPROJECT = "pyproject.toml"
TABLE = "ohsandbox"
"""The table's name in `[tool]` of a pyproject.toml."""
MAX_FILE_BYTES = 256 * 1024
"""Maximum size; a pyproject.toml of a large project has 30 KiB."""

_MAX_NAMED_BYTES = 4 * 1024 * 1024
"""Maximum size of a file that it names; all certificates of a system have 300 KiB."""
COPIES = "project-files"
"""Directory below the state directory with copies of these files as they were trusted, since the project may change
before they are used. The modification time is that of the last use."""


class ProjectSandbox(ConfigModel):
    """What a project's file can contain besides settings. All of it needs trust."""

    build: str | None = None
    """A directory below the project with a Dockerfile, instead of `image`."""
    devcontainer: str | Literal[False] | None = None
    """The devcontainer.json to use, relative to the file. False: none. None: the one at the usual place."""
    workspace: Literal["bind", "copy"] | None = None
    """Work in the project's directory itself, or in a copy, unless `--workspace` names another directory."""
    setup: tuple[str, ...] = ()
    """Commands for the sandbox's shell, one after another, when a sandbox starts."""
    setup_inputs: tuple[str, ...] | None = None
    """Files and patterns below the file's directory that affect the result of the commands; None: the usual ones."""
    services: str | dict[str, Any] | list[Any] | None = None
    """Services beside the sandbox: tables by name, as `Service` takes them, or a Compose file below the project."""
    services_only: tuple[str, ...] = ()
    """The services of a Compose file to start, with their dependencies."""


class Project(NamedTuple):
    """The validated content of a project's file, before any use."""

    path: Path
    """The file's path; its directory is a real path."""
    root: Path
    """The repository's root, or the file's directory; paths that the file names are below it."""
    values: dict[str, Any]
    """Settings by name, as in the file; paths are absolute."""
    options: ProjectSandbox
    notes: tuple[str, ...] = ()
    """Parts of its Compose file that have no meaning here."""
    contents: Mapping[str, bytes] = MappingProxyType({})
    """Contents of the files that settings name, by setting, read only once, so that what is trusted is what is used."""
    top: Path | None = None
    """The project's directory, if it is not the file's."""
    devcontainer: DevContainer | None = None
    """The parts of its devcontainer.json that are used; the project's file overrides them."""

    services: tuple[Service, ...] = ()
    """The services beside the sandbox."""

    @property
    def directory(self) -> Path:
        """The project's directory."""
        return self.top or self.path.parent

    @property
    def build(self) -> Build | None:
        """The build of the image, without a devcontainer's features."""
        if self.options.build is not None:
            return Build(self.options.build)
        return None if self.devcontainer is None else self.devcontainer.build

    def image_build(self) -> Build | None:
        """Return the build of the image, with a devcontainer's features; None if none is built.

        Raises:
            UsageError: the files of the features cannot be written to the state directory.
        """
        if (dev := self.devcontainer) is None or not dev.features:
            return self.build
        try:
            return Build(staged(dev.features), base=dev.image or self.build)
        except OSError as error:
            raise UsageError(f"{error.filename!r} cannot be written: {error.strerror}. Make it writable.") from None

    def with_registry_features(self) -> Project:
        """Return a copy with the features of registries fetched; call it only for trusted content.

        `left_out` of its devcontainer then has the unused parts of features, and features that cannot be fetched.

        Raises:
            UsageError: features depend on each other.
        """
        if (dev := self.devcontainer) is None or not dev.registry:
            return self
        dev = dev.fetched(self.directory)
        values = self.values if dev.features or dev.image is None else self.values | {"image": dev.image}
        return self._replace(devcontainer=dev, values=values)

    @property
    def has_file(self) -> bool:
        """Whether there is a file of ours, not only a devcontainer.json."""
        return self.devcontainer is None or self.path != self.devcontainer.path

    def needing_trust(self, base: Settings) -> dict[str, Any]:
        """Return, by name, what the file requests beyond the user's settings; empty if it only narrows them."""
        typed = _typed(self.values, self.path)
        wide = {
            name: value for name, value in self.values.items()
            if needs_trust(name, getattr(typed, name), getattr(base, name))
        }  # fmt: skip
        wide |= {name: value for name, value in self._non_settings(exclude_defaults=True).items() if value}
        if (dev := self.devcontainer) is None or not dev.is_used:
            return wide
        asked: dict[str, Any] = {
            "image": dev.image, "build": _build_description(self.build), "features": dev.shown_features(),
            "setup": dev.setup,
            "start": dev.start, "forward": dev.forward, "remote user": dev.user,
            "local": {name: variable for name, (variable, _) in dev.local.items()},
        }  # fmt: skip
        return {name: value for name, value in asked.items() if value} | wide

    def layer(self, *, without: dict[str, Any]) -> SettingsLayer:
        """Return the settings of the file except those in `without`; files that they name are private copies.

        Raises:
            UsageError: a copy cannot be written.
        """
        values = {name: value for name, value in self.values.items() if name not in without}
        values |= {name: self._copy(name) for name in self.contents if name in values}
        if self.devcontainer is not None and not without:
            for name, (variable, otherwise) in self.devcontainer.local.items():
                if os.environ.get(variable):
                    values["secrets"] = {name: f"env:{variable}"} | values.get("secrets", {})
                else:
                    values["env"] = {name: otherwise} | values.get("env", {})
        return SettingsLayer(values, f"Project file {str(self.path)!r}")

    def digest(self) -> str:
        """Return the hash of all that is trusted: the file's content, and the contents of the files that it names.

        With `build` this includes all files sent to the build, since any of them may run with network access.

        Raises:
            UsageError: a file cannot be read.
        """
        dev = self.devcontainer and [*self.devcontainer._replace(left_out=())]
        if dev is not None:
            dev = [_build_description(value) if isinstance(value, Build) else value for value in dev]
        said = json.dumps([self.values, self._non_settings(), dev], sort_keys=True, default=str)
        digest = hashlib.sha256(said.encode())
        try:
            for name in FILES:
                if name in self.contents:
                    digest.update(hashlib.sha256(self.contents[name]).digest())
            if self.build is not None:
                digest.update(build_digest(self.build).encode())
            for service in self.services:
                if service.build is not None:
                    digest.update(build_digest(service.build).encode())
        except OSError as error:
            raise _fault(self.path, f"{error.filename!r} cannot be read: {error.strerror}. Correct it.") from None
        return digest.hexdigest()

    def _non_settings(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """Return what the file contains besides settings, by name, with the services as it describes them."""
        besides = self.options.model_dump(exclude_defaults=exclude_defaults)
        if self.services:
            besides["services"] = [one.model_dump(mode="json", exclude_defaults=True) for one in self.services]
        return besides

    def _copy(self, name: str) -> str:
        """Write a setting's file, as it was read, where no sandbox can reach it; return the path."""
        content = self.contents[name]
        directory = subdirectory(COPIES) / hashlib.sha256(content).hexdigest()
        path = directory / Path(self.values[name]).name
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            if not path.exists():
                write_atomically(path, content, durable=False)
            os.utime(directory)
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}. Make it writable.") from None
        return str(path)


def find_project(start: Path) -> Project | None:
    """Return the nearest project file from a directory up to its repository's root; outside a repository only there.

    Raises:
        UsageError: a file is a link, is not a regular file, is not TOML, or has an unknown, wrong or refused setting.
    """
    start = start.resolve()
    root = next((above for above in (start, *start.parents) if (above / ".git").exists()), start)
    for directory in (start, *start.parents):
        tables = ((directory / name, _table(directory / name)) for name in (FILE_NAME, _PYPROJECT))
        found = next((_project(path, root, table) for path, table in tables if table is not None), None)
        named = None if found is None else found.options.devcontainer
        dev = None if named is False else find_devcontainer(directory, named)
        if dev is not None:
            alone = Project(dev.path, root, {}, ProjectSandbox(), top=directory)
            return _with_devcontainer(found or alone, dev)
        if found is not None or directory == root:
            return found
    return None


def _with_devcontainer(project: Project, dev: DevContainer) -> Project:
    """Return the project with its devcontainer.json, whose paths become absolute; the project's file overrides it."""
    values, options = dict(project.values), project.options
    has_image = "image" in values or options.build is not None
    build = None if has_image or dev.build is None else _build_of(dev.build, dev.path, project.root)
    if dev.image is not None and not has_image and not (dev.features or dev.registry):
        values["image"] = dev.image
    if has_image and (dev.features or dev.registry):
        names = ", ".join([*(one.reference for one in dev.features), *(name for name, _ in dev.registry)])
        dev = dev._replace(
            features=(), registry=(), left_out=(*dev.left_out, f"features {names} (the project's file has an image)")
        )
    if env := dev.env | values.get("env", {}):
        values["env"] = env
    mounts, refused = _mounts_of(dev)
    if mounts:
        values["mounts"] = [*mounts, *values.get("mounts", ())]
    dev = dev._replace(
        mounts=(), left_out=(*dev.left_out, *refused), build=build,
        image=dev.image if dev.features or dev.registry else None, env={},
        setup=() if options.setup else dev.setup,
        user=None if "user" in values else dev.user,
        local={name: one for name, one in dev.local.items() if name not in {*env, *values.get("secrets", {})}},
    )  # fmt: skip
    try:
        Settings(**values)
    except UsageError as error:
        raise devcontainer_fault(dev.path, str(error).removeprefix("Settings(...): ")) from None
    return project._replace(values=values, devcontainer=dev)


def _mounts_of(dev: DevContainer) -> tuple[list[str], list[str]]:
    """Return the mounts that pass vetting, and notes on the others."""
    passed, refused = list[str](), list[str]()
    for mount in dev.mounts:
        try:
            check_mount(mount)
        except UsageError as error:
            refused.append(f"mount {mount} ({error.fact})")
        else:
            passed.append(_absolute(mount, dev.path))
    return passed, refused


def _build_of(build: Build, path: Path, root: Path) -> Build:
    """Return the build of a devcontainer.json, whose paths are relative to its directory, with absolute paths."""
    context = Path(_path_in_project(str(build.context), "build.context", path, root))
    file = Path(_path_in_project(build.dockerfile, "build.dockerfile", path, root))
    if not file.is_relative_to(context):
        raise devcontainer_fault(path, f"the Dockerfile {build.dockerfile!r} is outside of its context. Move it.")
    return build._replace(context=str(context), dockerfile=str(file.relative_to(context)))


def _build_description(build: Build | None) -> dict[str, Any] | None:
    """Return what a devcontainer.json says of a build, by name: for the question whether to trust it, and its hash."""
    return build and {name: getattr(build, name) for name in ("context", "dockerfile", "args", "target")}


def _table(path: Path) -> dict[str, Any] | None:
    """Return our settings in a file, unvalidated; None if it is missing, or a pyproject.toml without our table."""
    is_ours = path.name == FILE_NAME
    if not os.path.lexists(path) or not (is_ours or path.is_file()):
        return None
    if not is_ours and path.is_symlink():
        return None  # a pyproject.toml may be a link, which is not read for our table
    with os.fdopen(open_regular(path, os.O_RDONLY, name="Project file"), "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if not is_ours and TABLE.encode() not in data:
        return None
    if len(data) > MAX_FILE_BYTES:
        raise _fault(path, f"over {MAX_FILE_BYTES} bytes. Shorten it.")
    try:
        parsed = parse_toml(data.decode())
    except UnicodeDecodeError:
        raise _fault(path, "not UTF-8. Correct it.") from None
    except InvalidToml as error:
        place = "" if error.line is None or "at line" in str(error) else f"line {error.line}: "
        raise _fault(path, f"{place}{error}. Correct it.") from None
    tool = parsed.get("tool")
    found = parsed if is_ours else tool.get(TABLE) if isinstance(tool, dict) else None
    if found is not None and not isinstance(found, dict):
        raise _fault(path, f"[tool.{TABLE}] is not a table. Correct it.")
    return found


def _project(path: Path, root: Path, table: dict[str, Any]) -> Project:
    own = ProjectSandbox.model_fields.keys()
    _check_names(table, path, [*own, *(name for name in Settings.model_fields if name not in NEVER)])
    try:
        options = ProjectSandbox(**{name: value for name, value in table.items() if name in own})
    except UsageError as error:
        raise _fault(path, str(error).removeprefix("ProjectSandbox(...): ")) from None
    values = {name: value for name, value in table.items() if name not in own}
    for name, reference in values["secrets"].items() if isinstance(values.get("secrets"), dict) else ():
        if isinstance(reference, str) and not reference.startswith("env:"):
            raise _fault(
                path,
                f"secret {name!r} names no variable of yours, as a project's file must. Write env:NAME, and never the "
                "value; a file is named by your own settings, or by --secret NAME=file:PATH.",
            )
    _typed(values, path)
    if options.build is not None and "image" in values:
        raise _fault(path, "'image' and 'build' exclude each other. Leave one out.")
    for name in options.setup_inputs or ():
        if name.startswith(("/", "~")) or not name or {"..", "**"} & {*name.split("/")}:
            raise _fault(
                path, f"'setup_inputs' holds {name!r}. Name files below its directory, or patterns without **."
            )
    for name in FILES:
        if name in values:
            values[name] = _path_in_project(values[name], name, path, root)
    if options.build is not None:
        options = options.model_copy(update={"build": _path_in_project(options.build, "build", path, root)})
    values |= {name: [_absolute(one, path) for one in values[name]] for name in ("mounts",) if name in values}
    options, services, notes = _with_services(options, path, root)
    contents = {name: _content(values[name], name, path) for name in FILES if name in values}
    return Project(path, root, values, options, notes, contents, services=services)


def _with_services(
    options: ProjectSandbox, path: Path, root: Path
) -> tuple[ProjectSandbox, tuple[Service, ...], tuple[str, ...]]:
    """Return the options without services, the services of the file or its Compose file, and notes on the latter."""
    told = options.services
    if isinstance(told, list) or (options.services_only and not isinstance(told, str)):
        raise _fault(path, "'services' is a table or the name of a Compose file, and services_only is for the latter.")
    if not told:
        return options, (), ()
    from ohsandbox.project.compose_file import project_services  # noqa: PLC0415 - few projects have services

    if isinstance(told, str):
        told = os.path.relpath(_path_in_project(told, "services", path, root), path.parent)
    try:
        found, notes = project_services(told, path.parent, root, only=options.services_only)
    except UsageError as error:
        raise _fault(path, str(error)) from None
    return options.model_copy(update={"services": [], "services_only": ()}), found, notes


def _content(named: str, key: str, path: Path) -> bytes:
    """Return the content of a file that a setting names."""
    try:
        with os.fdopen(open_regular(Path(named), os.O_RDONLY, name=f"File of {key!r}"), "rb") as file:
            content = file.read(_MAX_NAMED_BYTES + 1)
    except OSError as error:
        raise _fault(path, f"{named!r} cannot be read: {error.strerror}. Correct it.") from None
    if len(content) > _MAX_NAMED_BYTES:
        raise _fault(path, f"{key!r} names a file of over {_MAX_NAMED_BYTES} bytes. Shorten it.")
    return content


def _check_names(table: dict[str, Any], path: Path, known: list[str]) -> None:
    for name in table:
        if name in NEVER:
            raise _fault(path, f"key {name!r} is never taken from a project. Put it into your own settings.")
        if name not in known:
            own = ", ".join(ProjectSandbox.model_fields)
            meant = did_you_mean(name, known) or f" Known are settings (`ohsandbox config list`), and {own}."
            raise _fault(path, f"unknown key {name!r}.{meant}")


def _typed(values: dict[str, Any], path: Path) -> Settings:
    try:
        return Settings(**values)
    except UsageError as error:
        raise _fault(path, str(error).removeprefix("Settings(...): ")) from None


def _path_in_project(named: str, key: str, path: Path, root: Path) -> str:
    """Return the absolute path that the file names; no link may lead it out of the project."""
    try:
        return str(path_below(named, path.parent, root, repr(key)))
    except UsageError as error:
        raise _fault(path, str(error)) from None


def _absolute(mount: str, path: Path) -> str:
    """Return a mount with its source resolved from the file's directory; it may be outside, as a person is asked.

    Links are resolved first: what is shown and trusted is what is bound, and after a link has changed the user is asked
    again.
    """
    named = Mount.parse(mount)
    source = os.path.realpath(path.parent / Path(named.source).expanduser())
    return str(named.model_copy(update={"source": source}))


def _fault(path: Path, told: str) -> UsageError:
    return UsageError(
        f"Project file {str(path)!r}: {told} (--no-project of run, exec, shell and mcp serve leaves it out.)"
    )
