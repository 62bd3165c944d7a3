"""At a terminal: what it receives, and what a person types."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ohsandbox.testing.provider import FakeProvider, text
from tests.cli.conftest import Recorded, WriteScript

AtTerminal = Callable[..., Recorded]

OUR_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
OUR_FRAMES = re.compile(rb"\x1b\[(?:[0-9]*[ABCD]|[JK]|\?(?:1|7|12|25|2004)[hl])")
"""What an interactive screen is drawn with: the cursor within its rows, the end of a row or of all rows, modes."""
ALLOWED_CONTROLS = b"\r\n\t"
PROMPT = b"\x1b[?2004h"
"""prompt_toolkit begins to read: bracketed paste on."""
HOSTILE = [
    "\x1b[41mcolour", "\x1b]52;c;ZXZpbA==\x07clipboard", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1b]0;title\x07",
    "\x1bP+q544e\x1b\\dcs", "\x1b[2J\x1b[Hclear", "\x1b[6n report", "\x9b31mc1", "\x9d0;t\x9c",
    "\x07\x08\x0b\x0c\x0e\x7f",
    "over\rwritten", "\u202egnol\u202c", "zero\u200bwidth\ufeff", "[link=http://x]markup[/link] :smile: [bold]b[/]",
    "[md](http://example.com) ![img](http://x/y.png) <b>html</b>", "\x1b", "\x1b[", "\x1b]52;c;unfinished",
]  # fmt: skip


def assert_harmless(raw: bytes) -> None:
    rest = OUR_FRAMES.sub(b"", OUR_COLOURS.sub(b"", raw))
    assert b"\x1b" not in rest
    assert b"\x1b[41m" not in raw, "a colour of the sandbox's"
    assert not [byte for byte in rest if byte < 0x20 and byte not in ALLOWED_CONTROLS]
    assert not re.findall("[\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", rest.decode())


def test_no_control_of_model_or_sandbox_reaches_the_terminal(
    at_terminal: AtTerminal, write_script: WriteScript, tmp_path: Path
) -> None:
    (tmp_path / "evil").write_text("\n".join(HOSTILE))
    everything = "\n".join(HOSTILE)
    model = write_script(
        (everything, "cat evil; printf '\\033]52;c;eA==\\007'"),
        {"content": everything, "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in (
            ("file_read", {"path": "evil"}), ("file_read", {"path": everything}), ("think", {"thought": everything}),
            ("\x1b[41mtool\x07", {"a": everything}), ("execute_bash", everything),
            ("execute_bash", {"command": everything}),
        )]},
        {"content": "", "tool_calls": [{"name": "finish", "arguments": {"message": everything}}]},
    )  # fmt: skip
    ended = at_terminal(
        "run", everything, "--model", model, "--runtime", "cli", "--workspace", str(tmp_path), "--confirm", "never"
    )
    assert ended.code == 0
    assert "clipboard" in ended.raw.decode()
    assert_harmless(ended.raw)


@pytest.mark.slow
def test_no_control_in_an_error_reaches_the_terminal(
    at_terminal: AtTerminal, write_script: WriteScript, tmp_path: Path
) -> None:
    (tmp_path / "evil").write_text("\n".join(HOSTILE))
    model = write_script(("x", "cat evil"), {"content": "y", "expect": "not \x1b[41m there"})
    ended = at_terminal("run", "go", "--model", model, "--runtime", "cli", "--workspace", str(tmp_path))
    assert ended.code == 5
    assert_harmless(ended.raw)


def test_exec_without_a_terminal_of_its_own_is_cleaned(at_terminal: AtTerminal, tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("\n".join(HOSTILE))
    ended = at_terminal("exec", "-T", "--runtime", "cli", "--workspace", str(tmp_path), "--", "cat", "evil")
    assert ended.code == 0
    assert b"clipboard" in ended.raw
    assert_harmless(ended.raw)


def test_exec_gives_the_command_a_terminal_of_our_size(at_terminal: AtTerminal) -> None:
    ended = at_terminal("exec", "--runtime", "cli", "--", "sh", "-c", "test -t 0 && stty size; exit 3")
    assert ended.code == 3
    assert b"40 100" in ended.raw


@pytest.mark.docker
def test_exec_hands_ctrl_c_to_the_command(at_terminal: AtTerminal, image: str) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    ended = at_terminal("exec", "--image", image, "--", "sh", "-c", script, answers=[(b"ready", b"\x03")])
    assert (ended.code, b"caught" in ended.raw) == (9, True)


def test_a_talk_answers_helps_and_ends_with_exit(at_terminal: AtTerminal, write_script: WriteScript) -> None:
    model = write_script(("first answer", None), ("second answer", None))
    ended = at_terminal(
        "run", "--model", model, "--runtime", "cli",
        answers=[(PROMPT, b"hello\r"), (b"Answered", b""), (PROMPT, b"/help\r"), (PROMPT, b"again\r"),
                 (b"Answered", b""), (PROMPT, b"/exit\r")],
    )  # fmt: skip
    assert ended.code == 0
    assert ended.raw.index(b"first answer") < ended.raw.index(b"second answer")


def test_ctrl_c_stops_the_run_and_a_second_one_leaves_with_130(
    at_terminal: AtTerminal, write_script: WriteScript
) -> None:
    model = write_script(("first", "sleep 60"), ("after", None))
    began = time.monotonic()
    ended = at_terminal(
        "run", "--model", model, "--runtime", "cli",
        answers=[(PROMPT, b"hello\r"), (b"$ ", b""), (b"1 s\x1b", b"\x03"), (b"Stopped", b""), (PROMPT, b"\x03"),
                 (b"again", b"\x03")],
    )  # fmt: skip
    assert ended.code == 130
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_a_person_is_asked_and_may_say_yes(
    at_terminal: AtTerminal, write_script: WriteScript, tmp_path: Path
) -> None:
    model = write_script(("hello from here", None))
    ended = at_terminal("run", "hi", "--model", model, answers=[(b"[y/N]", b"y\r")], cwd=tmp_path)
    assert ended.code == 0
    assert b"WARNING: CLIRuntime" in ended.raw
    assert b"hello from here" in ended.raw


@pytest.mark.slow
@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_no_answer_is_a_no(at_terminal: AtTerminal) -> None:
    ended = at_terminal("run", "hi", "--model", "scripted:demo", answers=[(b"[y/N]", b"\r")])
    assert ended.code == 4


@pytest.mark.slow
@pytest.mark.usefixtures("no_engine")
def test_a_missing_model_and_key_are_asked_for_and_the_key_is_not_shown(at_terminal: AtTerminal) -> None:
    with FakeProvider(text("ready")) as provider:
        answers = [
            (b"Provider [", f"{provider.config().base_url}\r".encode()),
            (b"Key for", b"sk-canary-9999\r"),
            (b"Model", b"good\r"),
            (b"Save this", b"n\r"),
            (b"[y/N]", b"n\r"),
        ]
        ended = at_terminal("run", "hi", answers=answers)
    assert ended.code == 4
    assert b"canary" not in ended.raw
