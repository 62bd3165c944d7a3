"""The state directory is ours alone, and no path leads through a symlink that a sandbox may have made."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ohsandbox import Settings
from ohsandbox.conversation.environment.mcp_servers import pins_path
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.errors import UsageError
from ohsandbox.paths import check_apart, check_private, conversations_dir, open_directory, state_dir, subdirectory
from ohsandbox.persistence import LOG_NAME

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    (directory / ".ohsandbox").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.delenv("OHSANDBOX_HOME")
    monkeypatch.delenv("SUDO_UID", raising=False)
    return directory


def ohsandbox(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ohsandbox", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_state_directory_that_others_may_write_is_refused(mode: int, home: Path) -> None:
    (home / ".ohsandbox").chmod(mode)
    for use in (state_dir, Settings.load):
        with pytest.raises(UsageError, match=f"may be written by other users .*chmod 700 {home}/.ohsandbox"):
            use()


@pytest.mark.parametrize(
    "words", [["conversations"], ["run", "task"], ["exec", "--", "true"], ["mcp", "serve"], ["ps"]]
)
def test_every_command_says_so_in_one_line(words: list[str], home: Path) -> None:
    (home / ".ohsandbox").chmod(0o777)
    ended = ohsandbox(*words)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert f"`chmod 700 {home}/.ohsandbox`" in ended.stderr


def test_one_that_others_may_read_is_fine(home: Path) -> None:
    (home / ".ohsandbox").chmod(0o755)
    assert state_dir() == home / ".ohsandbox"


def test_one_variable_moves_all_that_is_kept(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "elsewhere"))
    assert state_dir() == tmp_path / "elsewhere"
    assert not state_dir().exists()
    kept = [conversations_dir(), pins_path(), Settings.default_path(), FileConversationStore().root]
    assert all(path.is_relative_to(tmp_path / "elsewhere") for path in [*kept, subdirectory("leases")])
    assert stat.S_IMODE(state_dir().stat().st_mode) == 0o700
    assert [*(home / ".ohsandbox").iterdir()] == []


def test_a_conversation_is_stored_where_the_variable_says(home: Path, tmp_path: Path) -> None:
    state = tmp_path / "elsewhere"
    ended = subprocess.run(
        [sys.executable, "-m", "ohsandbox", "run", "hi", "--model", "scripted:demo", "--runtime", "cli", "--no-tui"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OHSANDBOX_HOME": str(state)},
    )
    assert ended.returncode == 0, ended.stderr
    assert len([*(state / "conversations").glob(f"*/{LOG_NAME}")]) == 1
    assert [*(home / ".ohsandbox").iterdir()] == []


@pytest.mark.parametrize("variable", ["HOME", "OHSANDBOX_HOME"])
def test_a_relative_state_directory_is_refused(variable: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home.is_absolute()
    monkeypatch.setenv(variable, "relative")
    with pytest.raises(UsageError, match=f"Invalid {variable} 'relative': expected an absolute path"):
        state_dir()


@pytest.mark.usefixtures("home")
def test_without_home_it_is_that_of_the_password_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert state_dir() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ohsandbox"


def test_a_home_that_others_may_write_is_refused_and_a_sticky_directory_is_not(home: Path) -> None:
    home.chmod(0o777)
    with pytest.raises(UsageError, match=f"chmod go-w {home}`"):
        state_dir()
    home.chmod(0o1777)
    assert state_dir() == home / ".ohsandbox"


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_every_directory_above_counts_since_another_could_be_put_in_its_place(
    levels: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = home / "team" / "mine" / "deep" / "state"
    state.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("OHSANDBOX_HOME", str(state))
    above = state.parents[levels - 1]
    above.chmod(0o777)
    with pytest.raises(UsageError, match=f"chmod go-w {above}`"):
        state_dir()
    above.chmod(0o1777)
    assert state_dir() == state


def own_group() -> int | None:
    """The group that holds only the user of this process; None where there is none (macOS)."""
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    return group.gr_gid if (group.gr_name, group.gr_mem) == (user.pw_name, []) else None


@pytest.mark.skipif(own_group() is None, reason="this user has no group of its own")
def test_a_directory_above_that_only_the_owners_own_group_may_write_is_not_refused(home: Path) -> None:
    os.chown(home, -1, own_group() or 0)
    home.chmod(0o775)
    assert state_dir() == home / ".ohsandbox"
    home.chmod(0o777)
    with pytest.raises(UsageError, match=f"chmod go-w {home}`"):
        state_dir()


@as_root
def test_a_directory_above_that_another_group_may_write_is_refused(home: Path) -> None:
    for gid in {group.gr_gid for group in grp.getgrall()} - {os.getgid()}:
        os.chown(home, -1, gid)
        home.chmod(0o775)
        with pytest.raises(UsageError, match=f"chmod go-w {home}`"):
            state_dir()


@pytest.mark.skipif(
    own_group() is None or sys.platform != "linux", reason="Linux shows the mask of an ACL as the group"
)
def test_a_directory_above_that_an_acl_lets_another_user_write_is_refused(home: Path) -> None:
    os.chown(home, -1, own_group() or 0)
    entries = [(0x01, 7, -1), (0x02, 7, 1234), (0x04, 7, -1), (0x10, 7, -1), (0x20, 5, -1)]  # acl(5): user 1234 rwx
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(home, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this file system has no ACLs")
    assert stat.S_IMODE(home.stat().st_mode) == 0o775
    with pytest.raises(UsageError, match=f"chmod go-w {home}`"):
        state_dir()


@as_root
def test_a_directory_above_of_nobody_is_another_users(home: Path) -> None:
    os.chown(home, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to user 65534"):
        state_dir()


@as_root
def test_in_a_user_namespace_the_machines_directories_are_not_refused(home: Path) -> None:
    os.chown(home, 1234, 1234)
    home.chmod(0o755)
    script = "import os; from ohsandbox.paths import state_dir; print(os.stat(os.environ['HOME']).st_uid, state_dir())"
    entered = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*entered, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no user namespaces")
    ended = subprocess.run([*entered, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == f"65534 {home}/.ohsandbox\n", ended.stderr


def test_the_real_directory_of_a_link_counts(home: Path, tmp_path: Path) -> None:
    (home / ".ohsandbox").rmdir()
    (tmp_path / "real").mkdir(mode=0o700)
    (home / ".ohsandbox").symlink_to(tmp_path / "real")
    assert state_dir() == home / ".ohsandbox"
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(UsageError, match=f"chmod 700 {tmp_path}/real"):
        state_dir()


def test_a_settings_file_that_others_may_write_is_refused(home: Path) -> None:
    settings = home / ".ohsandbox" / "settings.json"
    settings.write_text("{}")
    settings.chmod(0o664)
    with pytest.raises(UsageError, match=f"chmod go-w {settings}"):
        Settings.load()
    settings.chmod(0o644)
    Settings.load()


@as_root
def test_one_that_belongs_to_somebody_else_is_refused_unless_sudo_came_from_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(home / ".ohsandbox", 1234, 1234)
    with pytest.raises(UsageError, match="belongs to user 1234"):
        state_dir()
    monkeypatch.setenv("SUDO_UID", "1234")
    assert state_dir() == home / ".ohsandbox"
    monkeypatch.setenv("SUDO_UID", "1235")
    with pytest.raises(UsageError, match="belongs to user 1234"):
        check_private(home / ".ohsandbox")


def test_a_directory_is_opened_through_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path / "link" / "below", tmp_path / "real" / ".." / "link" / "new"):
        with pytest.raises(UsageError, match="is a symlink, which is not followed"):
            open_directory(path, make=True)
    assert not (tmp_path / "real" / "new").exists()
    descriptor = open_directory(tmp_path / "real" / "below" / ".." / "made" / "deep", make=True)
    assert os.fstat(descriptor).st_ino == (tmp_path / "real" / "made" / "deep").stat().st_ino
    os.close(descriptor)


def test_what_is_no_directory_is_the_error_that_python_knows(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    os.mkfifo(tmp_path / "p")
    for name in ("f", "p"):
        with pytest.raises(NotADirectoryError):
            open_directory(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_directory(tmp_path / "none")


@as_root
def test_a_link_of_the_systems_own_is_followed(tmp_path: Path) -> None:
    link = Path("/") / f"ohs-{os.getpid()}"
    (tmp_path / "d").mkdir()
    link.symlink_to(tmp_path)
    try:
        descriptor = open_directory(link / "d")
        assert os.fstat(descriptor).st_ino == (tmp_path / "d").stat().st_ino
        os.close(descriptor)
    finally:
        link.unlink()


@pytest.mark.parametrize(
    ("ours", "workspace"), [("w/c", "w"), ("c", "c/w"), ("c", "c"), ("link/c", "w"), ("w/c", "link")]
)
def test_what_we_write_and_what_an_agent_writes_lie_apart(tmp_path: Path, ours: str, workspace: str) -> None:
    for name in ("w", "c/w", "apart"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to("w")
    with pytest.raises(UsageError, match="lie in one another"):
        check_apart(tmp_path / ours, tmp_path / workspace)
    check_apart(tmp_path / ours, tmp_path / "apart")
    check_apart(tmp_path / "w c", tmp_path / "w")


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize(("ours", "workspace"), [("m n/c", "w"), ("w/below/c", "m n"), ("m n", "w/below/deep")])
def test_a_bind_mount_is_seen_through(tmp_path: Path, ours: str, workspace: str) -> None:
    for name in ("w/below/deep", "m n", "apart"):
        (tmp_path / name).mkdir(parents=True)
    script = f"""
import pathlib, sys
from ohsandbox.conversation.environment.mcp_servers import pins_path
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.errors import UsageError
from ohsandbox.persistence import LOG_NAME
from ohsandbox.paths import check_apart
top = pathlib.Path({str(tmp_path)!r})
check_apart(top / {ours!r}, top / "apart")
try:
    check_apart(top / {ours!r}, top / {workspace!r})
except UsageError:
    sys.exit(42)
"""
    command = 'mount --bind "$1/w/below" "$1/m n" && exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, "sh", str(tmp_path), sys.executable, script],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 42, done.stderr
