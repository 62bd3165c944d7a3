"""Resuming a conversation: finding it, and storing and reading the options of its sandbox beside its log."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.options.shared import ProjectParts, SandboxOptions
from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import RESOURCE_LIMITS
from ohsandbox.paths import conversations_dir
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.mount_text import moved_places, parse_path, place_of_workspace
from ohsandbox.runtime.runtime_settings import CONTAINER_OPTIONS, DEFAULT_BACKEND
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.session.presenter import Presenter
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.service_options import Service

SANDBOX_NAME = "sandbox.json"
"""Name of the file beside the log with the options of the sandbox."""
_PATHS = ("workspace", "ca_bundle", "host_workdir", "build")
_OF_PROJECT = ("project", "from_project")
_UNFINISHED = {"RUNNING", "ERROR", "CANCELED", "WAITING_FOR_CONFIRMATION"}
"""Values of `ConversationStatus` for a conversation that was cut off."""


class ResumedConversation(NamedTuple):
    """A conversation that is resumed."""

    id: str
    title: str | None
    model: str | None
    """The last model that it used."""
    where: SandboxOptions
    """The options of its sandbox: as asked now, else as before."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that its commands had."""
    is_followed: bool = False
    """True if the person switches from an earlier conversation, so that no recap is needed."""


def find_resumed(wanted: str | None, asked: SandboxOptions) -> ResumedConversation:
    """Find a conversation by its id or a prefix of it; None is the one with the newest event.

    Raises:
        UsageError: no conversation or several match, or the options would separate it from its files.
    """
    from ohsandbox.conversation.storage import find_conversation, read_stored  # noqa: PLC0415 - slow: loads the conversation

    root = conversations_dir()
    conversation_id = find_conversation(root, wanted)
    known = read_stored(root / conversation_id, saves=False).metadata  # nothing is written before all is checked
    where = asked
    if (before := stored_options(root / conversation_id)) is not None:
        _check_place(asked, before, conversation_id)
        given = {name: value for name, value in vars(asked).items() if value and name not in _OF_PROJECT}
        if asked.attach or asked.image or asked.build:
            parts = replace(before.from_project, build=None)
            before = replace(before, image=None, build=None, from_project=parts)
        if asked.no_cache:
            before = replace(before, cache=None)
        if asked.attach:
            of_new: dict[str, Any] = dict.fromkeys((*RESOURCE_LIMITS, *CONTAINER_OPTIONS))
            before = replace(before, **of_new | {"accept_unenforced": False})
        where = replace(before, **given)
    return ResumedConversation(conversation_id, known.title, known.model, where, known.secrets)


def save_options(directory: Path, full: SandboxOptions, runtime: Runtime) -> None:
    """Save the options for a later resume. If the disk is full, the log reports it, and the old file stays."""
    fields = _stored(full) | {"runtime": full.runtime or DEFAULT_BACKEND}
    if not full.backend.isolated:
        fields["host_workdir"] = runtime.workdir
    for name in {"image", "network", "git"} - full.backend.options:
        fields[name] = None  # comes from the settings, and this backend does not support it
    if full.workspace is None or full.copies:
        fields["git"] = None  # comes from the settings, and only matters for a bound workspace
    for name in _PATHS:
        fields[name] = str(Path(fields[name]).resolve()) if fields[name] else None
    fields["workspaces"] = [_resolved(one) for one in full.workspaces or ()] or None
    with contextlib.suppress(OSError):
        write_atomically(directory / SANDBOX_NAME, json.dumps(fields, indent=2, default=str).encode() + b"\n")


def copy_options(directory: Path, fork: Path, *, workspace: Path | None) -> None:
    """Copy the options of a conversation for its fork, whose files are in workspace or in its sandbox."""
    known = stored_options(directory)
    if known is None:
        return
    fields = _stored(replace(in_directory(known, workspace), attach=None))
    texts = {name: str(fields[name]) if fields[name] else None for name in _PATHS}
    with contextlib.suppress(OSError):
        write_atomically(fork / SANDBOX_NAME, json.dumps(fields | texts, indent=2, default=str).encode() + b"\n")


def _stored(options: SandboxOptions) -> dict[str, Any]:
    """Return the options by name, as JSON has them, without those that are read again from the project file.

    A build's context is its `build`, and the rest its `build_options`.
    """
    parts = options.from_project
    build_options = {} if parts.build is None else _fields_of(parts.build)
    build_options.pop("context", None)
    return {name: value for name, value in vars(options).items() if name not in _OF_PROJECT} | {
        "build_options": build_options or None,
        "services": [one.model_dump(mode="json", exclude_defaults=True) for one in parts.services],
    }


def _fields_of(build: Build) -> dict[str, Any]:
    """Return what differs from the defaults in a build, and in its base."""
    fields = {name: value for name, value in build._asdict().items() if value != Build._field_defaults.get(name)}
    return fields | ({"base": _fields_of(build.base)} if isinstance(build.base, Build) else {})


def _resolved(named: str) -> str:
    """Return a workspace with its real path; a name that ends in `:ro` gets a slash appended."""
    path, read_only = parse_path(named)
    return str(Path(path).resolve()) + (":ro" if read_only else "/" if path.endswith(":ro") else "")


def in_directory(known: SandboxOptions, directory: Path | None) -> SandboxOptions:
    """Return the options of a fork whose writable workspaces have their files in a directory: see `moved_places`."""
    if directory is None or not known.workspaces:
        return replace(known, workspace=directory or known.workspace)
    named = [(one, parse_path(one)) for one in map(_resolved, known.workspaces)]
    targets = [
        place_of_workspace(one.path, is_first=not index, same_path=known.same_path)
        for index, (_, one) in enumerate(named)
    ]
    writable = [target for target, (_, one) in zip(targets, named, strict=True) if not one.read_only]
    places = moved_places(writable, directory)
    moved = [str(places.get(target, text)) for target, (text, _) in zip(targets, named, strict=True)]
    return replace(known, workspace=Path(parse_path(moved[0]).path), workspaces=moved)


def stored_options(directory: Path) -> SandboxOptions | None:
    """Return the options of a stored conversation's sandbox; None if there are none that can be read."""
    try:
        fields = load_json(read_regular(directory / SANDBOX_NAME))
        for name in _PATHS:
            fields[name] = Path(fields[name]) if fields.get(name) else None
        build_options = fields.pop("build_options", None)
        build = Build(fields["build"], **build_options) if build_options else None
        services = tuple(_service(one) for one in fields.pop("services", ()))
        return SandboxOptions(**fields, from_project=ProjectParts(build=build, services=services))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _service(fields: object) -> Service:
    from ohsandbox.runtime.service_options import Service  # noqa: PLC0415 - few projects have services

    return Service.model_validate(fields)


def leave_on_exit(
    stack: contextlib.ExitStack, presenter: Presenter, runtime: Runtime, *, stays: Callable[[], bool]
) -> None:
    """Have the stack that closes the runtime keep the sandbox, at its end, if the conversation was cut off.

    stays: whether the sandbox is kept or joined, so that it stays in any case.
    """

    def leave(_kind: object, error: BaseException | None, _traceback: object) -> bool:
        unfinished = error is not None or presenter.conversation.status().value in _UNFINISHED
        if stays() or not unfinished or not presenter.has_worked:
            return False
        runtime.leave(at_once=presenter.hurried)
        if getattr(runtime, "name", "") and not presenter.hurried:
            with contextlib.suppress(OSError):  # nobody reads any more
                presenter.view.info(
                    "Its container stays for three days to be resumed; `ohsandbox gc --kept` removes it before."
                )
        return False

    stack.push(leave)


def _check_place(asked: SandboxOptions, before: SandboxOptions, conversation_id: str) -> None:
    def refuse(where: str, option: str) -> UsageError:
        return UsageError(f"Conversation {conversation_id!r} works {where}. {option}, or start a new conversation.")

    if asked.runtime not in {None, before.runtime}:
        raise refuse(f"with --runtime {before.runtime}; its files are there", "Leave --runtime out")
    if asked.copies and before.workspace is not None and not before.copies:
        raise refuse(f"in {str(before.workspace)!r} itself", "Leave --copy out")
    was = before.workspace or before.host_workdir
    if before.backend.isolated or was is None:
        return
    if asked.workspace is None and not was.is_dir():
        raise refuse(f"in {str(was)!r}, which is gone", "Make it again")
    if asked.workspace is not None and asked.workspace.resolve() != was:
        raise refuse(f"in {str(was)!r}; its files are there", "Leave --workspace out")
