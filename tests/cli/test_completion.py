"""Tab, in real shells and in what typer asks of us."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.completion import MAX_OFFERED, conversation_ids, sandbox_names
from tests.cli.conftest import COMMAND
from tests.lacking import lacking

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def kept(home: Path) -> Path:
    """A state directory with two conversations, a lease, and what does not belong there."""
    for number, name in enumerate(("20250101-older", "20250102-newer", "$(touch x)")):
        place = home / ".ohsandbox" / "conversations" / name
        place.mkdir(parents=True)
        title = f"{name} \\$(touch {home}/hit) `touch {home}/hit` \"'; touch {home}/hit; \x1b[31m"
        (place / "metadata.json").write_text(json.dumps({"title": title}))
        os.utime(place, (number, number))
    (home / ".ohsandbox").chmod(0o700)
    leases = home / ".ohsandbox" / "leases"
    leases.mkdir()
    for name in ("ohsandbox-12ab34cd", "$(touch x)"):
        (leases / f"{len(name)}.json").write_text(json.dumps({"container": name, "image": "debian"}))
    (leases / "torn").write_text("{")
    return home


def _asked(shell: str, line: str) -> list[str]:
    """What our end prints to the shell's function."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": line}
    also = {"_OHSANDBOX_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(COMMAND, capture_output=True, check=True, text=True, env=os.environ | words | also)
    assert ended.stderr == ""
    return ended.stdout.splitlines()


@pytest.mark.usefixtures("kept")
def test_conversations_are_offered_newest_first_and_hostile_names_never() -> None:
    assert [name for name, _ in conversation_ids("")] == ["last", "20250102-newer", "20250101-older"]
    assert [name for name, _ in conversation_ids("20250101")] == ["last", "20250101-older"]  # typer compares as well
    assert [*sandbox_names("oh")] == [("ohsandbox-12ab34cd", "debian")]


@pytest.mark.usefixtures("kept")
def test_a_title_keeps_nothing_that_a_shell_evaluates() -> None:
    assert not set("$`\\\"'()[]{}<>|&;\x1b") & set("".join(title for _, title in conversation_ids("")))


def test_no_state_directory_offers_last_alone(home: Path) -> None:
    assert [name for name, _ in conversation_ids("")] == ["last"]
    assert not (home / ".ohsandbox").exists()


def test_no_more_are_offered_than_fit_a_screen(home: Path) -> None:
    for number in range(MAX_OFFERED + 5):
        (home / ".ohsandbox" / "conversations" / f"c{number}").mkdir(parents=True)
    (home / ".ohsandbox").chmod(0o700)
    assert len(conversation_ids("")) == MAX_OFFERED + 1


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ohsandbox di", "diff"),
        ("ohsandbox diff 2025", "20250102-newer"),
        ("ohsandbox diff --st", "--stat"),
        ("ohsandbox conversations show ", "last"),
        ("ohsandbox run --resume ", "20250101-older"),
        ("ohsandbox exec --attach oh", "ohsandbox-12ab34cd"),
        ("ohsandbox run --network ", "open"),
    ],
)
def test_commands_flags_values_conversations_and_sandboxes_are_completed(line: str, offered: str) -> None:
    assert offered in _asked("bash", line)


@pytest.mark.parametrize("shell", SHELLS)
def test_show_prints_what_install_writes(invoke: Invoke, home: Path, shell: str) -> None:
    shown = invoke("completion", "show", shell)
    assert (shown.code, shown.err) == (0, "")
    assert "_OHSANDBOX_COMPLETE" in shown.out
    assert invoke("completion", "install", shell).code == 0
    assert any(shown.out.strip() in path.read_text() for path in home.rglob("*ohsandbox*") if path.is_file())


def test_without_a_shell_the_line_names_the_shells(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    ended = invoke("completion", "install")
    assert ended.code == 2
    assert "bash, zsh or fish" in ended.err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_in_a_real_shell(kept: Path, shell: str, tmp_path: Path) -> None:
    if not (found := shutil.which(shell)):
        lacking(f"no {shell} here: apt-get install {shell}")
    command = tmp_path / "bin" / "ohsandbox"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    shown = subprocess.run([*COMMAND, "completion", "show", shell], capture_output=True, check=True, text=True).stdout
    ask = {
        "bash": "COMP_WORDS=(ohsandbox diff 2025); COMP_CWORD=2; _ohsandbox_completion ohsandbox; "
        'printf "%s\\n" "${COMPREPLY[@]}"',
        # what _arguments does with a list of words and descriptions, which is the part that evaluates
        "zsh": '_arguments() { local action="${1#*: :}"; eval ws=\\( "${action[3,-3]}" \\); print -l -- $ws; }; '
        "words=(ohsandbox diff 2025); CURRENT=3; _ohsandbox_completion",
    }[shell]
    (tmp_path / "script").write_text(f"compdef() {{ :; }}\n{shown}\n{ask}\n")
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        [found, str(tmp_path / "script")], capture_output=True, check=True, text=True, env=environment, cwd=tmp_path
    )
    assert "20250102-newer" in ended.stdout, ended.stderr
    assert "touch" not in ended.stderr
    assert not (kept / "hit").exists()
    assert not (tmp_path / "x").exists()
