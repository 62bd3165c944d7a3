"""Which directories are refused as a workspace, and why."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox import DockerRuntime
from ohsandbox.errors import UsageError
from ohsandbox.paths import state_dir, subdirectory
from ohsandbox.runtime.docker.mounts import mount_policy
from ohsandbox.runtime.docker.mounts.mount_policy import check_directory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    for name in (".ssh", ".aws", ".docker", ".config/gh", "project"):
        (directory / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(directory))
    return directory


@pytest.mark.parametrize(
    "place", ["/", "/etc", "/etc/ssl", "/proc", "/sys", "/dev", "/var/run", "/usr/lib", "/var/lib", "/tmp", "/home"]
)
def test_a_system_directory_is_no_workspace(place: str) -> None:
    with pytest.raises(UsageError, match="refused"):
        check_directory(place)


@pytest.mark.parametrize("name", ["", ".ssh", ".aws", ".docker", ".config", ".config/gh"])
def test_neither_home_nor_its_secrets_are_a_workspace(name: str, home: Path) -> None:
    with pytest.raises(UsageError, match="refused"):
        check_directory(home / name)
    (home / "project" / "link").symlink_to(home / name)
    with pytest.raises(UsageError, match="refused"):
        check_directory(home / "project" / "link")


def test_the_state_directory_and_what_holds_it_are_no_workspace() -> None:
    for place in (subdirectory("leases"), state_dir(), state_dir().parent):
        with pytest.raises(UsageError, match="refused"):
            check_directory(place)


def test_a_socket_or_a_missing_directory_is_no_workspace(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "s"))
        with pytest.raises(UsageError, match="is not a directory"):
            check_directory(home / "s")
    with pytest.raises(UsageError, match="Make it first"):
        check_directory(home / "nosuch")
    assert not (home / "nosuch").exists()


def test_a_project_is_a_workspace(home: Path) -> None:
    assert check_directory(home / "project") == str((home / "project").resolve())


@pytest.mark.parametrize(
    "name",
    [
        ".local", ".local/bin", ".local/share/x", "bin", ".cargo", ".cargo/bin", ".claude", ".codex", ".gemini", ".npm",
        ".npm-global/lib", ".pyenv", ".mozilla/firefox", ".password-store", ".config/systemd/user", ".cache/pre-commit",
        "Library/LaunchAgents", "Library", "snap/firefox", ".var/app", ".oh-my-zsh", ".emacs.d",
    ],
)  # fmt: skip
def test_where_programs_keep_what_they_run_is_no_workspace(name: str, home: Path) -> None:
    (home / name).mkdir(parents=True)
    with pytest.raises(UsageError, match=f"it lies in ~/{name.split('/', maxsplit=1)[0]}"):
        check_directory(home / name)


@pytest.mark.parametrize("place", ["/var/spool/cron", "/usr/local/bin", "/lib/systemd", "/var/mail"])
def test_what_the_host_runs_by_itself_is_no_workspace(place: str) -> None:
    assert mount_policy._forbidden(Path(place).resolve()) is not None


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("/mnt/c", True),
        ("/mnt/c/Windows/System32", True),
        ("/mnt/c/Users", True),
        ("/mnt/c/Users/me", True),
        ("/mnt/c/Users/me/AppData/Roaming", True),
        ("/mnt/d/Users/me/.ssh", True),
        ("/mnt/c/Users/me/src/project", False),
        ("/mnt/c/src/project", False),
        ("/mnt/data/project", False),
    ],
)
def test_windows_places_as_wsl_shows_them(place: str, refused: bool) -> None:  # noqa: FBT001
    assert (mount_policy._forbidden(Path(place)) is not None) is refused


def test_a_directory_that_startup_files_lead_into_is_refused(home: Path) -> None:
    (home / "dotfiles" / "shell").mkdir(parents=True)
    (home / "dotfiles" / "shell" / "bashrc").write_text("")
    (home / ".bashrc").symlink_to(home / "dotfiles" / "shell" / "bashrc")
    for place in ("dotfiles", "dotfiles/shell"):
        (home / place / "other").mkdir()
        if place == "dotfiles":
            assert check_directory(home / "dotfiles" / "other")
        with pytest.raises(UsageError, match=r"~/\.bashrc leads into it"):
            check_directory(home / place)


@pytest.mark.parametrize(
    "place",
    [
        Path(ohsandbox.__file__).parent,
        Path(ohsandbox.__file__).parents[1],
        Path(sys.prefix),
        Path(sysconfig.get_path("purelib")),
        Path(sys.prefix).parent,
    ],
)
def test_what_holds_our_own_code_is_refused_with_a_remedy(place: Path) -> None:
    with pytest.raises(UsageError, match=r"which this ohsandbox runs from. Install ohsandbox outside"):
        check_directory(place)


def test_what_we_import_from_by_pythonpath_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{home}/project/src")
    with pytest.raises(UsageError, match="which this ohsandbox runs from"):
        check_directory(home / "project")


def test_a_directory_on_path_below_a_workspace_is_locked_or_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = home / "project"
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / "link").symlink_to(project / ".venv")
    (home / "elsewhere").symlink_to(project / ".venv" / "bin")
    usual = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{project}/.venv/bin:{usual}")
    assert check_directory(project) == str(project)
    assert mount_policy.path_directories(str(project)) == {".venv/bin"}
    for entry in (f"{project}/missing/bin", f"{project}/link/bin", f"{home}/elsewhere"):
        monkeypatch.setenv("PATH", f"{entry}:{usual}")
        with pytest.raises(UsageError, match="on your PATH"):
            check_directory(project)


@pytest.mark.parametrize("entry", ["{home}/project", "{home}/tools/..", ".", ""])
def test_a_directory_on_path_is_refused(entry: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "project" / "deep").mkdir()
    monkeypatch.chdir(home / "project")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{entry.format(home=home)}")
    for place in ("project", "project/deep"):
        with pytest.raises(UsageError, match="on your PATH"):
            check_directory(home / place)


@pytest.mark.parametrize(
    "variable", ["OHSANDBOX_HOME", "XDG_CONFIG_HOME", "CARGO_HOME", "CLAUDE_CONFIG_DIR", "ZDOTDIR"]
)
@pytest.mark.parametrize("below", ["project", "project/a", "project/a/b/c"])
def test_what_a_variable_moves_is_refused_and_what_holds_it(
    variable: str, below: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "project" / "a" / "b" / "c").mkdir(parents=True)
    monkeypatch.setenv(variable, str(home / "project" / "a" / "b"))
    with pytest.raises(UsageError, match="refused"):
        check_directory(home / below)


def test_a_home_by_the_systems_word_counts_whatever_home_says(home: Path) -> None:
    real = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert real != home
    assert "it lies in ~/.ssh" in str(mount_policy._forbidden(real.resolve() / ".ssh"))


@pytest.mark.slow
def test_the_library_refuses_as_the_command_line_does(home: Path) -> None:
    with pytest.raises(UsageError, match="refused"):
        DockerRuntime(workspace=home / ".ssh")
    for command in (["run", "task", "--model", "scripted:demo"], ["exec"], ["mcp", "serve"]):
        words = [*command, "--workspace", str(home / ".ssh"), *(["--", "true"] if command == ["exec"] else [])]
        ended = subprocess.run(
            [sys.executable, "-m", "ohsandbox", *words],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
        assert "it lies in ~/.ssh" in ended.stderr


def test_a_module_of_the_current_directory_is_never_imported(home: Path) -> None:
    """`python -m` puts it first; click is what the command line is made with."""
    (home / "project" / "click.py").write_text("raise SystemExit('planted')")
    ended = subprocess.run(
        [sys.executable, "-m", "ohsandbox", "--version"],
        cwd=home / "project",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place")
@pytest.mark.parametrize(
    ("mode", "group", "files"),
    [
        (0o2775, 2000, "1234 2000 True"),  # `git init --shared`, by another member of the group
        (0o775, 2000, "1234 2000 False"),
        (0o755, 2000, "1234 1234 False"),  # the group may not write
        (0o775, 3000, "1234 1234 False"),  # not a group of the caller
        (0o2775, 0, "1234 1234 False"),
        (0o2775, grp.getgrnam("disk").gr_gid, "1234 1234 False"),  # reads every disk
    ],
)
def test_where_several_people_work_files_have_their_group(tmp_path: Path, mode: int, group: int, files: str) -> None:
    os.chown(tmp_path, 1235, group)
    tmp_path.chmod(mode)
    work = (
        "import os; from ohsandbox.runtime.docker.mounts.mount_policy import identity; "
        f"os.setgroups([2000, 0, {grp.getgrnam('disk').gr_gid}]); os.setgid(1234); os.setuid(1234); "
        "found = identity('.', rootless=False); print(found.uid, found.gid, found.may_setgid)"
    )
    root = str(Path(ohsandbox.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", work], cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{files}\n"
