"""A project's setup commands in a new sandbox: run, or restored from a checkpoint of an earlier sandbox."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from itertools import islice
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import Lines, joined_lines, output, safe, safe_line, truncated
from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.private_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ohsandbox.cli.options.shared import ProjectCommands, SandboxOptions
    from ohsandbox.runtime.base import Runtime

SETUP_TIMEOUT_S = 1800.0
"""Time limit of a setup command: a large project takes minutes, but a command that waits for input must end."""
_MAX_SETUP_CHARS = 200
_SESSION = "setup"
START_WAIT_S = 10.0
"""How long a start command may delay the next one and the session; then it continues in the background."""
INPUTS = (
    "requirements*.txt", "constraints*.txt", "pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "poetry.lock",
    "pdm.lock", "Pipfile", "Pipfile.lock", "tox.ini", "noxfile.py", "environment.yml", "environment.yaml",
    "package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "pnpm-workspace.yaml",
    "yarn.lock", "bun.lock", "bun.lockb", ".npmrc", ".nvmrc", ".node-version", "deno.json", "deno.lock",
    "Cargo.toml", "Cargo.lock", "rust-toolchain", "rust-toolchain.toml", "go.mod", "go.sum", "go.work", "Gemfile",
    "Gemfile.lock", "*.gemspec", ".ruby-version", "composer.json", "composer.lock", "mix.exs", "mix.lock",
    "pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "*.csproj", "*.sln",
    "Makefile", "justfile", "Taskfile.yml", "CMakeLists.txt", "conanfile.txt", "conanfile.py", ".tool-versions",
    "mise.toml", ".gitmodules", "apt.txt", ".python-version",
)  # fmt: skip
"""Files in the project's directory that determine what setup commands install, unless the project names inputs."""
_MAX_INPUTS = 1_000
MAX_INPUT_BYTES = 64 * 1024**2
"""Largest total size of the inputs; a lock file of a large project has 2 MiB."""


def setup_key(options: SandboxOptions) -> str | None:
    """Return a key of everything the setup depends on; None if there is no setup or it must not be kept.

    With services it is not kept, since a checkpoint lacks their data. A setup depends on the commands, the
    directory, and the content of the files that they read: those that the project names or else `INPUTS`, and each
    file below the directory that is a word of a command.
    """
    project, directory = options.project, options.project.directory
    if not project.setup or options.no_setup_cache or directory is None or options.from_project.services:
        return None
    digest = hashlib.sha256(json.dumps([str(directory), project.setup, project.inputs]).encode())
    bytes_left = MAX_INPUT_BYTES
    for number, path in enumerate(_inputs(directory, project)):
        content = _content(directory, path, bytes_left)
        if content is None or number == _MAX_INPUTS:
            return None
        bytes_left -= len(content)
        digest.update(repr((path, hashlib.sha256(content).digest())).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _inputs(directory: Path, project: ProjectCommands) -> Iterator[str]:
    """Yield paths below the directory in a fixed order; some may not exist."""
    patterns = INPUTS if project.inputs is None else project.inputs
    paths = {
        str(path.relative_to(directory)) for name in patterns for path in islice(directory.glob(name), _MAX_INPUTS)
    }
    yield from sorted(paths | {*_words(directory, project.setup)})


def _words(directory: Path, commands: Sequence[str]) -> Iterator[str]:
    """Yield words of commands that are files below the directory: `./scripts/setup.sh`, `-r dev/requirements.txt`."""
    for command in commands:
        for word in command.replace(";", " ").replace("=", " ").split():
            path = os.path.normpath(word.strip("\"'()&|"))
            if (
                not path.startswith(("/", ".."))
                and len(path) < os.pathconf("/", "PC_PATH_MAX")
                and (directory / path).is_file()
            ):
                yield path


def _content(directory: Path, path: str, most: int) -> bytes | None:
    """Return a file's bytes; None if it has more than most bytes or a link leads out of the directory."""
    real = (directory / path).resolve()
    if not real.is_relative_to(directory.resolve()):
        return os.fsencode(str(real))
    try:
        if not stat.S_ISREG(real.stat().st_mode):
            return b""
        with os.fdopen(open_regular(real, os.O_RDONLY, name="Input of setup"), "rb") as file:
            content = file.read(most + 1)
    except (OSError, UsageError):
        return b""
    return content if len(content) <= most else None


def set_up(runtime: Runtime, options: SandboxOptions, tell: Callable[[str], None], *, is_new: bool) -> None:
    """Run a project's setup commands, unless a checkpoint has their effects, and then its start commands.

    Their effects are kept. If one of a devcontainer fails, it is reported and the rest of its kind is skipped, as the
    specification has it: in an image that was made for more rights (`sudo`) much still works.

    Raises:
        SandboxUnavailable: one of `.ohsandbox.toml` failed, or took over SETUP_TIMEOUT_S; the message names it.
    """
    if is_new and runtime.has_setup:
        tell("setup: done before, in a checkpoint (--no-setup-cache runs it again)")
    elif is_new:
        _link_folder(runtime, options.project.folder, tell)
        if options.project.setup and _run_and_report(runtime, options.project, tell):
            _keep(runtime, options, tell)
    _start(runtime, options.project.start, tell)


_BEGIN = """{{ {command}
}} >{log} 2>&1 </dev/null &
ohs_start=$! ohs_n=0
while kill -0 $ohs_start 2>/dev/null && [ $ohs_n -lt {tenths} ]; do sleep 0.1 || sleep 1; ohs_n=$((ohs_n + 1)); done
if kill -0 $ohs_start 2>/dev/null; then echo "It runs on in the background: {log}"
else wait $ohs_start; ohs_n=$?; tail -n 20 {log}; [ $ohs_n = 0 ]; fi"""


def _start(runtime: Runtime, commands: Sequence[str], tell: Callable[[str], None]) -> None:
    """Run the start commands; one that does not end soon, such as a server, continues in the background."""
    for number, command in enumerate(commands, 1):
        tell(f"start: {joined_lines(safe(command), limit_chars=_MAX_SETUP_CHARS)}")
        log = f"/tmp/ohsandbox-start-{number}.log"  # noqa: S108 - in the sandbox
        script = _BEGIN.format(command=command, log=log, tenths=int(START_WAIT_S * 10))
        ended = runtime.run(["/bin/sh", "-c", script], timeout_s=SETUP_TIMEOUT_S)
        lines = Lines(lambda line: tell(output(line)))
        lines.add(ended.stdout.decode(errors="replace"))
        lines.finish()
        if ended.exit_code != 0:
            tell(
                f"warning: the start's command {truncated(repr(command), _MAX_SETUP_CHARS)} failed. "
                "The sandbox is used as is."
            )
            return


def _run_and_report(runtime: Runtime, project: ProjectCommands, tell: Callable[[str], None]) -> bool:
    try:
        _run_setup(runtime, project.setup, tell)
    except SetupFailed as error:
        if project.folder is None:
            raise
        more = " `sudo` works with --profile trusted alone." if "sudo" in error.command else ""
        tell(f"warning: {error}{more} The sandbox is used as it is.")
        return False
    return True


def _keep(runtime: Runtime, options: SandboxOptions, tell: Callable[[str], None]) -> None:
    if (key := setup_key(options)) is None or not runtime.keeps_checkpoints:
        return
    try:
        why_not = runtime.keep_setup(key)
    except (SandboxUnavailable, UsageError) as error:
        why_not = str(error)
    if why_not:
        tell(f"setup runs again at the next start: {why_not}.")


_LINK = '[ -e "$1" ] || { mkdir -p "${1%/*}/" && ln -s "$2" "$1"; }'


def _link_folder(runtime: Runtime, folder: str | None, tell: Callable[[str], None]) -> None:
    """Link the workspace to the place where a devcontainer's commands expect it."""
    if folder is None or folder == runtime.workdir:
        return
    result = runtime.run(["/bin/sh", "-c", _LINK, "sh", folder, runtime.workdir], user="root", workdir="/")
    if result.exit_code != 0:
        tell(f"{safe_line(folder)} is not there: the workspace is {runtime.workdir}.")


class SetupFailed(SandboxUnavailable):
    """A command of a project failed."""

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command


def _run_setup(runtime: Runtime, commands: Sequence[str], tell: Callable[[str], None]) -> None:
    """Run commands one after another in a shell of their own, and call tell with their output.

    Raises:
        SetupFailed: one failed, or took over SETUP_TIMEOUT_S; the message names it.
    """
    for command in commands:
        tell(f"setup: {joined_lines(safe(command), limit_chars=_MAX_SETUP_CHARS)}")
        lines = Lines(lambda line: tell(output(line)))
        ended = runtime.execute(command, session=_SESSION, timeout_s=SETUP_TIMEOUT_S, on_output=lines.add)
        lines.finish()
        if ended.exit_code != 0 or ended.timed_out:
            ending = (
                f"took over {SETUP_TIMEOUT_S:g} s" if ended.timed_out else f"failed with exit code {ended.exit_code}"
            )
            raise SetupFailed(
                f"Setup command {truncated(repr(command), _MAX_SETUP_CHARS)} of the project file {ending}. "
                "Correct it, or leave the project file out with --no-project.",
                command,
            )
    if commands:
        runtime.close_session(_SESSION)
