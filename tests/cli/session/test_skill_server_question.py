"""The question about MCP servers of a repository's skills, at a pseudo-terminal, and a run without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.persistence import read_events
from tests.fakes import data_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ended, Invoke, Recorded, WriteScript

    AtTerminal = Callable[..., Recorded]

SERVER = Path(__file__).parents[2] / "mcp" / "server.py"
ASKED = b"[y/N] "
SKILL = """---
name: repo
mcp_tools:
  stdio_servers:
    - name: odd
      command: sh
      args: ["-c", "touch started; exec python3 -S -u odd.py; exit 1; echo '{long}'"]
      include: [echo]
      env: {{MODE: "quiet  mode"}}
---
"""
CALL = {"content": "", "tool_calls": [{"name": "odd__echo", "arguments": {"text": "from the server"}}]}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    (directory / ".openhands" / "microagents").mkdir(parents=True)
    shutil.copy(SERVER, directory / "odd.py")
    bring(directory)
    return directory


def bring(workspace: Path, *, long: str = "") -> None:
    (workspace / ".openhands" / "microagents" / "repo.md").write_text(SKILL.format(long=long))


@pytest.fixture
def here(write_script: WriteScript, workspace: Path) -> tuple[str, ...]:
    model = write_script(CALL, *[("done", None)] * 4)
    return ("--model", model, "--runtime", "cli", "--confirm", "never", "--workspace", str(workspace))


def results(home: Path) -> list[dict[str, Any]]:
    return [data["result"] for path in _conversations(home) for data in data_of(read_events(path), "tool_result")]


def _conversations(home: Path) -> list[Path]:
    return sorted((home / ".ohsandbox" / "conversations").glob("[!.]*"))


def approvals(invoke: Invoke, *arguments: str) -> Ended:
    return invoke("approvals", "last", *arguments)


def test_question_shows_each_server_whole_and_where_it_would_run(
    at_terminal: AtTerminal, here: tuple[str, ...], workspace: Path
) -> None:
    ended = at_terminal("run", "go", *here, answers=[(ASKED, b"\n")])
    shown = ended.raw.replace(b"\r\n", b"\n").decode()
    rows = shown[shown.index("The skills of this repository") : shown.index("Start this MCP server?")].split("\n")
    assert rows[0] == "The skills of this repository bring an MCP server."
    assert rows[3] == "[1] odd"
    joined = "".join(row.removeprefix("  = ").removeprefix("  | ") for row in rows)
    for fact in (
        f"repository: {workspace}",
        "command: sh -c 'touch started; exec python3 -S -u odd.py; exit 1; echo '\"'\"''\"'\"''",
        "env MODE: quiet  mode",
        'include: ["echo"]',
        "defined in: .openhands/microagents/repo.md, line 5",
        "runs: ON THIS MACHINE, in no container, with your rights",
    ):
        assert fact in joined
    assert not (workspace / "started").exists()


def test_yes_starts_them_and_stands_among_the_approvals(
    at_terminal: AtTerminal, invoke: Invoke, here: tuple[str, ...], home: Path
) -> None:
    ended = at_terminal("run", "go", *here, answers=[(ASKED, b"y\n")])
    assert ended.code == 0
    assert [one["output"] for one in results(home)] == ["from the server"]
    assert "MCP servers of the skills in" in approvals(invoke).out
    [stored] = json.loads(approvals(invoke, "--json").out)
    assert stored["scope"]["names"] == ["odd"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "typed",
    [b"\n", b"n\n", b"yes please\n", b"\x04", b"\x1b[200~y\x1b[201~\n"],
    ids=["enter", "no", "words", "end of input", "pasted"],
)
def test_anything_but_a_typed_yes_starts_nothing(
    at_terminal: AtTerminal, invoke: Invoke, here: tuple[str, ...], workspace: Path, typed: bytes
) -> None:
    ended = at_terminal("run", "go", *here, answers=[(ASKED, typed)])
    assert ended.code == 0
    assert b"are not started" in ended.raw
    assert not (workspace / "started").exists()
    assert "No approval" in approvals(invoke).out


def test_interrupt_at_the_question_starts_nothing(
    at_terminal: AtTerminal, here: tuple[str, ...], workspace: Path
) -> None:
    assert at_terminal("run", "go", *here, answers=[(ASKED, b"\x03")]).code == 130
    assert not (workspace / "started").exists()


@pytest.mark.slow
def test_resumed_run_asks_only_where_the_definition_has_changed_or_the_approval_is_gone(
    at_terminal: AtTerminal, invoke: Invoke, here: tuple[str, ...], workspace: Path
) -> None:
    assert at_terminal("run", "go", *here, answers=[(ASKED, b"y\n")]).code == 0
    again = ("run", "more", "--resume", "last", *here)
    assert ASKED not in at_terminal(*again).raw
    assert approvals(invoke, "--revoke", "1").code == 0
    assert at_terminal(*again, answers=[(ASKED, b"y\n")]).code == 0
    bring(workspace, long="changed")
    assert ASKED in at_terminal(*again, answers=[(ASKED, b"\n")]).raw


@pytest.mark.slow
def test_a_long_command_line_stays_behind_the_gutter(
    at_terminal: AtTerminal, here: tuple[str, ...], workspace: Path
) -> None:
    bring(workspace, long=" " * 80 + "Start this MCP server? [y/N] y" + "x" * 300)
    ended = at_terminal("run", "go", *here, answers=[(b"\x1b[?2004hStart", b"\n")])
    shown = ended.raw.replace(b"\r\n", b"\n").decode()
    rows = shown[shown.index("  = command") : shown.index("\n  = env")].split("\n")
    assert all(row.startswith(("  = ", "  | ")) for row in rows)
    assert r"\u{20*80}" in "".join(rows)
    assert not (workspace / "started").exists()


@pytest.mark.parametrize("plain", [[], ["--no-tui"]], ids=["pipe", "plain"])
def test_without_a_terminal_nothing_starts_and_one_line_names_the_flag(
    invoke: Invoke, here: tuple[str, ...], workspace: Path, plain: list[str]
) -> None:
    ended = invoke("run", "go", *plain, *here)
    assert ended.code == 0
    assert f"{ended.out}{ended.err}".count("--skill-servers allow") == 1
    assert not (workspace / "started").exists()


def test_plain_run_at_a_terminal_does_not_ask(at_terminal: AtTerminal, here: tuple[str, ...], workspace: Path) -> None:
    ended = at_terminal("run", "go", "--no-tui", *here)
    assert ASKED not in ended.raw
    assert b"--skill-servers allow" in ended.raw
    assert not (workspace / "started").exists()


@pytest.mark.parametrize("how", ["flag", "variable", "settings"])
def test_flag_variable_and_setting_allow_them(
    invoke: Invoke, here: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    given = ["--skill-servers", "allow"] if how == "flag" else []
    if how == "variable":
        monkeypatch.setenv("OHSANDBOX_SKILL_SERVERS", "allow")
    if how == "settings":
        (home / ".ohsandbox").mkdir(mode=0o700)
        (home / ".ohsandbox" / "settings.json").write_text('{"skill_servers": "allow"}')
    assert invoke("run", "go", "--no-tui", *given, *here).code == 0
    assert [one["output"] for one in results(home)] == ["from the server"]


def test_never_says_nothing_of_them(at_terminal: AtTerminal, here: tuple[str, ...], workspace: Path) -> None:
    ended = at_terminal("run", "go", "--skill-servers", "never", *here)
    assert ASKED not in ended.raw
    assert b"started" not in ended.raw
    assert not (workspace / "started").exists()


@pytest.mark.slow
@pytest.mark.docker
def test_in_a_container_a_yes_starts_a_real_server_inside_the_sandbox(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path, image: str, home: Path
) -> None:
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'odd[.]py'; ls /sys/class/net"
    model = write_script(CALL, ("", look), ("done", None))
    options = ("--model", model, "--image", image, "--workspace", str(workspace))
    ended = at_terminal("run", "go", *options, answers=[(ASKED, b"y\n")])
    assert ended.code == 0, ended.raw[-2000:]
    assert b"inside the sandbox; network an allowlist: packages" in ended.raw
    spoken, seen = results(home)
    assert spoken["output"] == "from the server"
    count, *interfaces = seen["output"].split()
    assert int(count) >= 1
    assert interfaces[0] == "lo"
    assert (workspace / "started").exists()


@pytest.mark.docker
def test_in_a_container_nothing_runs_without_a_yes(
    at_terminal: AtTerminal, write_script: WriteScript, workspace: Path, image: str
) -> None:
    options = ("--model", write_script(("done", None)), "--image", image, "--workspace", str(workspace))
    ended = at_terminal("run", "go", *options, answers=[(ASKED, b"n\n")])
    assert ended.code == 0
    assert not (workspace / "started").exists()
