from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ohsandbox.runtime.workspace import git_programs
from ohsandbox.runtime.workspace.git_programs import NamedPath, command_programs, named_paths, package_directory
from ohsandbox.runtime.workspace.git_settings import Names

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in a repository, of a person whose settings are in person.gitconfig."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "home").mkdir()
    (tmp_path / "top" / "workspace").mkdir(parents=True)
    (tmp_path / "top" / ".git" / "hooks").mkdir(parents=True)
    return tmp_path / "top" / "workspace"


def named(workspace: Path, repository: str = "", person: str = "") -> dict[str, Names]:
    (workspace.parent / ".git" / "config").write_text(repository)
    (workspace.parent.parent / "home" / ".gitconfig").write_text(person)
    found = named_paths(str(workspace), git_programs.repositories(str(workspace), [], {}))
    return {name.path: name.names for name in found}


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        ("[core]\nhooksPath = workspace/h", {"h": Names.DIRECTORY}),
        ("[core]\nhooksPath = workspace/../workspace/./h/", {"h": Names.DIRECTORY}),
        ("[core]\nhooksPath = workspace/.husky/_", {".husky": Names.DIRECTORY}),
        ("[core]\nhooksPath = h", {}),
        ("[core]\nhooksPath = workspace", {"": Names.DIRECTORY}),
        ("[init]\ntemplateDir = .", {"": Names.DIRECTORY}),
        ("[include]\npath = ../workspace/c", {"c": Names.FILE}),
        ('[includeIf "onbranch:x"]\npath = ../workspace/c', {"c": Names.FILE}),
        ("[include]\npath = workspace/c", {}),
        ("[core]\nattributesFile = workspace/a", {"a": Names.FILE}),
        ("[core]\nattributesFile = :(optional)workspace/a", {"a": Names.FILE}),
        ('[filter "x"]\nprocess = workspace/f --fast', {"f": Names.COMMAND}),
        ('[diff "x"]\ntextconv = cd . && python3 -u workspace/d.py', {"d.py": Names.COMMAND}),
        ("[alias]\nx = !workspace/x\ny = workspace/y", {"x": Names.COMMAND}),
        ('[remote "x"]\nurl = ext::workspace/u %S', {"u": Names.COMMAND}),
        ('[url "ext::workspace/u "]\ninsteadOf = x:', {"u": Names.COMMAND}),
        ('[mine "x"]\ntool = workspace/there', {"there": Names.COMMAND}),
        ('[mine "x"]\ntool = workspace/not-there', {}),
        ("[user]\nname = workspace/there", {}),
        ("[core]\nworktree = ../workspace\nhooksPath = h\n", {"h": Names.DIRECTORY}),
    ],
)
def test_a_setting_of_the_repository_names_paths_below_its_top(
    workspace: Path, repository: str, expected: dict[str, Names]
) -> None:
    (workspace / "there").touch()
    assert named(workspace, repository) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('"$(git rev-parse --show-toplevel)/tools/x" %f', {"tools/x"}),
        ('"$(git rev-parse --show-toplevel)/tools/new"', {"tools/new"}),
        ("$PWD/tools/x", {"tools/x"}),
        ('T=$(dirname "$0")/..; "$T/tools/x"', {"tools/x"}),
        ("cd tools && sh x", {"tools/x", "x"}),
        ("sed -f script", {"script"}),
        ("ssh -Fscript", {"script"}),
        ("uv run run.py", {"run.py"}),
        ("vim -u none", set()),
        ("$HOME/new", set()),
    ],
)
def test_a_command_names_files_by_what_its_shell_makes_of_it(workspace: Path, command: str, expected: set[str]) -> None:
    for name in ("tools/x", "script", "run.py"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).touch()
    value = command.replace('"', '\\"')
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").write_text(f'[filter "x"]\nclean = "{value}"\n')
    found = named_paths(str(workspace), git_programs.repositories(str(workspace), [".git"], {}))
    assert {name.path for name in found} == expected


@pytest.mark.parametrize(
    "hook",
    [
        "scripts/x\n",
        "#!scripts/x\n",
        '#!/bin/sh\n"$(git rev-parse --show-toplevel)/scripts/x"\n',
        '#!/bin/sh\nROOT=$(dirname "$0")/../..\nexec $ROOT/scripts/x\n',
        "#!/bin/sh\ncd scripts && ./x\n",
    ],
)
def test_a_hook_names_programs_by_what_its_shell_makes_of_it(workspace: Path, hook: str) -> None:
    (workspace / "scripts").mkdir()
    (workspace / "scripts" / "x").touch(0o755)
    (workspace / "plain").touch()
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "hooks" / "pre-commit").write_text(f"{hook}# see plain\n")
    found = named_paths(str(workspace), git_programs.repositories(str(workspace), [".git"], {}))
    assert {name.path for name in found} == {"scripts/x"}


def test_a_script_that_a_hook_gives_to_an_interpreter_need_not_be_executable(workspace: Path) -> None:
    (workspace / "check.py").touch(0o644)
    (workspace.parent / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\nexec python3 workspace/check.py\n")
    assert named(workspace) == {"check.py": Names.COMMAND}


def test_an_alias_of_a_git_command_names_the_executables_that_it_runs(workspace: Path) -> None:
    (workspace / "x").touch(0o755)
    (workspace / "plain").touch(0o644)
    assert named(workspace, "[alias]\nr = rebase -x workspace/x\na = add workspace/plain\n") == {"x": Names.COMMAND}


def test_the_settings_of_the_person_count_with_all_that_they_include(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "more").write_text("[include]\npath = " + f"{workspace}/w\n")
    (tmp_path / "home" / "other").write_text("[core]\nhooksPath = workspace/h\n")
    (workspace / "w").write_text("[diff]\nexternal = ./workspace/d\n")
    person = '[include]\npath = ~/more\n[includeIf "gitdir:/nowhere/"]\npath = other\n'
    assert named(workspace, person=person) == {"w": Names.FILE, "h": Names.DIRECTORY, "d": Names.COMMAND}


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GIT_EXTERNAL_DIFF", "{W}/d", {"d": Names.COMMAND}),
        ("EDITOR", "sh {W}/e", {"e": Names.COMMAND}),
        ("GIT_TEMPLATE_DIR", "{W}/t", {"t": Names.DIRECTORY}),
        ("GIT_CONFIG_COUNT", "1", {"h": Names.DIRECTORY}),
    ],
)
def test_variables_that_name_programs_to_git_count(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: dict[str, Names]
) -> None:
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"{workspace}/h")
    monkeypatch.setenv(variable, value.replace("{W}", str(workspace)))
    assert named(workspace) == expected


def test_a_repository_that_a_variable_names_counts(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace.parent.parent / "bare").mkdir()
    (workspace.parent.parent / "bare" / "config").write_text("[core]\nhooksPath = h\n")
    monkeypatch.setenv("GIT_DIR", str(workspace.parent.parent / "bare"))
    assert named(workspace) == {"h": Names.DIRECTORY}


def test_a_path_through_a_link_counts_as_written_and_as_it_leads(workspace: Path) -> None:
    (workspace.parent / "away").symlink_to(workspace / "deep")
    (workspace / "link").symlink_to("there")
    (workspace / "there").touch()
    assert named(workspace, "[core]\nhooksPath = away/h\n") == {"deep/h": Names.DIRECTORY}
    assert named(workspace, "[core]\npager = workspace/link\n") == {"link": Names.COMMAND, "there": Names.COMMAND}


def test_configuration_and_hooks_that_are_links_into_the_workspace_count(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / ".config").mkdir()
    (tmp_path / "home" / ".config" / "git").symlink_to(workspace / "dotfiles")
    (workspace / "dotfiles").mkdir()
    (workspace / "dotfiles" / "config").write_text("[core]\npager = less\n")
    (workspace.parent / ".git" / "hooks").rmdir()
    (workspace.parent / ".git" / "hooks").symlink_to("../workspace/hooks")
    assert named(workspace) == {"dotfiles/config": Names.FILE, "hooks": Names.DIRECTORY}


def test_a_module_that_python_runs_may_be_in_the_tree_where_no_file_may_stand_for_it(workspace: Path) -> None:
    config = workspace.parent / ".git" / "config"
    config.write_text(f'[core]\nworktree = {workspace}\n[filter "x"]\nclean = "/usr/bin/python3 -m strip.it"\n')
    (workspace.parent / ".git" / "hooks" / "pre-commit").write_text('#!/bin/sh\nexec "$PYTHON" -mstrip\n')
    found = named_paths(str(workspace), git_programs.repositories(str(workspace), [], {}))
    assert {name.path for name in found} == {
        "strip.py", "strip/__init__.py", "strip/__main__.py",
        "strip/it.py", "strip/it/__init__.py", "strip/it/__main__.py",
    }  # fmt: skip
    assert not any(name.may_be_created for name in found)


def test_without_git_the_person_s_files_are_read_all_the_same(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert named(workspace, person="[core]\nhooksPath = workspace/h\n") == {"h": Names.DIRECTORY}


def test_settings_that_cannot_be_read_hold_nothing_up(workspace: Path) -> None:
    os.mkfifo(workspace.parent / "fifo")
    assert named(workspace, "[include]\npath = ../fifo\npath = /dev/zero\npath = config\n") == {}


def test_a_hook_names_the_setting_that_it_is_reported_with(workspace: Path) -> None:
    (workspace / "x").touch(0o755)
    hook = workspace.parent / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\nworkspace/x\n")
    repositories = git_programs.repositories(str(workspace), [], {})
    assert named_paths(str(workspace), repositories) == [NamedPath("x", Names.COMMAND, f"the hook {str(hook)!r}")]


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("./x", ["./x"]), ("x", []), ("x/y %f", ["x/y"]), ("A=b exec x/y", ["x/y"]), ("sh x", ["x"]),
        ("python3 -u x.py", ["x.py"]), ("bash -c 'x/y %A'", ["x/y"]), ("a && b/c | d/e", ["b/c", "d/e"]),
        ('!f() { ./x "$@"; }; f', ["./x"]), ("'x y/z' a", ["x y/z"]), ("less -R a/b", []), ("node a/b", ["a/b"]),
        ("$HOME/x", []), ("https://x/y", []), ("code --wait", []), ('x/y "open', ["x/y"]), ("true", []),
    ],
)  # fmt: skip
def test_the_programs_of_a_command_are_those_that_a_shell_would_run(command: str, programs: list[str]) -> None:
    assert list(command_programs(command)) == programs


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        ("node_modules/.bin/x", "node_modules"), ("a/.venv/bin/x", "a/.venv"), ("a/b", ""), ("node_modules_/x", ""),
    ],
)  # fmt: skip
def test_what_package_managers_replace_is_known_by_its_name(path: str, directory: str) -> None:
    assert package_directory(path) == directory
