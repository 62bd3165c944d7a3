"""The project file of the current directory: which of its settings are used, and the question whether to trust it."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.cli.options.shared import ProjectCommands, ProjectParts
from ohsandbox.cli.prompts.prompt import answer_yes_no, person_present
from ohsandbox.cli.prompts.remembered import forget_answer, remember, remembered
from ohsandbox.cli.rendering.text import safe_line, say
from ohsandbox.cli.settings.model import settings_of_one
from ohsandbox.errors import UsageError
from ohsandbox.project.project_file import Project, find_project
from ohsandbox.project.setting_rules import RULES
from ohsandbox.project.trust import revoke, trust, trust_of, trusted
from ohsandbox.settings import Settings, SettingsLayer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.cli.options.shared import SandboxOptions

MAX_SHOWN_CHARS = 4_000
"""Longest text of one value in the question: fifty lines of a terminal."""
_MAX_ITEMS_SHOWN = 200
"""Largest number of items of one list in the question."""


class UsedProject(NamedTuple):
    """The parts of a project file that a command uses."""

    project: Project
    ignored: dict[str, Any]
    """The parts that are ignored because nobody trusted them."""

    settings: Settings
    """The user's own settings."""

    @property
    def layer(self) -> SettingsLayer:
        """The settings layer. With a model of the project, the user's settings for another model are excluded."""
        layer = self.project.layer(without=self.ignored)
        before, model = self.settings.model, layer.values.get("model")
        if before is None or model is None or model == before:
            return layer
        return layer._replace(values=dict.fromkeys(settings_of_one(before, other=model)) | layer.values)

    def applied_to(self, where: SandboxOptions, *, is_resumed: bool = False) -> SandboxOptions:
        """Return the options with the file's values that are no settings, unless a flag or variable says otherwise.

        A resumed sandbox keeps its image and workspace; a joined one has its own.
        """
        project, options, dev = self.project, self.project.options, self.project.devcontainer
        if where.attach is not None or self.ignored or not where.backend.isolated:
            return where  # what it says is meant for a container, and runs nowhere else
        commands = ProjectCommands(directory=project.directory, setup=options.setup, inputs=options.setup_inputs)
        if dev is not None and dev.is_used:
            commands = replace(
                commands, setup=options.setup or dev.setup, start=dev.start, forward=dev.forward,
                folder=None if options.setup else dev.folder,
            )  # fmt: skip
        where = replace(where, project=commands)
        if is_resumed:
            return where
        where = replace(where, from_project=ProjectParts(services=() if where.no_services else project.services))
        if chosen := _image_chosen(where):
            _warn_replaced(project, chosen)
        else:
            where = _with_image(where, project)
        if options.workspace is not None and where.workspace is None:
            copies = options.workspace == "copy" and not where.copies
            where = replace(where, workspace=project.directory, copy=where.copy or copies)
        if dev is not None and dev.user and where.user is None and (where.copies or where.workspace is None):
            where = replace(where, user=dev.user)
        return where


def _with_image(where: SandboxOptions, project: Project) -> SandboxOptions:
    """Add the image that the project builds and, for a devcontainer, the features that can be downloaded."""
    if project.devcontainer is not None and project.devcontainer.registry:
        project = project.with_registry_features()
        _print_left_out(project)
    if (build := project.image_build()) is not None:
        parts = replace(where.from_project, build=build)
        return replace(where, build=Path(build.context), from_project=parts)
    dev = project.devcontainer
    return where if dev is None or dev.image is None else replace(where, image=dev.image)


def _image_chosen(where: SandboxOptions) -> str:
    """Return what overrides the project's image; empty if nothing does."""
    if where.image or where.build:
        return f"--image {where.image}" if where.image else f"--build {where.build}"
    name = Settings.variables()["image"]
    return f"{name}={os.environ[name]}" if os.environ.get(name) else ""


def _warn_replaced(project: Project, chosen: str) -> None:
    """Warn that the sandbox's image replaces the project's."""
    dev, build, image = project.devcontainer, project.build, project.values.get("image")
    features = () if dev is None else dev.features or dev.registry
    named = image or (dev.image if dev is not None and features else None)
    if build is None and (named is None or chosen.partition("=" if "=" in chosen else " ")[2] == named):
        return
    what = f"build of {build.context}" if build is not None else f"image {named!r}"
    say(f"{chosen} is used in the place of the project's {what}{' with its features' if features else ''}.")


class _FoundProject(NamedTuple):
    """A project file, and whether it is trusted."""

    project: Project
    wide: dict[str, Any]
    """The values that need trust."""
    trust: Literal["not needed", "trusted", "changed", "unknown"]
    settings: Settings
    """The user's settings without environment and flags, which the project is compared with."""
    digest: str = ""


def look_for_project(start: Path, settings: Path | None = None) -> _FoundProject | None:
    """Find the project file in a directory or its parents, without a question.

    Raises:
        UsageError: the file is invalid.
    """
    project = find_project(start)
    if project is None:
        return None
    own = Settings.of_file(settings)
    if not (wide := project.needing_trust(own)):
        return _FoundProject(project, {}, "not needed", own)
    digest = project.digest()
    return _FoundProject(project, wide, trust_of(project.directory, digest), own, digest)


def use_project(where: SandboxOptions, settings: Path | None, *, person: bool) -> UsedProject | None:
    """Return the usable parts of the project file of the workspace or current directory; None without a file.

    Values that only narrow the user's settings are used at once. For the rest a person is asked once; without one, or
    without a yes, they are ignored, and one line says so. A no is remembered.

    Raises:
        UsageError: the file is invalid.
    """
    if where.no_project:
        return None
    found = look_for_project(where.workspace or Path.cwd(), settings)
    if found is None or (where.workspace is None and not found.project.has_file):
        return None  # a devcontainer is for those who work in its directory
    project, wide, known, own, digest = found
    if known in {"not needed", "trusted"}:
        _print_left_out(project)
        return UsedProject(project, {}, own)
    if person and remembered("no trust", project.directory) != digest:
        answer = _is_trusted_now(project, wide, changed=known == "changed")
        if answer:
            _store(project, digest)
            _print_left_out(project)
            return UsedProject(project, {}, own)
        if answer is False:
            remember("no trust", project.directory, digest)
    why = "has changed since you trusted it" if known == "changed" else "is not trusted"
    say(
        f"warning: {project.path} {why}, so its {', '.join(wide)} {'is' if len(wide) == 1 else 'are'} not used. "
        f"Look at it, then run `ohsandbox trust {project.directory}`."
    )
    return UsedProject(project, wide, own)


def _print_left_out(project: Project) -> None:
    if project.devcontainer is not None and (left_out := project.devcontainer.left_out):
        say(safe_line(f"{project.devcontainer.path.name}, not used: {'; '.join(left_out)}.", limit_chars=sys.maxsize))


def trust_directory(directory: Path | None, *, yes: bool) -> int:
    """Show what the project file of a directory asks for, and trust it if the person agrees."""
    where = directory or Path.cwd()
    if not where.is_dir():
        raise UsageError(f"{str(where)!r} is not a directory. Name one with a project file.")
    if (found := look_for_project(where)) is None:
        raise UsageError(
            f"No .ohsandbox.toml, [tool.ohsandbox] or devcontainer.json was found from {str(where.resolve())!r} "
            "upward. Name a directory with one."
        )
    project, wide, known, _, digest = found
    if known == "not needed":
        print(f"{safe_line(project.path)} only narrows your settings. It is used without trust.")
        return 0
    if known == "trusted":
        print(f"{safe_line(project.directory)} is trusted already. `ohsandbox trust --revoke` ends that.")
        return 0
    if yes:
        print("\n".join(_rows(project, wide)), flush=True)
    elif not person_present():
        raise UsageError("This question needs a terminal. Read the file, then use --yes.")
    elif not _is_trusted_now(project, wide, changed=known == "changed"):
        print("It is not trusted.")
        return 1
    _store(project, digest)
    print(f"{safe_line(project.directory)} is trusted with this content. A change asks again.")
    return 0


def list_trusted(*, as_json: bool) -> int:
    """Print the trusted directories, and whether each file is unchanged."""
    rows = [(one, _state(one.directory, one.digest)) for one in trusted()]
    from ohsandbox.cli.rendering.tables import print_json, print_table  # noqa: PLC0415 - slow: it imports rich

    if as_json:
        print_json({"directory": str(one.directory), "trusted_at": one.at, "state": state} for one, state in rows)
    elif rows:
        print_table(("DIRECTORY", "TRUSTED", "STATE"), [(str(one.directory), one.at, state) for one, state in rows])
    else:
        print("No directory is trusted.")
    return 0


def revoke_directory(directory: Path | None) -> int:
    """Revoke the trust in a directory."""
    where = (directory or Path.cwd()).resolve()
    candidates = [where, *where.parents] if directory is None else [where]
    if (gone := next((one for one in candidates if [forget_answer(one), revoke(one)] != [False, False]), None)) is None:
        raise UsageError(f"{str(where)!r} is not trusted. `ohsandbox trust --list` shows what is.")
    print(f"{safe_line(gone)} is not trusted any more.")
    return 0


def _store(project: Project, digest: str) -> None:
    """Trust exactly the content that was shown."""
    if find_project(project.directory) != project or project.digest() != digest:
        raise UsageError(f"{str(project.path)!r} changed while it was looked at. Look again.")
    trust(project.directory, digest)


def _is_trusted_now(project: Project, wide: dict[str, Any], *, changed: bool) -> bool | None:
    if changed:
        print("A project file that you trusted says something else now.")
    print("\n".join(_rows(project, wide)), flush=True)
    return answer_yes_no("Trust this directory with this content?")


def _rows(project: Project, wide: dict[str, Any]) -> Iterator[str]:
    yield "The project file of this repository asks for more than your settings give."
    yield from _row("file", str(project.path))
    if project.devcontainer is not None and project.devcontainer.path != project.path:
        yield from _row("file", str(project.devcontainer.path))
    for name, value in wide.items():
        yield from _row(
            f"{name} ({meaning})" if (meaning := RULES[name].meaning if name in RULES else "") else name, value
        )
    if project.notes:
        yield from _row("not used of its Compose file", project.notes)
    if project.devcontainer is not None and project.devcontainer.left_out:
        yield from _row("not used, whatever you answer", project.devcontainer.left_out)


def _row(label: str, value: Any) -> Iterator[str]:
    """Yield a label and its value behind the gutters, each command of a list on rows of its own."""
    # it imports the conversation, and most files are not asked about
    from ohsandbox.cli.prompts.approval_prompt import NAMED, folded, named_rows  # noqa: PLC0415 - slow: it imports the conversation and rich
    from ohsandbox.cli.rendering.tables import open_console  # noqa: PLC0415 - slow: it imports the conversation and rich

    named = [f"{name} = {one}" for name, one in value.items()] if isinstance(value, dict) else [value]
    items = value if isinstance(value, list | tuple) else named
    texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in items[:_MAX_ITEMS_SHOWN]]
    shown = [_shown(text) for text in texts]
    if len(items) > _MAX_ITEMS_SHOWN:
        shown.append(f"... and {len(items) - _MAX_ITEMS_SHOWN:,} more, {len(items):,} in all: see the file")
    columns = open_console().width
    if len(shown) == 1:
        yield from named_rows(label, shown[0], columns)
        return
    yield NAMED + safe_line(label, limit_chars=sys.maxsize) + ":"
    for text in shown:
        yield from folded(text, columns)


def _shown(text: str) -> str:
    """Return a value on one line; for a huge one its beginning, its end and its length."""
    line = safe_line(text, limit_chars=sys.maxsize)
    if len(line) <= MAX_SHOWN_CHARS:
        return line
    half = MAX_SHOWN_CHARS // 2
    return f"{line[:half]} [... cut here: {len(text):,} characters in all, see the file ...] {line[-half:]}"


def _state(directory: Path, digest: str) -> str:
    """Return whether the trusted content is still current."""
    try:
        project = find_project(directory)
        if project is None or project.directory != directory:
            return "no project file"
        return "in use" if project.digest() == digest else "changed"
    except UsageError:
        return "invalid"
