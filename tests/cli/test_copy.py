"""`--copy`: an agent works on a copy, and what it did comes back by `apply` alone."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.timetravel.snapshots import manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Invoke, Recorded, WriteScript

WORK = "sed -i s/1/one/ text; echo new > new; rm gone; mkdir -p build; echo x > build/x; cat .env; echo K >> .gitignore"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "build").mkdir(parents=True)
    for name, text in {
        "text": "1\n2\n3\n4\n5\n",
        "gone": "g",
        ".env": "TOKEN=canary",
        ".gitignore": "build/\n",
    }.items():
        (root / name).write_text(text)
    (root / "build" / "old").write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def _what(root: Path) -> dict[str, str]:
    files = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts]
    return {str(path.relative_to(root)): path.read_text() for path in files}


@pytest.mark.docker
def test_what_was_done_on_a_copy_is_shown_and_comes_back_by_apply_alone(
    invoke: Invoke, write_script: WriteScript, image: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _what(project)
    monkeypatch.chdir(project)
    model = write_script(("go", WORK), ("done", None))
    where = ("--image", image, "--workspace", ".", "--copy")
    ended = invoke("run", "go", "--model", model, "--no-tui", *where)
    assert ended.code == 0, ended.err
    assert f"Not in the copy of {project}: .env (looks like a secret), build/ (ignored by git)." in ended.out
    assert "canary" not in ended.out
    assert "See what it changed: ohsandbox diff " in ended.out
    assert f"Bring that to {project}: ohsandbox apply " in ended.out
    assert _what(project) == before

    names = invoke("diff", "last", "--stat")
    *files, total = names.out.splitlines()
    assert [" ".join(line.split()[:2]) for line in files] == [
        "changed .gitignore",
        "gone gone",
        "new new",
        "changed text",
    ]
    assert total.startswith("4 files changed, ")
    assert "left out: build/: 1 new file ignored by git" in names.err
    (project / "text").write_text("1\n2\n3\n4\nfive\n")
    (project / "mine").write_text("mine")
    done = invoke("apply", "last", "--yes")
    assert done.code == 0, done.err
    assert _what(project) == {
        "text": "one\n2\n3\n4\nfive\n", "new": "new\n", ".gitignore": "build/\nK\n", "mine": "mine",
        ".env": "TOKEN=canary", "build/old": "x",
    }  # fmt: skip
    assert "`ohsandbox undo` does not undo this" in done.out
    assert "has it all" in invoke("apply", "last", "--yes").out


@pytest.mark.slow
@pytest.mark.docker
def test_the_files_of_a_repository_that_the_agent_cloned_come_back(
    invoke: Invoke, write_script: WriteScript, image: str, project: Path
) -> None:
    clone = "mkdir -p build libs/new/.git/objects libs/new/.git/refs; echo ref: refs/heads/main > libs/new/.git/HEAD"
    model = write_script(("go", f"{clone}; echo theirs > libs/new/code; touch libs/plain build/x"), ("done", None))
    where = ("--image", image, "--workspace", str(project), "--copy")
    ended = invoke("run", "go", "--model", model, "--no-tui", *where)
    assert ended.code == 0, ended.err
    names = invoke("diff", "last", "--stat")
    assert {"libs/new/code", "libs/plain"} <= {line.split()[1] for line in names.out.splitlines()}
    assert [line for line in names.err.splitlines() if "ignored" in line] == [
        "ohsandbox: left out: build/: 1 new file ignored by git"
    ]
    done = invoke("apply", "last", "--yes")
    assert done.code == 0, done.err
    assert (project / "libs" / "new" / "code").read_text() == "theirs\n"


@pytest.mark.slow
@pytest.mark.docker
def test_undo_fork_and_resume_go_on_with_the_copy(
    invoke: Invoke, write_script: WriteScript, image: str, project: Path, home: Path
) -> None:
    before = _what(project)
    more, third = "cat new; echo second > second", "ls; echo third > third"
    turns = [turn for command in (WORK, more, third) for turn in (("go", command), ("done", None))]
    where = ("--image", image, "--workspace", str(project), "--copy")
    how = ("--model", write_script(*turns), "--no-tui")
    assert invoke("run", "go", *how, *where).code == 0
    (first,) = (home / ".ohsandbox" / "conversations").glob("[!.]*")
    resumed = invoke("run", "more", "--resume", first.name, *how)
    assert resumed.code == 0, resumed.err
    assert "second" in invoke("diff", "last", "--stat").out
    undone = invoke("undo", "--yes")
    assert undone.code == 0, undone.err
    assert f"--workspace {project} --copy" in undone.out
    assert f"{project} is unchanged, with what `ohsandbox apply` wrote there" in undone.out
    assert "second" not in invoke("diff", "last", "--stat").out
    assert "new     new" in invoke("diff", "last", "--stat").out
    redone = invoke("redo", "--yes")
    assert redone.code == 0, redone.err
    forked = invoke("fork", first.name)
    assert forked.code == 0, forked.err
    new = forked.out.split()[1]
    gone_on = invoke("run", "third", "--resume", new, *how, *where)
    assert gone_on.code == 0, gone_on.err
    assert {"new", "second", "third"} <= {line.split()[1] for line in invoke("diff", new, "--stat").out.splitlines()}
    assert _what(project) == before


@pytest.mark.slow
@pytest.mark.docker
def test_apply_shows_and_asks_at_a_terminal_and_a_file_that_both_changed_stops_it(
    at_terminal: Callable[..., Recorded], invoke: Invoke, write_script: WriteScript, image: str, project: Path
) -> None:
    model = write_script(("go", WORK), ("done", None))
    where = ("--image", image, "--workspace", str(project), "--copy")
    assert invoke("run", "go", "--model", model, "--no-tui", *where).code == 0
    before = _what(project)
    said_no = at_terminal("apply", "last", answers=[(b"Change these 4 files", b"n\n")])
    assert b"+one" in said_no.raw
    assert _what(project) == before
    (project / "text").write_text("uno\n2\n3\n4\n5\n")
    refused = at_terminal("apply", "last")
    assert refused.code == 1
    assert b"text: it was changed there as well, and the changes do not merge" in refused.raw
    assert not (project / "new").exists()


@pytest.mark.slow
@pytest.mark.docker
def test_what_is_too_large_or_too_deep_is_named_and_the_rest_is_shown_and_applied(
    invoke: Invoke, write_script: WriteScript, image: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(manifest, "MAX_DEPTH", 4)
    grown = "truncate -s 5M 'a big'; seq 2000 > text; mkdir -p d/d/d/d/d/d; ln -s /etc/passwd out; echo new > new"
    model = write_script(("go", grown), ("done", None))
    where = ("--image", image, "--workspace", str(project), "--copy")
    assert invoke("run", "go", "--model", model, "--no-tui", *where).code == 0
    names = invoke("diff", "last", "--stat")
    assert names.code == 0, names.err
    assert names.out.splitlines() == [
        *("new     d", "new     d/d", "new     d/d/d", "new     d/d/d/d"),
        "new     new          1 +",
        "1 file changed, 1 line added, 0 removed",
    ]
    *told, remedy = names.err.splitlines()
    assert told == [
        "ohsandbox: left out: a big: 5242880 bytes, over the limit of 1000",
        "ohsandbox: left out: text: 8893 bytes, over the limit of 1000",
        "ohsandbox: left out: d/d/d/d/d: over 4 directories deep",
        "ohsandbox: left out: out: a symlink that leads outside",
    ]
    assert remedy.startswith("ohsandbox: what is over a limit is not brought along. To get it: ohsandbox exec --image ")
    done = invoke("apply", "last", "--yes")
    assert done.code == 0, done.err
    assert "left out: text: 8893 bytes" in done.err
    assert (project / "new").read_text() == "new\n"
    assert (project / "text").read_text() == "1\n2\n3\n4\n5\n"
    words = shlex.split(remedy.partition("To get it: ohsandbox ")[2])
    got = invoke(*words[: words.index(">") - 1], "/workspace/text")
    assert (got.code, got.out) == (0, "".join(f"{number}\n" for number in range(1, 2001)))


@pytest.mark.docker
def test_a_command_in_a_copy_leaves_the_directory_alone(invoke: Invoke, image: str, project: Path) -> None:
    before = _what(project)
    ended = invoke(
        "exec", "--image", image, "--workspace", str(project), "--copy", "--", "sh", "-c", "ls -A; rm -rf * .git; ls"
    )
    assert ended.code == 0, ended.err
    assert ended.out.split() == [".git", ".gitignore", "gone", "text"]
    assert _what(project) == before


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--copy"], "--copy needs a directory"),
        (["--copy", "--runtime", "cli", "--workspace", "."], "--copy needs a container"),
        (["--copy-all", "--attach", "some-name", "--workspace", "."], "attach"),
    ],
)
def test_what_cannot_be_is_one_line(invoke: Invoke, options: list[str], told: str, project: Path) -> None:
    options = [str(project) if option == "." else option for option in options]
    for words in (["run", "task", "--model", "scripted:demo", *options], ["exec", *options, "--", "true"]):
        ended = invoke(*words)
        assert ended.code == 2
        assert told in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.usefixtures("no_engine")
def test_without_checkpoints_nothing_could_come_back(invoke: Invoke, project: Path, home: Path) -> None:
    (home / ".ohsandbox").mkdir(mode=0o700)
    (home / ".ohsandbox" / "settings.json").write_text('{"checkpoints": false}')
    ended = invoke("run", "task", "--model", "scripted:demo", "--workspace", str(project), "--copy")
    assert ended.code == 2
    assert '"checkpoints" is false' in ended.err
