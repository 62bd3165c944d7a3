import json
import re
from pathlib import Path

import pytest

from ohsandbox import events
from ohsandbox.cli.commands.run import RunRequest
from ohsandbox.persistence import EventLog
from ohsandbox.settings import Settings
from ohsandbox.testing.provider import FakeProvider, calls
from tests.cli.conftest import Invoke, WriteScript

BAD_IMAGES = ["UPPER/x", "a b", "", "--help", "a" * 300, "../etc"]


def test_without_a_model_the_line_names_flag_setting_and_variable(invoke: Invoke) -> None:
    ended = invoke("run", "task")
    assert ended.code == 2
    for remedy in ("--model", '"model"', "settings.json", "OHSANDBOX_MODEL"):
        assert remedy in ended.err
    assert ended.err.count("\n") == 1


def test_without_a_key_the_line_names_flag_setting_and_variable(invoke: Invoke) -> None:
    ended = invoke("run", "task", "--model", "anthropic/claude-sonnet-4-5")
    assert ended.code == 2
    for remedy in ("ANTHROPIC_API_KEY", '"api_key"', "--api-key"):
        assert remedy in ended.err


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_name_is_refused_before_any_engine_is_asked(invoke: Invoke, name: str) -> None:
    assert invoke("run", "task", "--model", "scripted:demo", "--image", name).code == 2


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_the_line_names_both_remedies_and_nothing_is_left(invoke: Invoke, home: Path) -> None:
    ended = invoke("run", "task", "--model", "scripted:demo")
    assert ended.code == 4
    assert "Start the engine" in ended.err
    assert "--runtime cli" in ended.err
    assert not (home / ".ohsandbox" / "conversations").exists()


def test_autoresume_without_a_conversation_is_a_usage_error(invoke: Invoke) -> None:
    ended = invoke("run", "--autoresume", "task")
    assert ended.code == 2
    assert "to resume" in ended.err


@pytest.mark.parametrize("options", [["--network", "none"], ["--keep"], ["--attach", "x"], ["--image", "x"]])
def test_what_only_a_container_can_do_is_refused_on_the_host(invoke: Invoke, options: list[str]) -> None:
    assert invoke("run", "task", "--model", "scripted:demo", "--runtime", "cli", *options).code == 2


def test_a_key_on_the_command_line_is_warned_of_and_never_shown(invoke: Invoke, write_script: WriteScript) -> None:
    model = write_script(("hello", None))
    ended = invoke("run", "hi", "--model", model, "--runtime", "cli", "--no-tui", "--api-key", "sk-canary-1234")
    assert ended.code == 0
    assert "--api-key is visible" in ended.err
    assert "canary" not in ended.out + ended.err


def test_an_answer_in_words_is_exit_code_0(invoke: Invoke, write_script: WriteScript, tmp_path: Path) -> None:
    model = write_script(("looking", "echo marker-$((6*7))"), ("It is\ntwo lines.", None))
    ended = invoke("run", "hi", "--model", model, "--runtime", "cli", "--no-tui", "--workspace", str(tmp_path))
    assert ended.code == 0
    assert "WARNING: CLIRuntime runs commands on THIS HOST" in ended.err
    assert "call     $ echo marker-$((6*7))" in ended.out
    assert "marker-42" in ended.out
    assert "answer   It is" in ended.out
    assert "answer   two lines." in ended.out
    assert "\x1b" not in ended.out


def test_a_failing_model_is_exit_code_5_and_the_last_line(invoke: Invoke, write_script: WriteScript) -> None:
    model = write_script(("looking", "echo one"), {"content": "?", "expect": "two"})
    ended = invoke("run", "hi", "--model", model, "--runtime", "cli", "--no-tui")
    assert ended.code == 5
    assert ended.err.splitlines()[-1].startswith("ohsandbox: Turn 2 of")


def test_a_limit_that_is_reached_is_exit_code_1(invoke: Invoke, write_script: WriteScript) -> None:
    model = write_script(*[("again", "true")] * 3)
    ended = invoke("run", "hi", "--model", model, "--runtime", "cli", "--no-tui", "--max-iterations", "2")
    assert ended.code == 1
    assert "max_iterations" in ended.err


def test_the_command_to_look_at_the_conversation_is_told_and_works(invoke: Invoke, write_script: WriteScript) -> None:
    ended = invoke("run", "hi", "--model", write_script(("hello there", None)), "--runtime", "cli", "--no-tui")
    [command] = [line.partition("ohsandbox ")[2] for line in ended.out.splitlines() if "To look at it" in line]
    shown = invoke(*command.split())
    assert shown.code == 0
    assert "hello there" in shown.out


def test_what_the_machine_would_run_by_itself_is_told_at_the_end(
    invoke: Invoke, write_script: WriteScript, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    model = write_script(("", "mkdir .vscode; echo '{}' > .vscode/tasks.json"), ("done", None))
    ended = invoke("run", "hi", "--model", model, "--runtime", "cli", "--workspace", str(project), "--no-tui")
    assert ended.code == 0
    assert "new: .vscode/tasks.json" in ended.out


def test_instructions_end_the_prompt(invoke: Invoke, write_script: WriteScript, tmp_path: Path, home: Path) -> None:
    file = tmp_path / "rules.md"
    file.write_text("Use tabs.\n")
    named = ["--model", write_script(("hello", None)), "--runtime", "cli", "--no-tui", "--instructions", str(file)]
    assert invoke("run", "hi", *named).code == 0
    (log,) = (home / ".ohsandbox" / "conversations").glob("*/sdk_events.jsonl")
    [prompt] = [
        event["data"]["content"]
        for event in map(json.loads, log.read_text().splitlines())
        if event["type"] == "system_message"
    ]
    assert "# Instructions of the user\nUse tabs." in prompt


@pytest.mark.parametrize("data", [None, b"\xff", b"x" * 70_000])
def test_instructions_that_cannot_be_read_are_refused(
    invoke: Invoke, write_script: WriteScript, tmp_path: Path, data: bytes | None
) -> None:
    file = tmp_path / "rules.md"
    if data is not None:
        file.write_bytes(data)
    ended = invoke("run", "hi", "--model", write_script(("x", None)), "--runtime", "cli", "--instructions", str(file))
    assert ended.code == 2
    assert "Instructions" in ended.err


def test_limit_on_cost_is_refused_at_start_without_a_price_and_kept_with_one(invoke: Invoke) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    with FakeProvider(calls(("think", {"thought": "x"}), usage=usage), models=["mine"]) as provider:
        where = ["--model", "openai/mine", "--base-url", provider.base_url, "--runtime", "cli", "--no-tui"]
        refused = invoke("run", "hi", *where, "--max-cost-usd", "0.5")
        kept = invoke("run", "hi", *where, "--max-cost-usd", "0.5", "--price", "400,1000")
        asked = len(provider.requests)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "The price of model 'openai/mine' is unknown, so max_cost_usd=0.5 cannot be kept." in refused.err
    assert (kept.code, asked) == (1, 1)
    assert "The limit of 0.5 US dollars is reached (0.5 used)" in kept.err


def test_settings_name_the_model_and_a_flag_wins(invoke: Invoke, write_script: WriteScript, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"model": write_script(("from settings", None))}))
    named = ["--settings", str(settings), "--runtime", "cli", "--no-tui"]
    assert "from settings" in invoke("run", "hi", *named).out
    assert "merge" in invoke("run", "hi", *named, "--model", "scripted:demo", "--max-iterations", "2").out


def test_the_environment_names_the_model_where_nothing_else_does(
    invoke: Invoke, write_script: WriteScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_MODEL", write_script(("from the environment", None)))
    assert "from the environment" in invoke("run", "hi", "--runtime", "cli", "--no-tui").out


@pytest.mark.parametrize("content", ["{", "[]", '{"modle": "x"}', '{"max_iterations": "many"}'])
def test_a_malformed_settings_file_is_a_usage_error(invoke: Invoke, tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    ended = invoke("run", "hi", "--settings", str(path))
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_a_relative_home_is_a_usage_error(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "relative")
    assert invoke("run", "hi", "--model", "scripted:demo", "--runtime", "cli").code == 2


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("resumed", [False, True])
def test_conversations_that_lie_in_the_workspace_by_a_link_are_refused_in_one_line(
    invoke: Invoke, home: Path, tmp_path: Path, *, resumed: bool
) -> None:
    workspace = tmp_path / "w"
    (workspace / "kept" / "c").mkdir(parents=True)
    (home / ".ohsandbox").mkdir()
    (home / ".ohsandbox" / "conversations").symlink_to(workspace / "kept")
    with EventLog(workspace / "kept" / "c", conversation_id="c") as log:
        log.append(events.user_message("go"))
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*")}
    how = ("--resume", "c") if resumed else ()
    ended = invoke("run", "task", "-q", "--model", "scripted:demo", "--workspace", str(workspace), *how)
    assert ended.code == 2
    assert "lie in one another" in ended.err
    assert ended.err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in workspace.rglob("*")} == before


# --- flags, then variables, then the file -----------------------------------------------------------------------------

ROWS = {
    "model": ("--model", "ollama/file", "ollama/variable", "ollama/flag"),
    "api_key": ("--api-key", "k-file", "k-variable", "k-flag"),
    "base_url": ("--base-url", "http://file", "http://variable", "http://flag"),
    "image": ("--image", "file", "variable", "flag"),
    "network": ("--network", "open", "none", "open"),
    "git": ("--git", "ro", "rw", "guarded"),
    "ca_bundle": ("--ca-bundle", "file.pem", "variable.pem", "flag.pem"),
    "instructions": ("--instructions", "file.md", "variable.md", "flag.md"),
    "confirm": ("--confirm", "always", "medium", "risky"),
    "max_iterations": ("--max-iterations", "1", "2", "3"),
    "max_time_s": ("--max-time-s", "1", "2", "3"),
    "max_tokens": ("--max-tokens", "1", "2", "3"),
    "max_cost_usd": ("--max-cost-usd", "1", "2", "3"),
    "price": ("--price", "1,2", "3,4", "5,6"),
}
OF_THE_SANDBOX = {"image", "network", "git", "ca_bundle"}
CONFIGURATION = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_flag_stands_above_variable_and_variable_above_file(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    seen: list[str] = []

    def work(run: RunRequest) -> int:
        found = getattr(run.where.with_settings(run.settings) if name in OF_THE_SANDBOX else run.settings, name)
        found = found.get_secret_value() if name == "api_key" else found
        found = ",".join(f"{part:g}" for part in found) if name == "price" else found
        seen.append(f"{found:g}" if isinstance(found, float) else str(found))
        return 0

    monkeypatch.setattr("ohsandbox.cli.commands.run._work", work)
    monkeypatch.chdir(tmp_path)
    for pem in ("file.pem", "variable.pem", "flag.pem"):
        Path(pem).write_text("-----BEGIN CERTIFICATE-----\n")
    flag, in_file, in_variable, given = ROWS[name]
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"model": "scripted:demo", name: in_file}))
    (tmp_path / "project").mkdir()
    place = ["--workspace", str(tmp_path / "project")] if name == "git" else []
    arguments = ["run", "hi", "--settings", str(file), *place]
    assert invoke(*arguments).code == 0
    monkeypatch.setenv(f"OHSANDBOX_{name.upper()}", in_variable)
    monkeypatch.setenv("OPENAI_API_KEY", "k-of-the-provider")
    assert invoke(*arguments).code == 0
    assert invoke(*arguments, flag, given).code == 0
    assert seen == [in_file, in_variable, given]


def test_the_table_has_every_setting_with_its_variable_and_every_flag_of_run(invoke: Invoke) -> None:
    page = CONFIGURATION.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    variables = Settings.variables()
    for name in Settings.model_fields:
        [row] = [line for line in rows if f"`{name}`" in line.split("|")[1]]
        assert re.findall(r"`(OHSANDBOX_\w+)`", row) == ([variables[name]] if name in variables else [])
        assert name not in ROWS or f"`{ROWS[name][0]}`" in row
    flags = set(re.findall(r"--[a-z][a-z-]+", invoke("run", "--help").out)) - {"--help"}
    assert {flag for flag in flags if f"`{flag}`" not in page} == set()


def test_settings_of_openhands_are_read_and_told_in_one_line(
    invoke: Invoke, write_script: WriteScript, home: Path
) -> None:
    (home / ".openhands").mkdir(mode=0o700)
    file = home / ".openhands" / "settings_sdk.json"
    file.write_text(json.dumps({"model": write_script(("hello", None)), "agent": "CodeActAgent"}))
    file.chmod(0o600)
    ended = invoke("run", "hi", "--runtime", "cli", "--no-tui")
    assert ended.code == 0
    told = [line for line in ended.err.splitlines() if "settings_sdk.json" in line]
    assert len(told) == 2
    assert "To move them (then take the keys that are not used out): mkdir" in told[0]
    assert "no setting 'agent'" in told[1]
