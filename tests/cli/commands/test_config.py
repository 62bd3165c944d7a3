from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Invoke, Recorded, Start


@pytest.fixture
def file(home: Path) -> Path:
    return home / ".ohsandbox" / "settings.json"


def write(file: Path, values: dict[str, Any]) -> None:
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_text(json.dumps(values))
    file.chmod(0o600)


def listed(invoke: Invoke) -> dict[str, tuple[object, str]]:
    ended = invoke("config", "list", "--json")
    assert ended.code == 0
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(ended.out)}


def test_every_setting_is_listed_with_where_it_is_from(
    invoke: Invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, {"model": "a/b", "network": "open"})
    monkeypatch.setenv("OHSANDBOX_MODEL", "c/d")
    rows = listed(invoke)
    assert list(rows) == list(Settings.model_fields)
    assert rows["model"] == ("c/d", "environment variable OHSANDBOX_MODEL")
    assert rows["network"] == ("open", f"settings file {str(file)!r}")
    assert rows["image"] == ("python:3.12", "default")


@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["get", "api_key"], ["get", "mcpServers"]])
def test_no_key_is_printed(invoke: Invoke, file: Path, command: list[str]) -> None:
    servers = {
        "a": {
            "url": "https://u:canary-4@x.example/mcp?v=canary-5&k=canary-6",
            "headers": {"X": "canary-1"},
            "env": {"Y": "canary-2"},
        },
        "b": {
            "command": "npx remote --token canary-7",
            "args": [
                *("--api-key=canary-8", "--token", "canary-9", "-H", "Authorization: Bearer canary-10"),
                *("--header", "X-Auth:canary-11", "-e", "DB_PASSWORD=canary-12", "postgres://u:canary-13@db.example/x"),
                *("ghp_Canary0123456789abcdef", "https://x.example/?k=canary-14"),
            ],
        },
    }
    write(file, {"api_key": "canary-3", "mcpServers": servers})
    ended = invoke("config", *command)
    assert ended.code == 0
    assert "***" in ended.out
    assert "canary" not in (ended.out + ended.err).lower()


def test_arguments_of_a_server_that_are_no_secret_are_shown(invoke: Invoke, file: Path) -> None:
    args = ["-y", "@scope/server-filesystem@1.2.3", "--port", "8080", "/home/me/project", "--host=x.example:443"]
    write(file, {"mcpServers": {"a": {"command": "npx", "args": args}}})
    assert json.loads(invoke("config", "get", "mcpServers").out)["a"] == {"command": "npx", "args": args}


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("model", "5", {"model": "5"}),
        ("max_iterations", "7", {"max_iterations": 7}),
        ("max_cost_usd", "0.5", {"max_cost_usd": 0.5}),
        ("checkpoints", "false", {"checkpoints": False}),
        ("memory", "4g", {"memory": "4g"}),
        ("output.max_chars", "70000", {"output": {"max_chars": 70000}}),
        ("secrets.GH_TOKEN", "env:GH_TOKEN", {"secrets": {"GH_TOKEN": "env:GH_TOKEN"}}),
        ("tools", '{"also": ["x"]}', {"tools": {"also": ["x"]}}),
        ("api_key", "env:A_KEY", {"api_key": "env:A_KEY"}),
    ],
)
def test_a_value_is_checked_and_written_beside_what_the_file_holds(
    invoke: Invoke, file: Path, name: str, text: str, stored: dict[str, object]
) -> None:
    write(file, {"mcpServers": {"x": {"command": "y"}}})
    assert invoke("config", "set", name, text).code == 0
    assert json.loads(file.read_text()) == {"mcpServers": {"x": {"command": "y"}}, **stored}
    assert Settings.load() is not None


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("netwrk", "open", ["'netwrk'", "Did you mean 'network'?"]),
        ("network", "opn", ["'network'", "'opn'", "'none', 'allowlist' or 'open'", "Did you mean 'open'?"]),
        ("max_iterations", "many", ["'max_iterations'", "'many'", "Give a whole number."]),
        ("max_iterations", "0", ["'max_iterations'", "0", "greater than 0"]),
        ("output.max_charz", "9", ["'output.max_charz'", "max_chars"]),
        ("memory", "lots", ["'memory'", "'lots'", "expected a size"]),
        ("secrets.A", "canary-value", ["env:VARIABLE"]),
    ],
)
def test_a_wrong_name_or_value_is_one_line_and_nothing_is_written(
    invoke: Invoke, file: Path, name: str, text: str, told: list[str]
) -> None:
    write(file, {"model": "a/b"})
    ended = invoke("config", "set", name, text)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert all(part in ended.err for part in told), ended.err
    assert "canary" not in ended.err
    assert json.loads(file.read_text()) == {"model": "a/b"}


def test_a_key_is_not_taken_from_the_command_line_and_is_piped_into_a_private_file(
    invoke: Invoke, start: Start, file: Path
) -> None:
    ended = invoke("config", "set", "api_key", "canary-0123456789")
    assert ended.code == 2
    assert "canary" not in ended.err
    assert "name where it is: env:NAME, keyring:NAME or file:PATH." in ended.err
    assert not file.exists()
    process = start("config", "set", "api_key", stdin=-1)
    _, told = process.communicate(b"canary-0123456789\n", timeout=60)
    assert process.returncode == 0, told
    assert b"canary" not in told
    kept = file.parent / "keys" / "default"
    assert json.loads(file.read_text()) == {"api_key": f"file:{kept}"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert Settings.load().resolved_api_key() == "canary-0123456789"


def test_what_was_read_from_openhands_file_comes_along(invoke: Invoke, home: Path, file: Path) -> None:
    theirs = home / ".openhands" / "settings_sdk.json"
    theirs.parent.mkdir(mode=0o700)
    theirs.write_text(json.dumps({"model": "a/b", "agent_class": "x", "base_url": None}))
    theirs.chmod(0o600)
    ended = invoke("config", "set", "network", "open")
    assert ended.code == 0
    assert str(theirs) in ended.err
    assert json.loads(file.read_text()) == {"model": "a/b", "network": "open"}


def test_a_settings_file_that_is_a_link_stays_one(invoke: Invoke, tmp_path: Path, file: Path) -> None:
    real = tmp_path / "dotfiles"
    real.mkdir(mode=0o700)
    (real / "settings.json").write_text("{}")
    (real / "settings.json").chmod(0o600)
    file.parent.mkdir(mode=0o700)
    file.symlink_to(real / "settings.json")
    assert invoke("config", "set", "model", "a/b").code == 0
    assert file.is_symlink()
    assert json.loads((real / "settings.json").read_text()) == {"model": "a/b"}


def test_a_setting_is_removed_and_one_that_is_not_there_is_told(invoke: Invoke, file: Path) -> None:
    write(file, {"model": "a/b", "output": {"max_chars": 5000}})
    assert invoke("config", "unset", "model").code == 0
    assert json.loads(file.read_text()) == {"output": {"max_chars": 5000}}
    assert "'model' is not in" in invoke("config", "unset", "model").err


def test_a_variable_above_what_is_set_is_told(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_NETWORK", "none")
    assert "OHSANDBOX_NETWORK stands above it" in invoke("config", "set", "network", "open").err


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "editor"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("EDITOR", f"{program} --wait")


def test_what_an_editor_writes_is_taken_when_it_is_valid(
    invoke: Invoke, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(tmp_path, monkeypatch, """[ "$1" = --wait ] && echo '{"model": "e/f"}' >"$2" """)
    assert invoke("config", "edit").code == 0
    assert json.loads(file.read_text()) == {"model": "e/f"}


@pytest.mark.parametrize("script", ["""echo '{"modle": 1}' >"$2" """, 'echo "{" >"$2"', "exit 3"])
def test_what_an_editor_writes_is_refused_when_it_is_not_valid(
    invoke: Invoke, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    write(file, {"model": "a/b"})
    editor(tmp_path, monkeypatch, script)
    assert invoke("config", "edit").code == 2
    assert json.loads(file.read_text()) == {"model": "a/b"}


def test_an_edit_that_is_not_valid_can_be_mended(
    at_terminal: Callable[..., Recorded], tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(tmp_path, monkeypatch, 'grep -q modle "$2" && echo \'{"model": "ok"}\' >"$2" || echo \'{"modle": 1}\' >"$2"')
    recorded = at_terminal("config", "edit", answers=[(b"Edit again?", b"\n")])
    assert recorded.code == 0
    assert b"Did you mean 'model'?" in recorded.raw
    assert json.loads(file.read_text()) == {"model": "ok"}


def test_a_missing_editor_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", os.devnull + "/none")
    ended = invoke("config", "edit")
    assert ended.code == 2
    assert "EDITOR" in ended.err


def test_a_table_has_short_sources_and_the_files_below_it(
    invoke: Invoke, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, {"model": "a/b"})
    monkeypatch.setenv("OHSANDBOX_NETWORK", "open")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".ohsandbox.toml").write_text("max_tokens = 5\nsetup = ['true']")
    assert invoke("trust", "--yes").code == 0
    lines = invoke("config", "list").out.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines if len(line.split()) > 2}
    assert (rows["model"], rows["network"]) == (["a/b", "settings file"], ["open", "OHSANDBOX_NETWORK"])
    assert (rows["max_tokens"], rows["image"]) == (["5", "project file"], ["python:3.12", "default"])
    assert lines[-2:] == [f"settings file: {file}", f"project file: {tmp_path / '.ohsandbox.toml'} (also: setup)"]
