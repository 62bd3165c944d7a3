from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime, events
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.persistence import DirectoryLock, EventLog, read_events
from ohsandbox.timetravel.snapshots import manifest
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from tests.fakes import FakeModel, answer, call, data_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Invoke, Recorded

pytestmark = pytest.mark.docker
FIRST = "printf '1\\n2\\n3\\n' > lines; printf '\\0\\1' > bin; touch 'a b'; printf '* -diff\\n' > .gitattributes"
SECOND = "printf '1\\n2\\nthree\\n' > lines; rm bin; printf '\\033]0;title\\007\\n' > 'a b'"


CONCEALING = """
printf 'import os; os.system("one") #\\rx = ""\\n' > x.py
printf '\\033]0;os.system("two")\\007y = ""\\n\\342\\200\\256os.system("three")\\n' > y.py
touch "$(printf 'a\\ngone    lines')"
"""


def _work(root: Path, *, workspace: Path | None = None, second: str = SECOND) -> int:
    """A conversation "c" of two turns; the event before the second."""
    turns = [answer("", call("execute_bash", {"command": command})) for command in (FIRST, second)]
    model = FakeModel(turns[0], answer("ok"), turns[1], answer("ok"))
    runtime = DockerRuntime("ohsandbox-base:debian", workspace=workspace)
    agent = Agent(model, ["execute_bash"])
    with Conversation(agent, runtime, root, conversation_id="c", checkpoints=True) as conversation:
        conversation.run("first")
        conversation.run("second")
        return next(event.seq for event in conversation.events() if event.data.get("content") == "second") - 1


@pytest.mark.parametrize(
    ("command", "mode", "owner"),
    [("undo", 0o700, 1234), ("undo", 0o702, 0), ("redo", 0o700, 1234), ("fork", 0o770, 0), ("apply", 0o700, 1234)],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_log_that_others_can_have_written_does_not_say_what_is_written_where(
    command: str, mode: int, owner: int, invoke: Invoke, tmp_path: Path
) -> None:
    """Somebody plants a conversation in a directory of a team: it names a home, and what an agent removed there."""
    home, planted = tmp_path / "of a colleague", tmp_path / "c" / "c"
    home.mkdir()
    (home / ".profile").write_text("echo theirs\n")
    snapshots = SnapshotStore(planted / "workspace")
    removal = events.tool_call(
        tool_call_id="1", name="execute_bash", arguments='{"command": "rm .profile"}', response_id="r", call_index=0,
        total_calls=1,
    )  # fmt: skip
    planted.mkdir(parents=True)
    with EventLog(planted, conversation_id="c") as log:
        log.append(events.user_message(content="tidy up"))
        for _ in range(2):
            place = {"path": str(home), "snapshot": snapshots.take(home)}
            log.append(events.checkpoint(id=None, label="", workspace=place, size_bytes=0, image=None))
            (home / ".profile").unlink(missing_ok=True)
            log.append(removal)
    planted.chmod(mode)
    os.chown(planted, owner, owner)

    ended = invoke(command, "c", *(["--yes"] if command != "fork" else []), "--dir", str(tmp_path / "c"))

    assert ended.code == 2
    assert str(planted) in ended.err
    assert "who could change what ohsandbox does" in ended.err
    assert [*home.iterdir()] == []


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.mark.slow
def test_what_changed_in_a_container_is_shown_and_brought_along(invoke: Invoke, tmp_path: Path, target: Path) -> None:
    middle = _work(tmp_path / "c")
    where = ("--dir", str(tmp_path / "c"))
    patch = invoke("diff", "c", *where)
    assert patch.code == 0
    assert "+three" in patch.out
    subprocess.run(["git", "apply", "-"], input=patch.out.encode(), cwd=target, check=True, capture_output=True)
    assert sorted(path.name for path in target.iterdir()) == [".gitattributes", "a b", "lines"]
    names = invoke("diff", "c", str(middle), "--stat", *where)
    assert names.out.splitlines() == [
        "changed a b        1 +",
        "gone    bin    binary, 2 B before",
        "changed lines      2 +-",
        "3 files changed, 2 lines added, 1 removed",
    ]
    assert "-three" not in invoke("diff", "c", "0", str(middle), *where).out

    (target / "lines").write_text("mine\n")
    refused = invoke("apply", "c", "--to", str(target), "--yes", *where)
    assert refused.code == 1
    assert "lines: the agent made it, and another file is there" in refused.err
    assert (target / "lines").read_text() == "mine\n"
    (target / "lines").unlink()
    asked = invoke("apply", "c", "--to", str(target), *where)
    assert asked.code == 2
    assert "a person confirms at a terminal. Use --yes." in asked.err
    assert not (target / "lines").exists()
    done = invoke("apply", "c", "--to", str(target), "--yes", *where)
    assert done.code == 0
    assert (target / "lines").read_text() == "1\n2\nthree\n"
    assert "has it all" in invoke("apply", "c", "--to", str(target), "--yes", *where).out


def test_undo_puts_a_bound_workspace_back_in_a_new_conversation(
    invoke: Invoke, tmp_path: Path, workspace: Path
) -> None:
    (workspace / ".git").mkdir()
    (workspace / "own").write_text("mine")
    _work(tmp_path / "c", workspace=workspace)
    where = ("--dir", str(tmp_path / "c"))
    refused = invoke("undo", "c", *where)
    assert refused.code == 2
    assert "a person confirms at a terminal" in refused.err
    assert (workspace / "lines").read_text() == "1\n2\nthree\n"
    done = invoke("undo", "c", "--yes", *where)
    assert done.code == 0, done.err
    assert "lines is put back" in done.out
    assert "without its last turn; that one stays" in done.out
    assert (workspace / "lines").read_text() == "1\n2\n3\n"
    assert (workspace / "bin").read_bytes() == b"\0\1"
    (new,) = [path for path in (tmp_path / "c").glob("[!.]*") if path.name != "c"]
    assert [data["content"] for data in data_of(read_events(new), "user_message")] == ["first"]
    assert len(data_of(read_events(tmp_path / "c" / "c"), "user_message")) == 2
    assert invoke("undo", "1", "--yes", *where).code == 0
    assert sorted(path.name for path in workspace.iterdir()) == [".git", "own"]
    back = invoke("apply", "c", "--to", str(workspace), "--yes", *where)
    assert back.code == 2
    assert "The agent worked in" in back.err


def test_undo_diff_and_fork_cover_each_workspace_that_can_be_written(
    invoke: Invoke, tmp_path: Path, workspace: Path
) -> None:
    for name in ("api", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "api" / "own").write_text("mine\n")
    did = "echo theirs > /workspaces/api/own && echo new > form && ! touch /workspaces/docs/x"
    model = FakeModel(answer("", call("execute_bash", {"command": did})), answer("ok"))
    runtime = DockerRuntime("ohsandbox-base:debian", workspace=[workspace, tmp_path / "api", f"{tmp_path / 'docs'}:ro"])
    with Conversation(
        Agent(model, ["execute_bash"]), runtime, tmp_path / "c", conversation_id="c", checkpoints=True
    ) as talk:
        result = talk.run("go")
        assert set(result.changed_files) == {"/workspace/form", "/workspaces/api/own"}
        copy = talk.fork(workspace=tmp_path / "forked").runtime
        assert copy is not None
        with copy:
            said = copy.execute("cat form /workspaces/api/own && echo copied > /workspaces/api/own").output
        assert said.split() == ["new", "theirs"]
        assert (tmp_path / "forked" / "api" / "own").read_text() == "copied\n"
        assert (tmp_path / "api" / "own").read_text() == "theirs\n"
    where = ("--dir", str(tmp_path / "c"))
    names = invoke("diff", "c", "--stat", *where).out
    assert re.findall(r"^(\w+) +(\S+)", names, re.MULTILINE)[:2] == [("changed", "api/own"), ("new", "workspace/form")]
    refused = invoke("fork", "c", "--workspace", str(tmp_path / "api"), *where)
    assert (refused.code, "is not empty" in refused.err) == (2, True)
    assert invoke("fork", "c", "--workspace", str(tmp_path / "again"), *where).code == 0
    assert (tmp_path / "again" / "api" / "own").read_text() == "theirs\n"
    assert invoke("undo", "c", "--yes", *where).code == 0
    assert (tmp_path / "api" / "own").read_text() == "mine\n"
    assert [*workspace.iterdir()] == []


@pytest.mark.slow
def test_at_a_terminal_a_diff_has_colours_and_nothing_of_the_agents_acts_on_it(
    at_terminal: Callable[..., Recorded], tmp_path: Path
) -> None:
    _work(tmp_path / "c")
    shown = at_terminal("diff", "c", "--dir", str(tmp_path / "c"))
    assert shown.code == 0
    assert b"\x1b[32m+three" in shown.raw
    assert b"\x1b]0;" not in shown.raw


def test_apply_asks_at_a_terminal_after_showing(
    at_terminal: Callable[..., Recorded], tmp_path: Path, target: Path
) -> None:
    _work(tmp_path / "c")
    where = ("apply", "c", "--to", str(target), "--dir", str(tmp_path / "c"))
    said_no = at_terminal(*where, answers=[(b"Change these 3 files", b"n\n")])
    assert said_no.code == 1
    assert b"+three" in said_no.raw
    assert list(target.iterdir()) == []
    assert at_terminal(*where, answers=[(b"Change these 3 files", b"y\n")]).code == 0
    assert (target / "lines").exists()


def test_nothing_of_what_apply_brings_is_hidden_from_who_is_asked(
    at_terminal: Callable[..., Recorded], invoke: Invoke, tmp_path: Path, target: Path
) -> None:
    _work(tmp_path / "c", second=CONCEALING)
    where = ("--dir", str(tmp_path / "c"))
    asked = at_terminal("apply", "c", "--to", str(target), *where, answers=[(b"Change these", b"n\n")])
    assert rb'+import os; os.system("one") #\u{d}x = ""' in asked.raw
    assert rb'+\u{1b}]0;os.system("two")\u{7}y = ""' in asked.raw
    assert "+\\u{202e}os.system" in asked.raw.decode()
    listed = invoke("diff", "c", "--stat", *where).out.splitlines()
    assert [line for line in listed if line.startswith(r"new     a\u{a}gone    lines")]
    assert not [line for line in listed if line.startswith("gone")]


NOISE = r"""
mkdir -p node_modules/a __pycache__ src; touch node_modules/a/x node_modules/a/y __pycache__/m.pyc; echo new > src/new
mkdir src/__pycache__; touch src/__pycache__/n.pyc src/old.o
printf 'node_modules\nold*\n' > .gitignore; printf '\211PNG\0' > logo.png; echo changed > old; echo x > old-new
"""


def test_a_diff_leaves_out_what_git_ignores_and_binaries_and_names_them(
    invoke: Invoke, tmp_path: Path, workspace: Path
) -> None:
    (workspace / "old").write_text("was there\n")
    _work(tmp_path / "c", workspace=workspace, second=f"rm -f lines bin 'a b' .gitattributes; {NOISE}")
    where = ("--dir", str(tmp_path / "c"))
    patch = invoke("diff", "c", *where)
    named = re.findall(r"^diff --git a/(\S+)", patch.out, re.MULTILINE)
    assert named == [".gitignore", "old", "src/new"], "what was there before is shown, whatever the agent ignores now"
    assert "left out: node_modules/: 2 new files ignored by git" in patch.err
    assert "left out: __pycache__/: 1 new file in Python's caches" in patch.err
    assert "left out: old-new: new, ignored by git" in patch.err
    assert "left out: src/: 1 new file in Python's caches, 1 new file ignored by git" in patch.err
    assert "binary: logo.png: new, 5 B" in patch.err
    assert "diff --all" in patch.err
    whole = invoke("diff", "c", "--all", *where)
    assert len(re.findall(r"^diff --git", whole.out, re.MULTILINE)) == 10
    assert "GIT binary patch" in whole.out
    assert "left out" not in whole.err


def test_a_conversation_that_is_open_is_not_undone(invoke: Invoke, tmp_path: Path) -> None:
    _work(tmp_path / "c")
    with DirectoryLock(tmp_path / "c" / "c", name="c"):
        ended = invoke("undo", "c", "--dir", str(tmp_path / "c"))
    assert ended.code == 3
    assert f"open in process {os.getpid()}" in ended.err


def test_fork_says_what_it_needs(invoke: Invoke, tmp_path: Path, workspace: Path) -> None:
    middle = _work(tmp_path / "c", workspace=workspace)
    where = ("--dir", str(tmp_path / "c"))
    assert "Name an empty directory for the fork" in invoke("fork", "c", "--at", str(middle), *where).err
    assert "is not empty" in invoke("fork", "c", "--workspace", str(workspace), *where).err
    done = invoke("fork", "c", "--at", str(middle), "--workspace", str(tmp_path / "new dir"), *where)
    assert done.code == 0, done.err
    assert (tmp_path / "new dir" / "lines").read_text() == "1\n2\n3\n"
    assert (workspace / "lines").read_text() == "1\n2\nthree\n"


def test_fork_names_what_the_snapshot_does_not_hold(
    invoke: Invoke, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_FILE_BYTES", 4)
    middle = _work(tmp_path / "c", workspace=workspace)
    new = ("--workspace", str(tmp_path / "new"))
    done = invoke("fork", "c", "--at", str(middle), *new, "--dir", str(tmp_path / "c"))
    assert done.code == 0, done.err
    assert f"ohsandbox: not kept, so not in {tmp_path / 'new'}: lines: 6 bytes, over the limit of 4" in done.err
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a b", "bin"]


@pytest.mark.slow
def test_undo_and_redo_at_a_terminal_name_what_they_leave_alone_and_ask(
    at_terminal: Callable[..., Recorded], tmp_path: Path, workspace: Path
) -> None:
    _work(tmp_path / "c", workspace=workspace)
    (workspace / "mine").write_text("mine")
    (workspace / "a b").write_text("mine, too")
    where = ("--dir", str(tmp_path / "c"))
    said_no = at_terminal("undo", *where, answers=[(b"Change these 2 files", b"n\n")])
    assert said_no.code == 1
    assert b"Left as it is: a b: it was changed since as well" in said_no.raw
    assert (workspace / "lines").read_text() == "1\n2\nthree\n"
    said_yes = at_terminal("undo", *where, answers=[(b"`ohsandbox redo` brings it back.", b"y\n")])
    assert said_yes.code == 1, "something was left"
    assert (workspace / "lines").read_text() == "1\n2\n3\n"
    assert (workspace / "mine").read_text() == "mine"
    assert (workspace / "a b").read_text() == "mine, too"
    back = at_terminal("redo", *where, answers=[(b"Change these 2 files?", b"y\n")])
    assert back.code == 0, back.raw
    assert b"and conversation c with it" in back.raw
    assert (workspace / "lines").read_text() == "1\n2\nthree\n"
    assert not (workspace / "bin").exists()
    again = at_terminal("redo", *where)
    assert again.code == 2
    assert b"'c' was not made by `ohsandbox undo`" in again.raw


def test_a_repository_that_the_agent_removed_comes_back(invoke: Invoke, tmp_path: Path, workspace: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "mine"]):
        subprocess.run([*git, *arguments], cwd=workspace, check=True)
    model = FakeModel(answer("", call("execute_bash", {"command": "rm -rf .git 2>/dev/null; ls -A .git"})), answer())
    runtime = DockerRuntime("ohsandbox-base:debian", workspace=workspace)
    with Conversation(Agent(model, ["execute_bash"]), runtime, tmp_path / "c", checkpoints=True) as conversation:
        conversation.run("go")
    assert subprocess.run([*git, "log"], cwd=workspace, capture_output=True, check=False).returncode != 0
    done = invoke("undo", "--yes", "--dir", str(tmp_path / "c"))
    assert done.code == 0, done.err
    assert ".git is put back" in done.out
    log = subprocess.run([*git, "log", "--format=%s"], cwd=workspace, capture_output=True, check=True)
    assert log.stdout == b"mine\n"


@pytest.mark.parametrize("command", ["undo", "redo", "fork", "diff", "apply"])
def test_a_conversation_that_is_not_there_is_one_line(invoke: Invoke, tmp_path: Path, command: str) -> None:
    ended = invoke(command, "nope", "--dir", str(tmp_path))
    assert ended.code == 2
    assert ended.err.startswith("ohsandbox: No conversation 'nope'")
