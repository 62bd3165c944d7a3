"""Slash commands: through the lines that a talk reads, with a scripted model."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ohsandbox.cli.session.slash_commands import COMMANDS, completions, find_command, is_command
from ohsandbox.errors import UsageError
from ohsandbox.persistence import read_events
from tests.cli.conftest import Ended, Invoke, Recorded, WriteScript
from tests.fakes import data_of

ON_HOST = ("--runtime", "cli", "--no-tui")
PROMPT = b"\x1b[?2004h"
Talk = Callable[..., Ended]


@pytest.fixture
def talk(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Run with these lines as what the person says."""

    def run(*lines: str, model: str, how: tuple[str, ...] = ON_HOST) -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return invoke("run", "--model", model, *how)

    return run


def _conversations(home: Path) -> list[Path]:
    """Oldest first."""
    return sorted((home / ".ohsandbox" / "conversations").glob("[!.]*"), key=lambda path: path.stat().st_ctime_ns)


def _said(directory: Path) -> list[str]:
    return [data["content"] for data in data_of(read_events(directory), "user_message")]


def _edit(text: str, command: str) -> tuple[tuple[str, str], tuple[str, None]]:
    return (text, command), (f"done {text}", None)


# --- which line is one ------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["/help", "/bogus", "/undo 2", "/?", "/HELP"])
def test_a_word_behind_a_slash_is_a_command(line: str) -> None:
    assert is_command(line)


@pytest.mark.parametrize("line", ["", "help", " /help", "/etc/passwd holds what?", "//", "/", "/*.py", "see /help"])
def test_a_path_or_a_line_with_a_blank_before_it_is_a_message(line: str) -> None:
    assert not is_command(line)


@pytest.mark.parametrize(("word", "meant"), [("/stauts", "/status"), ("/re", "/redo or /resume"), ("/exi", "/exit")])
def test_an_unknown_command_is_an_error_with_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean {meant}"):
        find_command(word)


def test_an_unknown_command_is_no_paid_turn(talk: Talk, write_script: WriteScript, home: Path) -> None:
    ended = talk("/bogus now", model=write_script(("never", None)))
    assert ended.code == 0
    assert "Unknown command '/bogus'" in ended.err + ended.out
    (directory,) = _conversations(home)
    assert read_events(directory) == []


def test_each_command_has_a_line_of_help_and_names_are_unique(talk: Talk, write_script: WriteScript) -> None:
    ended = talk("/help", model=write_script(("x", None)))
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))
    for command in COMMANDS:
        assert re.search(rf"{re.escape(command.name)} .*{re.escape(command.help)}", ended.out + ended.err)


def test_why_says_what_the_last_call_that_failed_said(talk: Talk, write_script: WriteScript) -> None:
    failing = "seq 9; echo no such thing >&2; (exit 3)"
    model = write_script(("", failing), ("", "true"), ("It failed.", None))
    ended = talk("/why", "do it", "/why", model=model)
    told = (ended.out + ended.err).partition("Nothing was refused, and nothing failed")[2].partition("Answered")[2]
    rows = [line.partition(" info     ")[2] for line in told.splitlines()]
    assert rows[rows.index(failing) :][:7] == [failing, "exit 3", "  6", "  7", "  8", "  9", "  no such thing"]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(
    ("network", "told"), [("none", "has no network"), ("allowlist", "reaches the hosts on its list alone, by a proxy")]
)
def test_why_tells_of_a_network_that_is_not_there(
    talk: Talk, write_script: WriteScript, image: str, network: str, told: str
) -> None:
    reach = "python3 -c 'import socket; socket.create_connection((\"example.com\", 80))'"
    model = write_script(("", reach), ("It failed.", None))
    ended = talk("do it", "/why", model=model, how=("--image", image, "--no-tui", "--network", network))
    assert f"The sandbox {told}. /net says what would change that." in ended.out + ended.err


def test_the_documentation_has_each_command() -> None:
    page = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text(encoding="utf-8")
    rows = [line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `/")]
    told = {name for row in rows for name in re.findall(r"`(/\w+)", row)}
    assert {command.name for command in COMMANDS} <= told


def test_too_many_words_are_an_error_with_the_usage(talk: Talk, write_script: WriteScript) -> None:
    ended = talk("/status of it", "/undo x", "/undo 1 2", "/net wide", model=write_script(("x", None)))
    said = ended.out + ended.err
    assert "Too many words: 'of it'. Usage: /status" in said
    assert "Invalid number of turns 'x'" in said
    assert "Usage: /undo [N]" in said
    assert "Invalid network 'wide'" in said


def test_tab_completes_names_and_nothing_that_needs_a_session_without_one() -> None:
    assert completions(None, "/re") == ["/redo", "/resume"]
    assert completions(None, "/net ") == []
    assert completions(None, "/bogus x") == []


# --- what they tell ---------------------------------------------------------------------------------


def test_status_and_cost_tell_tokens_by_turn(talk: Talk, write_script: WriteScript) -> None:
    model = write_script(*_edit("one", "true"), ("two", None))
    ended = talk("/cost", "first", "second", "/cost", "/status", model=model)
    said = ended.out + ended.err
    assert "Nothing was asked yet." in said
    assert re.search(r"1 +2 +0 +0 +0 .*first", said)
    assert re.search(r"2 +1 +0 +0 +0 .*second", said)
    assert "tokens       0 read, 0 written" in said
    assert "on THIS HOST without a container" in said
    assert re.search(r"conversation \S+, idle, 2 turns", said)


def test_secrets_are_told_by_name_only(talk: Talk, write_script: WriteScript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "canary-value-1")
    ended = talk("/secrets", model=write_script(("x", None)), how=(*ON_HOST, "--secret", "TOKEN_OF_MINE"))
    assert "masked in what the model, the log and you are shown: TOKEN_OF_MINE" in ended.out + ended.err
    assert "canary-value-1" not in ended.out + ended.err


def test_instructions_name_the_files(talk: Talk, write_script: WriteScript, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "AGENTS.md").write_text("Use tabs.\n")
    (tmp_path / "mine.md").write_text("Be brief.\n")
    how = (*ON_HOST, "--workspace", str(tmp_path / "w"), "--instructions", str(tmp_path / "mine.md"))
    ended = talk("/instructions", model=write_script(("x", None)), how=how)
    assert re.search(rf"{tmp_path}/w/AGENTS.md +9 characters, from the sandbox +Use tabs\.", ended.out + ended.err)
    assert f"{tmp_path}/mine.md" in ended.out + ended.err


def test_tools_are_listed_and_one_is_described(talk: Talk, write_script: WriteScript) -> None:
    ended = talk("/tools", "hi", "/tools", "/tools think", "/tools nope", "/mcp", model=write_script(("x", None)))
    said = ended.out + ended.err
    assert "They are made with the first message, of: execute_bash" in said
    assert re.search(r"info     finish +\w", said)
    assert '"thought"' in said
    assert "The agent has no tool 'nope'" in said
    assert "No MCP servers" in said


def test_leaving_without_a_word_leaves_a_conversation_that_is_never_the_last(
    talk: Talk, write_script: WriteScript, invoke: Invoke
) -> None:
    model = write_script(("one", None))
    ended = talk("/exit", model=model)
    assert ended.code == 0
    assert "To go on" not in ended.out + ended.err
    assert "to resume" in invoke("run", "--autoresume", "hi", "--model", model).err


def test_leaving_is_no_turn_and_the_cost_is_told_after_it(
    talk: Talk, write_script: WriteScript, invoke: Invoke
) -> None:
    talk("first", "/exit", model=write_script(("one", None)))
    ended = invoke("cost")
    assert re.search(r"^ +1 +1 +0 .*first$", ended.out, re.MULTILINE)
    assert "/exit" not in ended.out
    told = json.loads(invoke("cost", "last", "--json").out)
    assert [turn["title"] for turn in told["turns"]] == ["first"]
    assert told["total"]["requests"] == 1


# --- another model, a condensation, another conversation ----------------------------------------------


def test_another_model_goes_on_in_the_same_conversation_and_is_asked_when_it_is_resumed(
    talk: Talk, write_script: WriteScript, invoke: Invoke, home: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    turns = [{"content": "by the other"}, {"content": "by the other, again"}]
    other.write_text(json.dumps({"turns": [{"content": "skipped"}, *turns]}))
    ended = talk("first", f"/model scripted:{other}", "second", model=write_script(("by the one", None)))
    assert "answer   by the other" in ended.out, ended
    (directory,) = _conversations(home)
    assert _said(directory) == ["first", "second"]
    resumed = invoke("run", "third", "--resume", directory.name, "--no-tui")
    assert "answer   by the other, again" in resumed.out, resumed


def test_a_model_that_cannot_be_opened_leaves_the_one_of_before(talk: Talk, write_script: WriteScript) -> None:
    ended = talk("/model scripted:/nowhere", "/model openai/gpt-5", "hi", model=write_script(("still here", None)))
    said = ended.out + ended.err
    assert "/nowhere" in said
    assert "No API key for model 'openai/gpt-5'" in said
    assert "answer   still here" in said


def test_compact_sums_up_the_older_part_for_the_model(talk: Talk, write_script: WriteScript, home: Path) -> None:
    model = write_script(*[(f"answer {number}", None) for number in range(4)])
    ended = talk("/compact", "one", "/compact", "two", "three", "/compact", "four", model=model)
    said = ended.out + ended.err
    assert "This conversation has no messages to sum up" in said
    assert "too short to be condensed" in said
    assert said.count("Compacted") == 2
    (directory,) = _conversations(home)
    (condensed,) = data_of(read_events(directory), "condensation")
    assert (condensed["dropped"], condensed["reason"]) == (2, "by the user")
    assert _said(directory) == ["one", "two", "three", "four"]


def test_clear_begins_a_new_conversation_and_names_the_one_of_before(
    talk: Talk, write_script: WriteScript, home: Path, tmp_path: Path
) -> None:
    model = write_script(("first answer", None))
    ended = talk("remember me", "/clear", "who am I?", model=model, how=(*ON_HOST, "--workspace", str(tmp_path)))
    older, newer = _conversations(home)
    assert f"The one of before: /resume {older.name}" in ended.out + ended.err
    assert (_said(older), _said(newer)) == (["remember me"], ["who am I?"])


def test_resume_lists_this_directorys_conversations_first_and_leaves_empty_ones_out(  # noqa: PLR0917 - fixtures
    talk: Talk, write_script: WriteScript, invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_script(*[("an answer", None)] * 4)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert invoke("run", f"work {name}", "--model", model, *ON_HOST).code == 0
    monkeypatch.chdir(tmp_path / "here")
    (home / ".ohsandbox" / "conversations" / "20200101-000000-aaaaaaaa").mkdir(mode=0o700)
    ended = talk("/resume", model=model)
    rows = re.findall(r"info +\d{8}-\S+ .*(work \w+)", ended.out + ended.err)
    assert rows == ["work here", "work there"]
    shown = invoke("conversations", "show", "last", "--no-tui")
    assert "work here" in shown.out
    assert "goes on: work here" in invoke("run", "more", "--autoresume", "--no-tui").out


def test_resume_goes_on_with_another_and_back(
    talk: Talk, write_script: WriteScript, invoke: Invoke, home: Path
) -> None:
    model = write_script(("one", None), ("two", None), ("three", None))
    assert invoke("run", "older", "--model", model, *ON_HOST).code == 0
    (older,) = _conversations(home)
    ended = talk("newer", f"/resume {older.name[:20]}", "more", "/resume nosuch", "/resume last", model=model)
    said = ended.out + ended.err
    assert f"Conversation {older.name} goes on: older" in said
    assert _said(older) == ["older", "more"]
    assert "No conversation 'nosuch'" in said
    assert len(_conversations(home)) == 2


def test_where_the_other_conversation_cannot_be_opened_the_one_of_before_goes_on(
    talk: Talk, write_script: WriteScript, invoke: Invoke, home: Path
) -> None:
    model = write_script(("one", None), ("two", None), ("three", None))
    assert invoke("run", "older", "--model", model, *ON_HOST).code == 0
    (older,) = _conversations(home)
    log = older / "sdk_events.jsonl"
    first, *others = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first.replace(b"older", b"elder") + b"".join(others))
    ended = talk("newer", f"/resume {older.name}", "still here", model=model)
    assert ended.code == 0
    assert "damaged" in ended.out + ended.err
    (newer,) = [one for one in _conversations(home) if one != older]
    assert _said(newer) == ["newer", "still here"]


def test_a_limit_on_cost_refuses_a_model_without_a_price(
    talk: Talk, write_script: WriteScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1234")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"max_cost_usd": 1}))
    how = (*ON_HOST, "--settings", str(settings))
    ended = talk("/model openai/nobody-knows", "hi", model=write_script(("the one of before", None)), how=how)
    said = ended.out + ended.err
    assert "price" in said
    assert "answer   the one of before" in said
    assert "canary" not in said


def test_a_resumed_conversation_names_the_secrets_that_are_missing(
    invoke: Invoke, write_script: WriteScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "canary-value-1")
    model = write_script(("one", None), ("two", None), ("three", None))
    assert invoke("run", "hi", "--model", model, *ON_HOST, "--secret", "TOKEN_OF_MINE").code == 0
    ended = invoke("run", "more", "--autoresume", "--no-tui")
    assert re.search(r"had TOKEN_OF_MINE, and have not now.*--secret TOKEN_OF_MINE", ended.out + ended.err)
    given = invoke("run", "more", "--autoresume", "--no-tui", "--secret", "TOKEN_OF_MINE")
    assert "have not now" not in given.out + given.err


def test_what_needs_checkpoints_says_so_on_a_host(talk: Talk, write_script: WriteScript) -> None:
    words = ("/undo", "/redo", "/diff", "hi", "/undo", "/diff", "/fork", "/net open")
    ended = talk(*words, model=write_script(("x", None)))
    said = ended.out + ended.err
    assert said.count("This conversation has no messages to go back to") == 2
    assert said.count("Nothing has run in this conversation yet, so nothing was changed.") == 1
    assert "so this cannot be undone: no files were changed, or they are off" in said
    assert "has no checkpoints" in said
    assert ended.code == 0


# --- in a container ---------------------------------------------------------------------------------


def _in_container(image: str, *more: str) -> tuple[str, ...]:
    return ("--image", image, "--no-tui", *more)


@pytest.mark.slow
@pytest.mark.docker
def test_undo_and_redo_go_back_and_forth_in_a_container(
    talk: Talk, write_script: WriteScript, home: Path, image: str
) -> None:
    model = write_script(*_edit("one", "echo one >a"), *_edit("two", "echo two >>a"), *_edit("three", "cat a"))
    lines = ("first", "second", "/diff last", "/undo", "/diff", "/redo", "/diff", "third")
    ended = talk(*lines, model=model, how=_in_container(image))
    assert ended.code == 0
    diffs = re.split(r"diff --git", ended.out)
    assert ["+two" in part for part in diffs[1:]] == [True, False, True]
    assert "The last turn is taken back, in the container as well" in ended.out
    older, undone = sorted(_conversations(home))
    assert (_said(older), _said(undone)) == (["first", "second", "third"], ["first"])
    assert re.search(r"result +exit 0.*: one \| two", ended.out.split("third")[-1])


@pytest.mark.docker
def test_a_fork_on_the_command_line_is_resumed_where_its_files_are(
    invoke: Invoke, write_script: WriteScript, home: Path, tmp_path: Path, image: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    model = write_script(*_edit("one", "echo one >a"), *_edit("two", "cat a"), ("three", None))
    assert invoke("run", "go", "--model", model, *_in_container(image, "--workspace", str(work))).code == 0
    assert invoke("fork", "--workspace", str(tmp_path / "copy")).code == 0
    (forked,) = [
        one for one in _conversations(home) if json.loads((one / "sandbox.json").read_text())["workspace"] != str(work)
    ]
    ended = invoke("run", "again", "--resume", forked.name, "--no-tui")
    assert ended.code == 0, ended
    assert re.search(r"result +exit 0.*: one", ended.out)
    assert (tmp_path / "copy" / "a").read_text() == "one\n"


@pytest.mark.slow
@pytest.mark.docker
def test_clear_keeps_the_sandbox_and_a_fork_has_its_own(talk: Talk, write_script: WriteScript, image: str) -> None:
    model = write_script(*_edit("one", "echo kept >a; export COLOUR=green; cat a"))
    lines = ("first", "/clear", "second", "/fork", "/status", "/fork dir")
    ended = talk(*lines, model=model, how=_in_container(image))
    assert ended.code == 0
    names = re.findall(r"Container (\S+) of", ended.out)
    assert len(set(names)) == 2, "one for both conversations, and one for the fork"
    assert "the copy gets one of its own. Leave the directory out" in ended.out


@pytest.mark.docker
def test_the_network_of_a_running_sandbox_is_taken_away_and_never_opened_unasked(
    talk: Talk, write_script: WriteScript, image: str
) -> None:
    lines = ("/net open", "/net none", "/net", "hi", "/net allow a.example.org", "/net open")
    ended = talk(*lines, model=write_script(("x", None)), how=_in_container(image, "--network", "open"))
    assert "network none" in ended.out
    assert "The list has what you name alone" in ended.out
    assert "The network would be opened, which a person confirms at a terminal" in ended.out


@pytest.mark.docker
def test_a_blocked_host_is_a_line_and_is_allowed_at_once_also_for_who_resumes(
    talk: Talk, invoke: Invoke, write_script: WriteScript, image: str
) -> None:
    fetch = "printf 'GET http://a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n'"
    ask = f'timeout 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/3128; {fetch} >&3; cat <&3" | grep -c Blocked'
    model = write_script(*_edit("one", ask), ("two", None))
    lines = (
        "/net allow b.example.org",
        "go",
        "/net allow a.example.org",
        "/net disallow b.example.org",
        "/net",
        "more",
    )
    ended = talk(*lines, model=model, how=_in_container(image))
    said = ended.out + ended.err
    assert "Blocked: a.example.org (is not on the list of allowed hosts). Allow it: /net allow a.example.org" in said
    assert "network by list: packages, a.example.org" in said
    assert re.search(r"a\.example\.org +blocked +1 ", said)
    resumed = invoke("run", "--resume", "last", "again", "--no-tui", "--model", write_script(*_edit("one", ask)))
    assert "network: packages, a.example.org" in resumed.out + resumed.err


@pytest.mark.slow
@pytest.mark.docker
def test_at_a_terminal_undo_asks_and_puts_the_files_of_a_workspace_back(
    at_terminal: Callable[..., Recorded], write_script: WriteScript, tmp_path: Path, image: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine").write_text("mine")
    model = write_script(*_edit("one", "echo one >a; rm mine"))
    answers: list[tuple[bytes, Any]] = [
        (PROMPT, b"go\r"), (b"Answered", b""), (PROMPT, b"/undo\r"), (b"Change these 2 files?", b"y\r"),
        (b"is taken back", b""), (PROMPT, b"/redo\r"), (b"Change these 2 files?", b"n\r"),
        (b"Nothing was changed", b""), (PROMPT, b"/redo\r"), (b"Change these 2 files?", b"\x03"),
        (b"nothing more is done", b""), (PROMPT, b"/exit\r"),
    ]  # fmt: skip
    ended = at_terminal("run", "--model", model, "--image", image, "--workspace", str(work), answers=answers)
    assert ended.code == 0
    assert sorted(path.name for path in work.iterdir()) == ["mine"]
    assert b"mine comes back" in ended.raw
    assert ended.restored


def test_resume_takes_what_the_project_of_the_other_directory_says(
    talk: Talk, write_script: WriteScript, invoke: Invoke, home: Path, tmp_path: Path
) -> None:
    model = write_script(("first", None), ("work", "true"), ("more", "true"), ("done", None))
    there = tmp_path / "there"
    (there / ".git").mkdir(parents=True)
    (there / ".ohsandbox.toml").write_text("max_iterations = 1\n")
    assert invoke("run", "begin", "--model", model, "--runtime", "cli", "--workspace", str(there)).code == 0
    [log] = home.rglob("sdk_events.jsonl")
    ended = talk(f"/resume {log.parent.name}", "go on", model=model)
    assert "max_iterations" in ended.out + ended.err
    assert "done" not in ended.out
