"""`ohsandbox run --secret`: what a person, a log or the engine gets to see of a run with secrets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.secrets.encodings import encodings_of

if TYPE_CHECKING:
    from tests.cli.conftest import Invoke, Start, WriteScript

CANARY = "OHSCANARY/0123456789+abcdef ABCDEF"
KEY = "sk-OHSCANARYofTheProvider99"
PRINT_ALL = """printf '%s\\n' "$CANARY" "$FROM_FILE"; env; export -p
printf %s "$CANARY" | base64; echo ${#CANARY}-${#FROM_FILE}"""


def leaks(*texts: str | bytes) -> list[str]:
    raw = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    return [form for value in (CANARY, KEY) for form in encodings_of(value) if form.encode() in raw]


@pytest.fixture
def settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with a key and a secret of a file; the other secret is in the environment."""
    file = home / "key"
    file.write_text(CANARY + "\n")
    file.chmod(0o600)
    monkeypatch.setenv("CANARY", CANARY)
    monkeypatch.setenv("THE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    path = home / "settings.json"
    path.write_text(json.dumps({"api_key": "env:THE_KEY", "secrets": {"FROM_FILE": f"file:{file}"}}))
    return path


def kept(home: Path) -> bytes:
    """Everything that the command left, but for the file that the secret came from."""
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "key"]
    assert any(path.suffix == ".jsonl" for path in files)
    return b"\n".join(path.read_bytes() for path in files)


def test_a_value_on_the_command_line_is_refused_and_not_repeated(invoke: Invoke) -> None:
    ended = invoke("run", "go", "--secret", f"CANARY={CANARY}", "--runtime", "cli", "--model", "scripted:demo")
    assert ended.code == 2
    assert "never the value" in ended.err
    assert leaks(ended.out, ended.err) == []


def test_a_secret_without_a_value_ends_the_run_before_it_begins(invoke: Invoke) -> None:
    ended = invoke("run", "go", "--secret", "NOT_THERE", "--runtime", "cli", "--model", "scripted:demo", "--no-tui")
    assert ended.code == 2
    assert "NOT_THERE" in ended.err
    assert "WARNING" not in ended.err  # the sandbox was not started


def test_commands_have_the_secrets_and_nothing_shows_them(
    invoke: Invoke, write_script: WriteScript, settings: Path, home: Path, tmp_path: Path
) -> None:
    script = write_script((f"I print {CANARY}", PRINT_ALL), ("Done.", None))
    ended = invoke(
        *("run", f"go {KEY}", "--model", script, "--settings", str(settings), "--secret", "CANARY", "--no-tui"),
        *("--runtime", "cli", "--workspace", str(tmp_path), "--debug"),
    )
    assert ended.code == 0, ended.err
    assert "Secrets in the environment of commands: FROM_FILE, CANARY" in ended.out
    log = next(home.rglob("*.jsonl")).read_text()
    assert f"{len(CANARY)}-{len(CANARY)}" in log
    assert "<secret:FROM_FILE>" in log  # one value, two names: the first is shown
    assert leaks(ended.out, ended.err, kept(home)) == []


def test_an_error_that_quotes_a_secret_is_masked_with_its_traceback(invoke: Invoke, settings: Path, home: Path) -> None:
    model = f"scripted:{home}/{CANARY.replace('/', '.')}"
    file = home / "key"
    file.write_text(CANARY.replace("/", "."))
    ended = invoke(
        "run", "go", "--model", model, "--settings", str(settings), "--runtime", "cli", "--debug", "--no-tui"
    )
    assert ended.code != 0
    assert "Traceback" in ended.err
    assert "<secret:FROM_FILE>" in ended.err
    assert CANARY.replace("/", ".") not in ended.err


@pytest.mark.slow
@pytest.mark.docker
def test_the_engine_and_the_command_line_show_no_secret(
    start: Start, write_script: WriteScript, settings: Path, home: Path, image: str
) -> None:
    script = write_script(("", PRINT_ALL), ("", "sleep 1; echo $CANARY"), ("Done.", None))
    words = ("run", "go", "--model", script, "--settings", str(settings), "--secret", "CANARY", "--image", image)
    process = start(*words, "--keep")
    assert process.stderr is not None
    first = process.stderr.readline()  # it runs
    arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    out, rest = process.communicate(timeout=60)
    err = first + rest
    assert process.returncode == 0, err
    name = err.decode().split("docker rm -f ")[1].split()[0]
    try:
        inspected = subprocess.run(["docker", "inspect", name], capture_output=True, check=True).stdout
        exported = subprocess.run(["docker", "export", name], capture_output=True, check=True).stdout
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=True)
    assert b"--secret\0CANARY" in arguments
    assert leaks(out, err, arguments, inspected, exported, kept(home)) == []
