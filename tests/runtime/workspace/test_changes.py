from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ohsandbox.runtime.workspace import changes
from ohsandbox.runtime.workspace.changes import ChangeKind, ChangeTracker, WorkspaceReport, compare_scans, scan_tree
from ohsandbox.runtime.workspace.git_layout import looks_like_dotgit
from ohsandbox.runtime.workspace.git_settings import read_settings


def make(path: Path, text: str = "x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def git(directory: Path, *arguments: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", "-c", "safe.directory=*", *arguments], cwd=directory, env=environment, check=True)


def told(report: WorkspaceReport) -> list[tuple[ChangeKind, str]]:
    return [(change.kind, change.path) for change in report.changes]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    git(tree, "init", "-q")
    make(tree / "src" / "a.py")
    return tree


def changed_by(tree: Path, *doings: object) -> WorkspaceReport:
    before = scan_tree(tree)
    for doing in doings:
        assert callable(doing)
        doing()
    return compare_scans(tree, before, scan_tree(tree))


def test_ordinary_work_is_nothing_to_tell(tree: Path) -> None:
    report = changed_by(
        tree, lambda: make(tree / "src" / "b.py"), lambda: make(tree / "Makefile"), lambda: git(tree, "add", "-A")
    )
    assert report.changes == ()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ChangeKind.OPENED, ".vscode/tasks.json"), (ChangeKind.OPENED, "deep/er/.envrc"),
        (ChangeKind.OPENED, ".CLAUDE/settings.json"), (ChangeKind.OPENED, ".cargo/config.toml"),
        (ChangeKind.OBEYED, "tests/conftest.py"), (ChangeKind.OBEYED, "AGENTS.md"),
        (ChangeKind.OBEYED, ".github/workflows/x.yml"), (ChangeKind.OBEYED, "venv/evil.pth"),
        (ChangeKind.OBEYED, ".openhands/microagents/x.md"), (ChangeKind.OBEYED, "sub/.agents/skills/x/SKILL.md"),
        (ChangeKind.REPOSITORY, "sub/.GIT"), (ChangeKind.REPOSITORY, "git~1"),
        (ChangeKind.GIT_STATE, ".git/objects/info/alternates"), (ChangeKind.GIT_STATE, ".git/remotes/origin"),
        (ChangeKind.GIT_STATE, ".git/rebase-merge/git-rebase-todo"),
    ],
)  # fmt: skip
def test_what_runs_or_is_obeyed_by_itself_is_told(tree: Path, kind: ChangeKind, name: str) -> None:
    (change,) = changed_by(tree, lambda: make(tree / name)).changes
    assert (change.kind, name.startswith(change.path), change.is_new) == (kind, True, True)


def test_a_repository_that_runs_programs_is_the_worst(tree: Path) -> None:
    def plant() -> None:
        make(tree / "run.sh", mode=0o755)
        make(tree / "conftest.py")
        git(tree / "plain", "init", "-q")
        git(tree / "evil", "init", "-q")
        git(tree / "evil", "config", "core.fsmonitor", "touch /tmp/x")
        make(tree / "hooked" / ".git" / "hooks" / "pre-commit", mode=0o755)

    report = changed_by(tree, plant)
    assert told(report) == [
        (ChangeKind.RUNS_BY_GIT, "evil/.git/config"),
        (ChangeKind.RUNS_BY_GIT, "hooked/.git/hooks/pre-commit"),
        (ChangeKind.REPOSITORY, "plain/.git/config"),
        (ChangeKind.OBEYED, "conftest.py"),
        (ChangeKind.EXECUTABLE, "run.sh"),
    ]
    assert report.changes[0].detail == "core.fsmonitor = touch /tmp/x"


def test_repositories_in_every_shape_are_seen(tree: Path) -> None:
    def plant() -> None:
        git(tree, "init", "-q", "--bare", "bare")
        make(tree / "redirected" / ".git", "gitdir: ../bare")
        git(tree, "init", "-q", "--bare", "upper")
        for name in ("HEAD", "objects", "refs"):
            (tree / "upper" / name).rename(tree / "upper" / name.swapcase())
        make(tree / "tree" / ".git" / "HEAD", "ref: refs/heads/x")
        make(tree / "tree" / ".git" / "commondir", "../../bare")
        (tree / "linked").mkdir()
        (tree / "linked" / ".git").symlink_to("../bare")

    assert {(change.path, change.detail) for change in changed_by(tree, plant).changes} == {
        ("bare/config", ""),
        ("upper/config", ""),
        ("redirected/.git", "it names bare"),
        ("tree/.git/commondir", "it names ../../bare"),
        ("linked/.git", "it names ?"),
    }


def test_the_repository_itself_turned_into_a_bare_one_is_seen(tree: Path) -> None:
    def plant() -> None:
        (tree / ".git" / "HEAD").unlink()
        git(tree, "init", "-q", "--bare", ".")
        git(tree, "--git-dir=.", "config", "core.fsmonitor", "evil")

    assert told(changed_by(tree, plant))[0] == (ChangeKind.RUNS_BY_GIT, "config")


def test_changes_of_a_repository_that_was_there_are_told_by_part(tree: Path) -> None:
    report = changed_by(tree, lambda: make(tree / ".git" / "config", "[user]\nname = x\n"))
    assert [(change.kind, change.path, change.is_new) for change in report.changes] == [
        (ChangeKind.REPOSITORY, ".git/config", False)
    ]


def test_what_a_guard_makes_is_not_told(tree: Path) -> None:
    def guard() -> None:
        make(tree / ".git" / "commondir", ".\n")
        make(tree / ".git" / "config.worktree", "")

    assert changed_by(tree, guard).changes == ()


def test_links_out_and_special_files_are_told(tree: Path) -> None:
    def plant() -> None:
        (tree / "inside").symlink_to("src/a.py")
        (tree / "up").symlink_to("src/../src")
        (tree / "home").symlink_to("/root")
        (tree / "here").symlink_to(".")
        (tree / "sneaky").symlink_to("here/../secret")
        (tree / ".git" / "index").symlink_to("/root/.zshenv")
        os.mkfifo(tree / "fifo")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tree / "s"))

    report = changed_by(tree, plant)
    assert told(report) == [
        (ChangeKind.WRITES_BY_GIT, ".git/index"), (ChangeKind.LINK_OUT, "home"), (ChangeKind.LINK_OUT, "sneaky"),
        (ChangeKind.SPECIAL, "fifo"), (ChangeKind.SPECIAL, "s"),
    ]  # fmt: skip
    assert report.changes[1].detail == "-> /root"


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every directory")
def test_a_directory_that_cannot_be_read_is_told(tree: Path) -> None:
    (tree / "shut").mkdir()
    report = changed_by(tree, lambda: (tree / "shut").chmod(0))
    (tree / "shut").chmod(0o700)
    assert told(report) == [(ChangeKind.UNSEEN, "shut")]


def test_what_lies_too_deep_to_be_looked_into_is_told(tree: Path) -> None:
    def dig() -> None:
        directory = os.open(tree, os.O_RDONLY)
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=directory)
            inner = os.open("d" * 200, os.O_RDONLY, dir_fd=directory)
            os.close(directory)
            directory = inner
        os.close(directory)

    ((kind, _),) = told(changed_by(tree, dig))
    subprocess.run(["rm", "-rf", str(tree)], check=True)  # pytest's own clean-up cannot
    assert kind is ChangeKind.UNSEEN


def test_many_files_do_not_push_one_out_of_sight(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_HELD", 5)

    def plant() -> None:
        for number in range(40):
            make(tree / "a" / f"{number}.sh", mode=0o755)
        make(tree / "z" / ".vscode" / "tasks.json")

    report = changed_by(tree, plant)
    assert told(report)[0] == (ChangeKind.OPENED, "z/.vscode/tasks.json")
    assert len(report.changes) == 6
    assert report.not_held == ((ChangeKind.EXECUTABLE, 35),)


def test_a_file_of_the_same_size_and_time_is_seen_as_changed(tree: Path) -> None:
    path = make(tree / "run", "aaa", 0o755)
    before = path.stat()

    def forge() -> None:
        make(path, "bbb", 0o755)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert told(changed_by(tree, forge)) == [(ChangeKind.EXECUTABLE, "run")]


def test_a_missing_directory_and_a_loop_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    assert scan_tree(tmp_path).marked == {}
    assert scan_tree(tmp_path / "no").marked == {}


@pytest.mark.parametrize("name", [".GIT", ".Git", "git~1", "GIT~2", ".git ", ".git.", ".git::$DATA", ".g\u200cit"])
def test_names_that_other_systems_take_for_dotgit(name: str) -> None:
    assert looks_like_dotgit(name)


@pytest.mark.parametrize("name", [".git", ".gitignore", ".github", "git", "digit~1", "x.git", "GIT"])
def test_names_that_are_names(name: str) -> None:
    assert not looks_like_dotgit(name)


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = x",
        "[CORE] FsMonitor=x",
        '[a "b]"] [core] fsmonitor = x',
        "; comment \\\n[core]\nfsmonitor = x",
        "[user]\nname = a \\\n  b\n[core]\nfsmonitor = x",
        "\ufeff[core]\nfsmonitor=x",
        "[core]\r\nfsmonitor = x\r\n",
        "[user]\nname=\x0bq\n[core]\nfsmonitor=x",
        '[include "x"]\npath = y',
        "[alias]\nst = !evil",
        '[filter "lfs"]\nclean = evil',
        '[diff "x"]\ntextconv = evil',
        '[remote "o"]\nurl = ext::sh -c evil',
        '[merge "x"]\ndriver = evil',
        '[difftool "x"]\ncmd = evil',
    ],
)
def test_a_configuration_that_runs_something_is_told_however_it_is_written(tree: Path, text: str) -> None:
    report = changed_by(tree, lambda: make(tree / ".git" / "config", text))
    assert told(report) == [(ChangeKind.RUNS_BY_GIT, ".git/config")]


def test_values_are_read_as_a_person_wrote_them() -> None:
    text = '[Core]\n  hooksPath = ".githooks" ; ours\n# no\n[include]\n\tpath = a b\n[x "y"]\nflag\n'
    expected = [("core.hookspath", ".githooks", ""), ("include.path", "a b", ""), ("x.flag", "true", "y")]
    assert list(read_settings(text)) == expected


# --- a session's watch --------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def test_each_change_is_told_once(tree: Path, state: Path) -> None:
    watch = ChangeTracker(tree, state)
    make(tree / "conftest.py")
    assert told(watch.report()) == [(ChangeKind.OBEYED, "conftest.py")]
    assert watch.report().changes == ()
    watch.end()
    watch.end()
    assert list(state.iterdir()) == []


def test_the_baseline_is_private(tree: Path, state: Path) -> None:
    watch = ChangeTracker(tree, state)
    kept = [*state.rglob("*")]
    assert kept
    assert [path for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    watch.end()


def test_what_a_repository_beside_the_directory_runs_is_told_as_that(tree: Path, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    git(tree, "config", "core.hooksPath", str(mount / "hooks"))
    before = scan_tree(mount, beside=[tree])
    make(mount / "hooks" / "pre-commit", mode=0o755)
    [alone] = compare_scans(mount, before, scan_tree(mount)).changes
    [change] = compare_scans(mount, before, scan_tree(mount, beside=[tree])).changes
    assert (alone.kind, change.kind) == (ChangeKind.EXECUTABLE, ChangeKind.RUNS_BY_GIT)
    assert "core.hookspath" in change.detail.lower()


KILLED = """
import sys, os, signal
from pathlib import Path
from ohsandbox.runtime.workspace.changes import ChangeTracker
watch = ChangeTracker(Path(sys.argv[1]), Path(sys.argv[2]))
Path(sys.argv[1], ".envrc").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_session_did_is_told_to_the_next(tree: Path, state: Path) -> None:
    began = time.time()
    subprocess.run([sys.executable, "-c", KILLED, str(tree), str(state)], check=False)
    watch = ChangeTracker(tree, state)
    assert watch.previous_was_killed
    report = watch.report()
    assert told(report) == [(ChangeKind.OPENED, ".envrc")]
    assert report.since >= began
    assert not watch.previous_was_killed
    watch.end()
    assert not ChangeTracker(tree, state).previous_was_killed


def test_what_a_killed_session_s_other_directory_names_is_told_without_it(
    tree: Path, state: Path, tmp_path: Path
) -> None:
    mount = make(tmp_path / "mount" / "tool").parent
    git(tree, "config", "diff.external", str(mount / "tool"))
    beside = f"beside=[Path({str(tree)!r})]"
    killed = KILLED.replace("Path(sys.argv[2]))", f"Path(sys.argv[2]), {beside})").replace(".envrc", "tool")
    subprocess.run([sys.executable, "-c", killed, str(mount), str(state)], check=False)
    watch = ChangeTracker(mount, state)
    assert told(watch.report()) == [(ChangeKind.RUNS_BY_GIT, "tool")]
    watch.end()


def test_a_start_that_fails_leaves_it_to_the_next(tree: Path, state: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tree), str(state)], check=False)
    ChangeTracker(tree, state).leave()
    assert ChangeTracker(tree, state).previous_was_killed


def test_another_live_session_s_baseline_is_its_own(tree: Path, state: Path) -> None:
    first = ChangeTracker(tree, state)
    make(tree / "conftest.py")
    second = ChangeTracker(tree, state)
    assert not second.previous_was_killed
    assert second.report().changes == ()
    assert told(first.report()) == [(ChangeKind.OBEYED, "conftest.py")]
    second.end()
    first.end()


@pytest.mark.parametrize("damage", ["{", "[]", "[" * 100_000])
def test_a_damaged_baseline_is_passed_over(tree: Path, state: Path, damage: str) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tree), str(state)], check=False)
    (file,) = state.rglob("*.json")
    file.write_text(damage)
    watch = ChangeTracker(tree, state)
    assert not watch.previous_was_killed
    watch.end()


def test_names_that_are_no_text_survive(tree: Path, state: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tree), str(state)], check=False)
    make(Path(os.fsdecode(os.fsencode(tree) + b"/\xff\n.pth")))
    watch = ChangeTracker(tree, state)
    make(tree / "b.pth")
    assert [path for _, path in told(watch.report())] == [".envrc", "b.pth", "\udcff\n.pth"]
    watch.end()
