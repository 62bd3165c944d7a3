"""Secrets in a real sandbox: commands have them, and what comes back does not."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.events import ConversationStatus
from ohsandbox.llm import LLMConfig
from ohsandbox.runtime.docker import DockerRuntime
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.runtime.shell.output import Capture
from ohsandbox.secrets import Masker, Secrets
from ohsandbox.secrets.encodings import encodings_of
from ohsandbox.testing.runtime import FakeRuntime
from ohsandbox.tools import DEFAULT_TOOLS
from tests.fakes import FakeModel, answer, call, data_of

TOKEN = "canary-Token/4711+äÖ 'x' \"y\" $z"
PLAIN = "OHSCANARY0123456789abcdefABCDEF"
KEY = "sk-OHSCANARYofTheProvider99"
SECRETS = {"TOKEN": TOKEN, "PLAIN": PLAIN}

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

EVERY_FORM = r"""printf '%s\n' "$PLAIN" "$TOKEN"; export -p; set; env; printf %s "$PLAIN" | base64
printf 'x%s' "$PLAIN" | base64; printf 'xy%s' "$PLAIN" | base64; printf %s "$PLAIN" | od -An -v -tx1 | tr -d ' \n'; echo
printf '{"a": "%s"}\n' "$PLAIN"; printf 'http://u:%s@h/\n' "$PLAIN" >&2; printf '\033[1m%s\033[0m\n' "$PLAIN"
printf '%s\n' "$PLAIN" >file.txt; grep -n . file.txt; (sleep 0.2; printf '%s\n' "$PLAIN") & wait"""


@pytest.fixture(params=["cli", *(pytest.param(name, marks=pytest.mark.docker) for name in ("debian", "busybox"))])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    if request.param == "cli":
        runtime: Runtime = FakeRuntime()
    else:
        runtime = DockerRuntime(f"ohsandbox-base:{request.param}")
    runtime.give_secrets(Secrets(SECRETS))
    with runtime:
        yield runtime


def leaks(text: str | bytes) -> list[str]:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return [form for value in (TOKEN, PLAIN, KEY) for form in encodings_of(value) if form.encode() in raw]


def test_shells_and_processes_have_the_variables(sandbox: Runtime) -> None:
    checks = 'test "$PLAIN" = OHSCANARY0123456789abcdefABCDEF && test ${#TOKEN} -gt 20 && echo yes'
    assert sandbox.execute(checks).output == "yes\n"
    assert sandbox.run(["sh", "-c", 'printf %s "$TOKEN"']).stdout.decode() == TOKEN
    sandbox.open_session("other", env={"MORE": "more"})
    assert sandbox.execute(f"{checks} && echo $MORE", session="other").output == "yes\nmore\n"


def test_no_form_comes_back_from_a_shell(sandbox: Runtime) -> None:
    said = sandbox.execute(EVERY_FORM, timeout_s=60)
    assert leaks(said.model_dump_json() + said.output) == []
    assert said.output.count("<secret:PLAIN>") >= 10


def test_a_secret_that_is_printed_over_two_polls_is_masked(sandbox: Runtime) -> None:
    command = "printf 'is %s' OHSCANARY01234; sleep 1.5; printf '%s.\\n' 56789abcdefABCDEF"
    first = sandbox.execute(command, idle_timeout_s=0.5)
    assert first.running
    assert first.output == "is "
    assert sandbox.execute("", timeout_s=60).output == "<secret:PLAIN>.\n"


def test_a_shell_that_was_restarted_has_them_again(sandbox: Runtime) -> None:
    sandbox.execute("export KEPT='a  b'; IFS=X; exit 3")
    assert sandbox.execute('echo ${#PLAIN} "$KEPT"').output == f"{len(PLAIN)} a  b\n"


def test_what_a_shell_leaves_for_its_successor_has_no_secret(sandbox: Runtime) -> None:
    """Else a conversation that is resumed without the secrets would have them, and not mask them."""
    sandbox.execute("export KEPT=kept; unset TOKEN")
    left = sandbox.run(["sh", "-c", 'cat "$1"/main-*/env', "sh", sandbox.state_dir]).stdout
    assert b"kept" in left
    assert leaks(left) == []


def test_other_processes_than_shells_and_calls_do_not_have_them(sandbox: Runtime) -> None:
    """An MCP server is one: it gets what its own configuration names."""
    with sandbox.channel(["env"]) as channel:
        said = b""
        while chunks := channel.read(10):
            said += b"".join(chunk.data for chunk in chunks)
    assert b"PATH=" in said
    assert leaks(said) == []


def test_files_are_read_and_written_as_they_are(sandbox: Runtime) -> None:
    sandbox.write_bytes("f", PLAIN.encode())
    assert sandbox.read_bytes("f") == PLAIN.encode()


@pytest.mark.parametrize("offset", range(len(PLAIN) + 2))
def test_where_the_middle_is_left_out_no_part_of_a_secret_stays(offset: int) -> None:
    capture = Capture(limit_bytes=2000)
    data = b"." * (1000 - offset) + PLAIN.encode() + b"." * 5000 + PLAIN.encode() + b"." * (1000 - offset)
    for at in range(0, len(data), 7):
        capture.feed(data[at : at + 7])
    text = capture.read(final=True, masker=Masker(SECRETS)).text
    assert not [at for at in range(len(PLAIN) - 3) if PLAIN[at : at + 4] in text]


# --- the host's own keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CLIRuntime, pytest.param(DockerRuntime, marks=pytest.mark.docker)])
def test_nothing_of_the_hosts_environment_enters(kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "GH_TOKEN", "ODD_NAME", "LC_ODD"):
        monkeypatch.setenv(name, KEY)
    runtime = CLIRuntime(tmp_path, quiet=True) if kind is CLIRuntime else DockerRuntime("ohsandbox-base:debian")
    with runtime:
        said = runtime.execute("env; set").output + runtime.run(["env"]).stdout.decode()
        channel = runtime.open_channel(["env"])
        with channel:
            while chunks := channel.read(10):
                said += "".join(chunk.data.decode() for chunk in chunks)
    assert "PATH=" in said
    assert KEY not in said


@pytest.mark.docker
def test_the_engine_shows_no_secret() -> None:
    runtime = DockerRuntime("ohsandbox-base:debian")
    runtime.give_secrets(Secrets(SECRETS))
    with runtime:
        runtime.execute("sleep 300 & echo $PLAIN")
        name = runtime.name
        shown = subprocess.run(["docker", "inspect", name], capture_output=True, check=True).stdout
        shown += subprocess.run(["docker", "top", name, "-ef"], capture_output=True, check=True).stdout
        changed = subprocess.run(["docker", "diff", name], capture_output=True, check=True).stdout
        exported = subprocess.run(["docker", "export", name], capture_output=True, check=True).stdout
    assert name.encode() in shown
    assert changed is not None
    assert leaks(shown) == []
    assert leaks(exported) == []


# --- a whole conversation ---------------------------------------------------------------------------


class KeyedModel(FakeModel):
    """A model that is paid with a key."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.config = LLMConfig(model="openai/x", api_key=KEY)


def talk(
    tmp_path: Path, runtime: Runtime, *turns: Any, tools: tuple[str, ...] = DEFAULT_TOOLS
) -> tuple[Conversation, KeyedModel]:
    model = KeyedModel(*turns)
    conversation = Conversation(Agent(model, tools), runtime, tmp_path / "talks", secrets=Secrets(SECRETS))
    conversation.run(f"Use {TOKEN} and {KEY}.", timeout_s=60)
    return conversation, model


def test_neither_the_log_nor_the_model_sees_a_value(tmp_path: Path) -> None:
    def fail() -> Any:
        raise RuntimeError(f"the provider quotes {KEY}")

    encoded = base64.b64encode(PLAIN.encode()).decode()
    conversation, model = talk(
        tmp_path,
        FakeRuntime(),
        answer(f"thinking of {PLAIN}", call("execute_bash", {"command": f"{EVERY_FORM}; echo {encoded} {KEY}"})),
        answer("", call("file_read", {"path": "file.txt"}), call("no_such_tool", {"a": TOKEN})),
        answer("", call("execute_bash", json.dumps({"command": 1, "x": TOKEN}))),
        fail,
    )
    heard = json.dumps([event.data for event in conversation.events()], ensure_ascii=False)
    conversation.close()
    assert conversation.status() is ConversationStatus.ERROR
    written = [path for path in (tmp_path / "talks").rglob("*") if path.is_file()]
    assert written
    assert [(path.name, found) for path in written if (found := leaks(path.read_bytes()))] == []
    assert leaks(json.dumps(model.seen, ensure_ascii=False)) == []
    assert leaks(heard) == []
    assert "Use <secret:TOKEN> and <secret:api_key>." in heard
    assert "the provider quotes <secret:api_key>" in heard
    assert "<secret:PLAIN>" in data_of(conversation.events(), "tool_result")[1]["result"]["output"]


def test_neither_escapes_nor_a_tools_name_nor_the_task_list_keep_a_value(tmp_path: Path) -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in PLAIN)
    conversation, model = talk(
        tmp_path,
        FakeRuntime(),
        answer("", call("execute_bash", f'{{"command": "echo {escaped}"}}'), call(PLAIN, {"a": 1})),
        answer("", call("task_tracker", {"command": "plan", "task_list": [{"title": f"try {TOKEN}", "notes": PLAIN}]})),
    )
    (tasks,) = [path.read_text() for path in (tmp_path / "talks").rglob("TASKS.json")]
    calls, results = (data_of(conversation.events(), kind) for kind in ("tool_call", "tool_result"))
    conversation.close()
    assert json.loads(calls[0]["arguments"]) == {"command": "echo <secret:PLAIN>"}
    assert [calls[1]["name"], results[1]["name"]] == ["_secret_PLAIN_"] * 2
    assert results[2]["result"]["status"] == "ok"
    assert json.loads(tasks)[0]["title"] == "try <secret:TOKEN>"
    assert leaks(tasks) == []
    assert leaks(json.dumps(model.seen, ensure_ascii=False)) == []
    written = [path for path in (tmp_path / "talks").rglob("*") if path.is_file()]
    assert [(path.name, found) for path in written if (found := leaks(path.read_bytes()))] == []


def test_the_model_is_told_the_names(tmp_path: Path) -> None:
    conversation, model = talk(tmp_path, FakeRuntime(), answer("ok"))
    conversation.close()
    assert "TOKEN, PLAIN" in model.seen[0][0]["content"]
    assert conversation.secrets.names == ("TOKEN", "PLAIN")


def test_a_sub_agent_has_the_secrets_and_its_trail_none(tmp_path: Path) -> None:
    conversation, _ = talk(
        tmp_path,
        FakeRuntime(),
        answer("", call("delegate", {"task": f"look at {PLAIN}"})),
        answer("", call("execute_bash", {"command": "echo $PLAIN ${#PLAIN}"})),
        answer("seen"),
        tools=("delegate", "execute_bash"),
    )
    conversation.close()
    trails = [*(tmp_path / "talks").rglob("agents/*/*.jsonl")]
    assert len(trails) == 1
    assert f"<secret:PLAIN> {len(PLAIN)}" in trails[0].read_text()
    assert leaks(trails[0].read_bytes()) == []
