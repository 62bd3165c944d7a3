"""Programs of this machine come from absolute directories of PATH that no clone and no sandbox has written."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox import host_programs
from ohsandbox.errors import ProgramNotFoundError

SYSTEM = "/usr/bin:/bin"
PACKAGE = Path(ohsandbox.__file__).parent


def make_program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone that has a `git` of its own, and is the present directory."""
    clone = tmp_path / "clone"
    (clone / ".git").mkdir(parents=True)
    (clone / "sub").mkdir()
    make_program(clone / "bin/git")
    monkeypatch.chdir(clone)
    monkeypatch.setattr(host_programs, "_workspaces", set())
    return clone


@pytest.mark.parametrize(
    "entry", ["bin", "./bin", "sub/../bin", "{clone}/bin", "{clone}/link", "{beside}/link", "", "."]
)
@pytest.mark.parametrize("place", [".", "sub"])
def test_no_program_is_taken_from_a_clone(entry: str, place: str, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = clone.parent / "beside"
    beside.mkdir()
    for link in (clone / "link", beside / "link"):
        link.symlink_to(clone / "bin")
    make_program(clone / "git")
    monkeypatch.setenv("PATH", f"{entry.format(clone=clone, beside=beside)}:{SYSTEM}")
    monkeypatch.chdir(place)
    assert host_programs.find_program("git") in {"/usr/bin/git", "/bin/git"}
    assert host_programs.environment()["PATH"] == SYSTEM


def test_a_link_into_a_clone_is_passed_over(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/git").symlink_to(clone / "bin/git")
    monkeypatch.setenv("PATH", f"{tmp_path}/own:{SYSTEM}")
    assert host_programs.program("git") == "/usr/bin/git"


@pytest.mark.parametrize("marker", ["venv/pyvenv.cfg", "node_modules/x"])
def test_no_program_is_taken_from_another_projects_environment(
    marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / Path(marker).parts[0]
    make_program(environment / "bin/git")
    (tmp_path / marker).touch()
    monkeypatch.setenv("PATH", f"{environment}/bin:{SYSTEM}")
    assert host_programs.program("git") == "/usr/bin/git"


def test_no_program_is_taken_from_a_workspace_once_it_is_known(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", f"{clone}/bin:{SYSTEM}")
    assert host_programs.program("git") == f"{clone}/bin/git"
    host_programs.exclude_workspace(clone / "sub")
    assert host_programs.program("git") == "/usr/bin/git"


@pytest.mark.parametrize("place", ["home", "home/sub", "/", "/usr", "/usr/bin"])
def test_the_persons_own_programs_stay_where_a_home_is_a_repository(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".git").mkdir(parents=True)
    (home / "sub").mkdir()
    make_program(home / "bin/git")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/bin:{SYSTEM}")
    monkeypatch.chdir(tmp_path / place)
    assert host_programs.program("git") == f"{home}/bin/git"
    assert host_programs.program("env") == "/usr/bin/env"


def test_a_missing_program_is_one_line_that_says_where_it_was_looked_for(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(clone / "bin/ohs-absent")
    monkeypatch.setenv("PATH", f"./bin:{SYSTEM}")
    with pytest.raises(ProgramNotFoundError) as raised:
        host_programs.program("ohs-absent")
    assert str(raised.value) == (
        "Program 'ohs-absent' was not found in /usr/bin:/bin; './bin' of PATH is relative or a project's, and not "
        "used. Install it, or add its absolute directory to PATH."
    )
    with pytest.raises(ProgramNotFoundError, match="relative path"):
        host_programs.run(["bin/git"], check=False)


@pytest.mark.parametrize("path", ["", "./bin", "bin::."])
def test_a_path_without_a_usable_directory_is_not_the_present_directory(
    path: str, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(clone / "ohs-here")
    monkeypatch.setenv("PATH", path)
    ended = host_programs.run(["/bin/sh", "-c", "command -v ohs-here; command -v env"], capture_output=True, text=True)
    assert ended.stdout.split() in (["/usr/bin/env"], ["/bin/env"])


def test_what_a_program_starts_is_not_taken_from_a_clone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(clone / "bin/git-payload", f"touch {clone}/ran")
    monkeypatch.setenv("PATH", f"./bin:{SYSTEM}")
    host_programs.run(["git", "payload"], capture_output=True, check=False)
    assert not (clone / "ran").exists()


def test_a_present_directory_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PATH", SYSTEM)
    assert host_programs.program("env") == "/usr/bin/env"


# --- no other way ---------------------------------------------------------------------------------

STARTS = {
    "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {
        "system", "popen", "posix_spawn", "posix_spawnp", "startfile", "fork", "forkpty",
        *(f"{kind}{end}" for kind in ("exec", "spawn") for end in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    },
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "anyio": {"open_process", "run_process"},
    "pty": {"spawn", "fork"},
    "shutil": {"which"},
    "webbrowser": {"open", "open_new", "open_new_tab", "get"},
    "click": {"edit", "launch", "echo_via_pager"},
    "typer": {"launch"},
    "pydoc": {"pager"},
    "multiprocessing": {"Process", "Pool", "get_context"},
}  # fmt: skip
"""Functions that start a program, or look for one."""
METHODS = {
    "subprocess_exec",
    "subprocess_shell",
    "loop_subprocess",
    "create_subprocess_exec",
    "create_subprocess_shell",
}
TYPES = {"ProcessPoolExecutor", "StdioTransport", "StdioServerParameters", "stdio_client", "create_subprocess_exec"}
EXCEPTIONS = {
    ("host_programs.py", "subprocess.run"): "the way",
    ("host_programs.py", "subprocess.Popen"): "the way",
    ("host_programs.py", "shutil.which"): "the way",
    (
        "cli/commands/top_screen.py",
        "subprocess.run",
    ): "our own interpreter, with the person's PATH",
    ("runtime/local.py", "subprocess.Popen"): "CLIRuntime's commands are the agent's; other callers are listed below",
    ("tools/_ipython_kernel/plain.py", "subprocess.run"): "runs in the sandbox",
    ("tools/_ipython_kernel/plain.py", "subprocess.Popen"): "runs in the sandbox",
    ("tools/_ipython_kernel/plain.py", "shutil.which"): "runs in the sandbox",
    ("tools/browser/_in_sandbox/main.py", "shutil.which"): "runs in the sandbox",
}
"""Where a program is started in another way, with the reasons."""


def starts_in(source: str) -> set[str]:
    """The functions of STARTS, METHODS and TYPES that a module uses, also under another name."""
    tree = ast.parse(source)
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in STARTS.get(module, ()):
                found.add(f"{module}.{name}")
            case ast.Attribute(attr=name) if name in METHODS | TYPES:
                found.add(name)
            case ast.Name(id=name) if name in TYPES:
                found.add(name)
            case ast.ImportFrom(module=str(module), names=names):
                found |= {f"{module}.{alias.name}" for alias in names if alias.name in STARTS.get(module, ())}
            case ast.Import(names=names):
                found |= {f"{alias.name} as {alias.asname}" for alias in names if alias.name in STARTS and alias.asname}
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(['git'])", "from subprocess import Popen", "import subprocess as s",
        "import os\nos.execvp('git', ['git'])", "import shutil\nfind = shutil.which", "loop.subprocess_exec(f, 'git')",
        "import asyncio\nasyncio.create_subprocess_shell('git')",
        "def f():\n    import webbrowser\n    webbrowser.open(x)",
    ],
)  # fmt: skip
def test_each_start_of_a_program_is_seen(source: str) -> None:
    assert starts_in(source)


def test_programs_are_started_in_no_other_way() -> None:
    found = {
        (str(file.relative_to(PACKAGE)), start)
        for file in PACKAGE.rglob("*.py")
        for start in starts_in(file.read_text(encoding="utf-8"))
    }
    annotations = {pair for pair in found if pair[1] == "subprocess.Popen" and not _is_called(*pair)}
    assert found - annotations == set(EXCEPTIONS)


def _is_called(file: str, function: str) -> bool:
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == function for node in ast.walk(tree))


def test_only_two_modules_start_what_a_local_channel_is_given() -> None:
    users = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if any(
            isinstance(node, ast.Name) and node.id == "LocalChannel" for node in ast.walk(ast.parse(file.read_text()))
        )
    }
    assert users == {"runtime/local.py", "runtime/client_channel.py"}


def test_each_python_that_we_start_imports_nothing_from_the_present_directory() -> None:
    commands = [
        [element.value if isinstance(element, ast.Constant) else ast.unparse(element) for element in node.elts]
        for file in PACKAGE.rglob("*.py")
        if "_ipython_kernel" not in file.parts  # runs in the sandbox
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable"
    ]
    assert len(commands) > 3
    assert all(command[1] in {"-P", "-I"} for command in commands)
