from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.runtime.workspace.git_settings import Names, Setting, may_name_program, names_of, read_settings

if TYPE_CHECKING:
    from pathlib import Path


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=60)


def documented_keys() -> list[str]:
    """The keys of the installed git as `section.name`, with the subsection of `fetch.fsck` and `receive.fsck`."""
    lines = git("help", "--config").stdout.lower().split()
    keys = [line for line in lines if "." in line and not line.endswith(">.*")]  # `http.<url>.*` are keys of `http`
    assert len(keys) > 700
    return keys


def test_every_setting_of_the_installed_git_is_judged() -> None:
    unknown = []
    for key in documented_keys():
        section, *subsection, name = key.split(".")
        name = "anything" if "<" in name or name == "*" else name
        if names_of(f"{section}.{name}", ".".join(subsection)) is Names.UNKNOWN:
            unknown.append(key)
    assert unknown == []


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("core.hookspath", Names.DIRECTORY), ("include.path", Names.FILE), ("includeif.path", Names.FILE),
        ("filter.process", Names.COMMAND), ("alias.st", Names.COMMAND), ("pager.log", Names.COMMAND),
        ("core.worktree", Names.REDIRECTION), ("protocol.allow", Names.REDIRECTION), ("user.name", Names.NOTHING),
        ("filter.required", Names.UNKNOWN), ("mine.tool", Names.UNKNOWN), ("?", Names.UNKNOWN),
    ],
)  # fmt: skip
def test_a_setting_is_judged_by_what_it_names(key: str, names: Names) -> None:
    assert names_of(key) is names


def test_what_is_not_known_to_be_harmless_may_name_a_program() -> None:
    assert may_name_program(Setting("mine.tool", "x"))
    assert may_name_program(Setting("remote.url", "ext::sh -c evil"))
    assert may_name_program(Setting("submodule.branch", "!evil"))
    assert not may_name_program(Setting("remote.url", "https://example.org/x"))


PIECES = (
    "\n", "\r\n", "\n[a]\n", '[b "c\\"d"]', "[Core]", "[i.J]", "k", "x = ", "\nk = ", "=", " ", '"', "\\", "#", ";",
    "v", "w w", "\\n", '\\"', "\\\n", "b-c", "\u00fc", "\x0b",
)  # fmt: skip


def test_settings_are_read_as_git_reads_them(tmp_path: Path) -> None:
    generator, read = random.Random(7), 0
    file = tmp_path / "config"
    for _ in range(400):
        text = "[s]\n" + "".join(generator.choices(PIECES, k=generator.randint(1, 14)))
        file.write_text(text, newline="")
        listed = git("config", "--file", str(file), "--list", "-z")
        if listed.returncode:
            continue  # git stops at a line in error
        read += 1
        expected = []
        for pair in listed.stdout.split("\0")[:-1]:
            key, has_value, value = pair.partition("\n")
            section, _, rest = key.partition(".")
            subsection, _, name = rest.rpartition(".")
            expected.append(Setting(f"{section}.{name}", value if has_value else "true", subsection))
        assert list(read_settings(text)) == expected, text
    assert read > 50


def test_a_line_that_is_not_understood_hides_none_after_it() -> None:
    text = '[core]\n= x\n[broken "\nhooksPath = "open\n[alias]\nx = !evil\n'
    assert Setting("alias.x", "!evil") in list(read_settings(text))


def test_a_value_continues_on_the_lines_after_it() -> None:
    text = "[a]\nb = x" + "\\\n" * 1000 + "y\nc"
    assert list(read_settings(text)) == [Setting("a.b", "xy"), Setting("a.c", "true")]
