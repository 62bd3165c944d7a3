"""How commands are declared, shown in `--help`, and how they end where the system refuses something."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
from typer import Argument, Option

from ohsandbox.cli.entrypoint import line_of_error
from ohsandbox.cli.options.typer_options import command, new_app
from ohsandbox.cli.rendering.tables import print_table
from tests.cli.conftest import COMMAND

if TYPE_CHECKING:
    from tests.cli.conftest import Invoke, WriteScript


@dataclass(frozen=True, kw_only=True)
class Given:
    word: Annotated[str | None, Argument(metavar="WORD")] = None
    often: Annotated[list[str] | None, Option("--one", rich_help_panel="Group")] = None
    other: Annotated[int, Option(help="A number.")] = 3
    own: bool = True


def _run(hint: object, *arguments: str) -> Given:
    app = new_app("test")
    seen: list[Given] = []

    def go(given: object) -> int:
        assert isinstance(given, Given)
        seen.append(given)
        return 0

    go.__annotations__["given"] = hint
    command(app)(go)
    app([*arguments], standalone_mode=False)
    return seen[0]


def test_the_fields_of_a_dataclass_are_the_options() -> None:
    assert _run(Given) == Given()
    assert _run(Given, "w", "--one", "a", "--one", "b", "--other", "4") == Given(word="w", often=["a", "b"], other=4)


def test_a_command_may_have_only_some_of_them() -> None:
    with pytest.raises(Exception, match="No such option: --one"):
        _run(Annotated[Given, {"other"}], "--one", "a")


@pytest.mark.parametrize("columns", ["80", "40"])
def test_help_has_groups_and_fits(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    helped = invoke("run", "--help").out
    titles = [line for line in helped.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert (titles[0], titles[-1]) == ("Arguments:", "Options:")
    assert {"Model:", "Sandbox:", "Run limits:"} <= set(titles)
    assert max(map(len, helped.splitlines())) <= int(columns)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--max-iterations", "0"], "Invalid value '0' for '--max-iterations'"),
        (["conversations", "-n", "-1"], "Invalid value '-1' for '--limit' / '-n': expected 0 or more. Try"),
        (["eval", "x", "-n", "0"], "Invalid value '0' for '--concurrent' / '-n': expected 1 or more. Try"),
        (["eval", "x", "-n", "999"], "Invalid value '999' for '--concurrent' / '-n': expected 256 or less. Try"),
        (["run", "--max-tokens", "x"], "Invalid value 'x' for '--max-tokens': expected a whole number. Try"),
        (["run", "--network", "wifi"], "Invalid value 'wifi' for '--network': 'wifi' is not one of"),
        (["run", "--max-time-s", "nan"], "expected a number above 0 and at most 1,000,000,000, got 'nan'"),
        (["run", "--max-cost-usd", "-1"], "expected a number above 0 and at most 1,000,000,000, got '-1'"),
        (["exec", "--timeout", "1e300", "true"], "at most 1,000,000,000, got '1e300'"),
        (["run", "--settings", ""], "Invalid value for '--settings': expected a path, got an empty text"),
        (["run", ""], "TASK is empty"),
        (
            ["run", "x", "--model", "openai/x", "--base-url", "here", "--runtime", "cli"],
            "Invalid base URL 'here': expected an address",
        ),
        (["run", "x", "--model", "m" * 1001, "--runtime", "cli"], "key 'model' is wrong"),
        (["run", "x", "--model", "openai/x", "--api-key", " ", "--runtime", "cli"], "No API key"),
        (["tools", ""], "name is empty"),
        (["Run"], "Did you mean 'run'? Try"),
        (["exec", "--runtime", "cli", "--user", "u", "true"], "--user 'u' needs a container"),
        (["exec", "--user", "", "true"], "--user is empty"),
        (["conversations", "delete", "--older-than", "999999w"], "at most a hundred years"),
        (["mcp", "serve", "--http", "0", "--idle-timeout", "0.5"], "expected 1 second or more"),
        (["mcp", "list", "--mcp-config", "/none"], "name another with --mcp-config"),
        (["run", "x", "--model", "scripted:demo", "--mcp-config", "/"], "name another with --mcp-config"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_wrong_input_is_one_line_with_value_and_remedy(invoke: Invoke, arguments: list[str], told: str) -> None:
    ended = invoke(*arguments)
    assert ended.code == 2
    assert told in ended.err.splitlines()[-1]
    assert "fault of ohsandbox" not in ended.err


def test_what_the_system_refuses_is_no_fault_of_ours() -> None:
    assert line_of_error(PermissionError(errno.EACCES, "Permission denied", "/x")) == (
        "Permission denied: '/x'. Make it writable for you, or set HOME to a directory that is."
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "x", "--port", "0"], "--port needs --view"),
        (["run", "x", "--port", "8080", "--json"], "--port needs --view"),
        (["view", "--port", "0", "--file"], "--port and --file exclude each other"),
        (["view", "--port", "8080", "-o", "page.html"], "--port and --output exclude each other"),
        (["mcp", "serve", "--max-sessions", "8"], "--max-sessions needs --http"),
        (["mcp", "serve", "--idle-timeout", "60"], "--idle-timeout needs --http"),
        (["mcp", "serve", "--token", "env:HOME"], "--token needs --http"),
        (["eval", "validate", "x", "--static", "--json"], "so --json has no effect"),
        (["eval", "validate", "x", "--static", "-n", "2"], "so --concurrent has no effect"),
        (["eval", "validate", "x", "--static", "--agent-allow", "a.example"], "so --agent-allow has no effect"),
        (["exec", "--attach", "c", "--workspace", "/usr", "true"], "--attach and --workspace exclude each other"),
        (
            ["exec", "--attach", "c", "--no-setup-cache", "true"],
            "--attach and --no-setup-cache exclude each",
        ),
        (["run", "x", "--no-project", "--no-setup-cache"], "which --no-project leaves out. Leave one out."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_without_effect_is_refused(invoke: Invoke, arguments: list[str], told: str) -> None:
    ended = invoke(*arguments)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert told in line


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["tools", "doctor", "conversations --help"])
def test_a_terminal_without_unicode_gets_what_it_can_show(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = subprocess.run([*COMMAND, *arguments.split()], capture_output=True, check=False)
    assert b"codec" not in ended.stderr
    assert ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["tools", "--version", "exec --runtime cli -- true", "conversations"])
def test_closed_streams_are_nowhere(closed: str, arguments: str) -> None:
    line = f'"$1" -m ohsandbox {arguments} {closed}'
    assert subprocess.run(["sh", "-c", line, "sh", sys.executable], capture_output=True, check=False).returncode == 0


def test_a_full_disk_behind_stdout_is_told() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([*COMMAND, "tools"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr.count(b"\n")) == (1, 1)
    assert b"Make room" in ended.stderr


def test_a_conversation_whose_directory_is_gone_says_so(
    invoke: Invoke, write_script: WriteScript, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    model = write_script(("hello", None))
    assert invoke("run", "x", "--model", model, "--runtime", "cli", "--no-tui", "--workspace", str(place)).code == 0
    place.rmdir()
    ended = invoke("run", "x", "--autoresume", "--model", model, "--no-tui")
    assert ended.code == 2
    assert "which is gone" in ended.err


@pytest.mark.parametrize(("columns", "lines"), [(80, 2), (30, 3)])
def test_a_table_that_does_not_fit_is_a_few_lines_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, lines: int
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(("NAME", "STEPS", "EMPTY", "TITLE"), [("an-identifier-that-is-long", "7", "", "Count the files.")])
    shown = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert "an-identifier-that-is-long" in shown
    assert "EMPTY" not in shown
    assert ("7 steps · Count the files." in shown) == (columns == 30)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns
    assert len(shown.splitlines()) <= lines
