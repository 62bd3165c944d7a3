from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.mcp import MCPConfig, MCPConfigError
from ohsandbox.settings import Settings, SettingsLayer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of whoever runs the tests."""
    for variable in Settings.variables().values():
        monkeypatch.delenv(variable, raising=False)


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_missing_default_file_means_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    assert Settings.load() == Settings()
    assert Settings.load().image == "python:3.12"


def test_missing_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        Settings.load(tmp_path / "no.json")


def test_flags_stand_above_the_file_and_none_is_no_flag(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"model": "a/b", "image": "node:22", "mcp": {"stdio_servers": []}}))
    settings = Settings.load(path, model="c/d", image=None)
    assert (settings.model, settings.image, settings.mcp) == ("c/d", "node:22", {"stdio_servers": []})


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"modle": "x"}', "unknown key 'modle'"),
        ('{"temperature": "hot"}', "key 'temperature' is wrong"),
        ('{"api_key": ["sk-secret"]}', "key 'api_key' is wrong"),
        ('{"max_iterations": 0}', "key 'max_iterations' is wrong"),
    ],
)
def test_fault_names_file_and_key_on_one_line(tmp_path: Path, text: str, fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.load(write(tmp_path, text))
    assert fact in str(caught.value)
    assert "settings.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_wrong_flag_is_an_error_of_the_command_line() -> None:
    with pytest.raises(UsageError, match="command line: key 'temperature'"):
        Settings().with_flags(temperature=-1)


def test_key_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    text = '{"api_key": "sk-secret"}'
    [warning] = Settings.load(write(tmp_path, text, 0o644), model="a/b").warnings
    assert "chmod 600" in warning
    assert 'or write "env:NAME", "keyring:NAME" or "file:PATH" instead of the key.' in warning
    assert "sk-secret" not in warning
    assert Settings.load(write(tmp_path, text, 0o600)).warnings == ()
    assert Settings.load(write(tmp_path, '{"api_key": "env:K"}', 0o644)).warnings == ()


def test_key_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.model_validate({"model": "a/b", "api_key": "env:MY_KEY"})
    with pytest.raises(UsageError, match="'MY_KEY', which is not set"):
        settings.llm_config()
    monkeypatch.setenv("MY_KEY", "sk-1")
    key = settings.llm_config().api_key
    assert key is not None
    assert key.get_secret_value() == "sk-1"


def test_key_is_not_shown() -> None:
    settings = Settings.model_validate({"api_key": "sk-secret"})
    assert "sk-secret" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_model_config_gets_what_is_set_and_leaves_the_rest() -> None:
    config = Settings.model_validate({"model": "a/b", "reasoning_effort": "low", "top_p": 0.5}).llm_config()
    assert (config.model, config.reasoning_effort, config.top_p, config.temperature) == ("a/b", "low", 0.5, 0.0)


def test_no_model_is_an_error_with_both_remedies() -> None:
    with pytest.raises(UsageError, match='--model provider/model, or set "model"'):
        Settings().llm_config()


VALUES: dict[str, tuple[Any, str, Any]] = {
    "model": ("a/file", "a/variable", "a/flag"),
    "api_key": ("k-file", "k-variable", "k-flag"),
    "base_url": ("http://file", "http://variable", "http://flag"),
    "api_version": ("1", "2", "3"),
    "custom_llm_provider": ("a", "b", "c"),
    "model_client": ("litellm", "auto", "litellm"),
    "temperature": (0.1, "0.2", 0.3),
    "reasoning_effort": ("low", "medium", "high"),
    "max_output_tokens": (1, "2", 3),
    "top_k": (1, "2", 3),
    "context_tokens": (1, "2", 3),
    "top_p": (0.1, "0.2", 0.3),
    "price": ((1.0, 2.0), "3,4", (5.0, 6.0)),
    "native_tool_calling": (False, "true", False),
    "vision": (False, "1", False),
    "prompt_cache": (True, "false", True),
    "image": ("file", "variable", "flag"),
    "network": ("none", "open", "allowlist"),
    "allow": (("packages",), "a.example.org, *.b.example.org", ("c.example.org:8443",)),
    "forward": (("3000",), "8000:80, 3000", ("0:80",)),
    "expose_host": ((5432,), "6379, 5432", (80,)),
    "git": ("ro", "rw", "guarded"),
    "hard_links": ("keep", "separate", "keep"),
    "instructions": ("/file", "/variable", "/flag"),
    "memory": (64 << 20, "1g", 2 << 30),
    "cpus": (1.0, "1.5", 2.0),
    "pids": (100, "200", 300),
    "disk": (64 << 20, "65m", 66 << 20),
    "accept_unenforced": (True, "false", True),
    "user": ("1", "2", "3"),
    "cache": ("one", "two", "three"),
    "platform": ("linux/amd64", "linux/arm64", "linux/amd64"),
    "gpus": ("1", "all", "2"),
    "oci_runtime": ("runc", "runsc", "runc"),
    "profile": ("strict", "trusted", "strict"),
    "ca_bundle": ("/file", "/variable", "/flag"),
    "max_iterations": (1, "2", 3),
    "max_time_s": (1.0, "2", 3.0),
    "max_tokens": (1, "2", 3),
    "max_cost_usd": (1.0, "2.5", 3.0),
    "checkpoints": (True, "false", True),
    "stuck_detection": (True, "0", True),
    "nudge_after": (4, "5", 6),
    "stuck_after": (7, "8", 9),
    "confirm": ("never", "always", "risky"),
    "skill_servers": ("ask", "allow", "never"),
    "bell": (True, "false", True),
}


def test_each_setting_with_a_variable_has_a_row() -> None:
    assert Settings.variables() == {name: f"OHSANDBOX_{name.upper()}" for name in VALUES}


@pytest.mark.parametrize("name", VALUES)
def test_flag_stands_above_variable_and_variable_above_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file, in_variable, flag = VALUES[name]
    path = write(tmp_path, json.dumps({name: in_file}))
    assert plain(Settings.load(path), name) == in_file
    monkeypatch.setenv(f"OHSANDBOX_{name.upper()}", in_variable)
    of_variable = Settings.model_validate({name: in_variable})
    assert plain(Settings.load(path), name) == plain(of_variable, name) != in_file
    assert plain(Settings.load(path, **{name: flag}), name) == flag != plain(of_variable, name)
    monkeypatch.setenv(f"OHSANDBOX_{name.upper()}", "")
    assert plain(Settings.load(path), name) == in_file


def plain(settings: Settings, name: str) -> object:
    value = getattr(settings, name)
    return value.get_secret_value() if name == "api_key" else value


@pytest.mark.parametrize("name", VALUES)
def test_a_project_stands_above_the_file_and_below_the_variable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file, in_project, in_variable = VALUES[name]
    path, project = write(tmp_path, json.dumps({name: in_file})), SettingsLayer({name: in_project}, "Project file 'p'")
    settings = Settings.load(path, project=project)
    assert plain(settings, name) == plain(Settings.model_validate({name: in_project}), name) != in_file
    assert settings.sources == {name: "project file 'p'"}
    monkeypatch.setenv(f"OHSANDBOX_{name.upper()}", str(in_variable).lower().strip("(,)'"))  # a price is a pair
    settings = Settings.load(path, project=project)
    assert plain(settings, name) == in_variable
    assert settings.sources == {name: f"environment variable OHSANDBOX_{name.upper()}"}


def test_objects_of_a_project_are_put_over_those_of_the_file_key_by_key(tmp_path: Path) -> None:
    values = {"tools": {"enable_search": False, "also": ["x"]}, "secrets": {"A": "env:A", "B": "env:B"}}
    project = SettingsLayer(
        {"tools": {"also": []}, "secrets": {"B": "env:C"}, "output": {"max_chars": 7000}}, "Project"
    )
    settings = Settings.load(write(tmp_path, json.dumps(values)), project=project)
    assert (settings.tools.enable_search, settings.tools.also) == (False, ())
    assert settings.secrets == {"A": "env:A", "B": "env:C"}
    assert settings.output.max_chars == 7000


def test_wrong_variable_is_named_and_its_value_is_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OHSANDBOX_MAX_ITERATIONS", "canary")
    with pytest.raises(UsageError, match="Environment variable OHSANDBOX_MAX_ITERATIONS: key") as caught:
        Settings.load(write(tmp_path, "{}"))
    assert "canary" not in str(caught.value)


def test_misspelt_variables_are_told_once_each_without_their_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(tmp_path, "{}")
    for name in ("MODLE", "LLM_MODEL", "APIKEY", "TOOLS", "HOEM", "TOKEN", "TEST_IMAGE", "MCP", "FOO"):
        monkeypatch.setenv(f"OHSANDBOX_{name}", "canary")
    assert Settings.load(path).warnings == (
        "Environment variable OHSANDBOX_APIKEY is not used. Did you mean OHSANDBOX_API_KEY?",
        "Environment variable OHSANDBOX_HOEM is not used. Did you mean OHSANDBOX_HOME?",
        "Environment variable OHSANDBOX_LLM_MODEL is not used. Did you mean OHSANDBOX_MODEL?",
        "Environment variable OHSANDBOX_MODLE is not used. Did you mean OHSANDBOX_MODEL?",
        "Environment variable OHSANDBOX_TOOLS is not used: write 'tools' into the settings file.",
    )


# --- OpenHands' file --------------------------------------------------------------------------------------------------

SDK_SETTINGS = {
    "model": "openai/gpt-5",
    "api_key": "env:MY_KEY",
    "base_url": None,
    "temperature": 0.5,
    "reasoning_effort": "low",
    "mcp": {
        "sse_servers": ["https://a.example/sse", {"url": "https://b.example/sse", "api_key": "k"}],
        "shttp_servers": [{"url": "https://c.example/mcp", "api_key": "k2", "timeout": 60}, "https://d.example/mcp"],
        "stdio_servers": [{"name": "fetch", "command": "uvx", "args": ["mcp-server-fetch"], "env": {"A": "b"}}],
    },
}


@pytest.mark.parametrize(
    ("file", "variables", "told"),
    [
        ({"confirm": "always"}, {"CONFIRM": "never"}, "OHSANDBOX_CONFIRM='never' stands above 'confirm' 'always' of"),
        ({"git": "ro"}, {"GIT": "rw"}, "OHSANDBOX_GIT='rw' stands above 'git' 'ro' of settings file"),
        ({"network": "none"}, {"NETWORK": "open"}, "`unset OHSANDBOX_NETWORK` for the file's."),
        ({"checkpoints": True}, {"CHECKPOINTS": "false"}, "OHSANDBOX_CHECKPOINTS='false' stands above 'checkpoints'"),
        ({"api_key": "of-file"}, {"API_KEY": "of-env"}, "variable OHSANDBOX_API_KEY stands above 'api_key' of"),
        ({"base_url": "http://a:b@c/v1"}, {"BASE_URL": "http://d:e@f/v1"}, "='http://***@f/v1' stands above"),
        ({"confirm": "always"}, {"CONFIRM": "always"}, None),
        ({"checkpoints": True}, {"CHECKPOINTS": "true"}, None),
        ({}, {"CONFIRM": "never"}, None),
        ({"max_tokens": 5}, {"MAX_TOKENS": "6"}, None),  # a flag stands above both
    ],
)
def test_a_variable_above_another_value_of_the_file_is_told_in_one_line_without_secrets(
    file: dict[str, object],
    variables: dict[str, str],
    told: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OHSANDBOX_{name}", value)
    path = write(tmp_path, json.dumps(file))
    lines = Settings.load(path, max_tokens=7).warnings
    assert len(lines) == (told is not None)
    for line in lines:
        assert str(told) in line
        assert str(path) in line
        assert not any(secret in line for secret in ("of-file", "of-env", "a:b", "d:e"))


@pytest.mark.parametrize("kept", [None, "https://a.example/v1"])
def test_the_key_of_the_file_is_not_sent_to_the_server_of_a_variable(
    kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_BASE_URL", "https://me:word@b.example/v1")
    path = write(tmp_path, json.dumps({"model": "a/b", "api_key": "hunter2", "base_url": kept}))
    settings = Settings.load(path).with_flags(confirm="never")
    with pytest.raises(
        UsageError, match=r"OHSANDBOX_BASE_URL='https://\*\*\*@b.example/v1' names another server"
    ) as refused:
        settings.llm_config()
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({"API_KEY": "own"}, {}),
        ({}, {"api_key": "own"}),
        ({}, {"base_url": "https://c.example"}),
        ({"BASE_URL": "https://A.example/v2"}, {}),
    ],
)
def test_a_key_and_a_server_of_one_source_or_the_same_server_are_used(
    variables: dict[str, str], flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"BASE_URL": "https://b.example/v1"} | variables).items():
        monkeypatch.setenv(f"OHSANDBOX_{name}", value)
    path = write(tmp_path, json.dumps({"model": "a/b", "api_key": "own", "base_url": "https://a.example/v1"}))
    assert Settings.load(path, **flags).llm_config().model == "a/b"


@pytest.mark.parametrize(
    ("model", "variable"), [("gpt-4o", "OPENAI_BASE_URL"), ("openai/x", "OPENAI_API_BASE"), ("groq/x", "GROQ_API_BASE")]
)
def test_a_provider_s_own_variable_that_leads_the_file_s_key_elsewhere_is_told(
    model: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "https://b.example")
    [line] = Settings.load(write(tmp_path, json.dumps({"model": model, "api_key": "hunter2"}))).warnings
    assert f"{variable}='https://b.example' says where the api_key of settings file" in line
    assert "hunter2" not in line


@pytest.fixture
def sdk_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with settings of OpenHands and none of ours."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OHSANDBOX_HOME", raising=False)
    (tmp_path / ".openhands").mkdir(mode=0o700)
    file = tmp_path / ".openhands" / "settings_sdk.json"
    file.write_text(json.dumps(SDK_SETTINGS))
    file.chmod(0o600)
    return tmp_path


def test_settings_of_openhands_are_read_where_ours_are_missing_and_one_line_says_how_to_move_them(
    sdk_home: Path,
) -> None:
    settings = Settings.load()
    assert (settings.model, settings.temperature, settings.reasoning_effort) == ("openai/gpt-5", 0.5, "low")
    assert settings.base_url is None
    [line] = settings.warnings
    assert line.startswith(f"Settings are read from '{sdk_home}/.openhands/settings_sdk.json'")
    assert "\n" not in line
    subprocess.run(["/bin/sh", "-c", line.partition("To move them: ")[2]], check=True)
    moved = Settings.load()
    assert moved.warnings == ()
    assert moved.model_dump() == settings.model_dump()


def test_our_own_file_and_a_state_directory_of_ones_own_stand_before_those_of_openhands(
    sdk_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sdk_home / ".ohsandbox").mkdir(mode=0o700)
    (sdk_home / ".ohsandbox" / "settings.json").write_text('{"model": "a/own"}')
    assert (Settings.load().model, Settings.load().warnings) == ("a/own", ())
    monkeypatch.setenv("OHSANDBOX_HOME", str(sdk_home / "elsewhere"))
    assert Settings.load() == Settings()


def test_settings_of_openhands_that_others_may_write_are_refused(sdk_home: Path) -> None:
    (sdk_home / ".openhands" / "settings_sdk.json").chmod(0o666)
    with pytest.raises(UsageError, match="may be written by other users"):
        Settings.load()


def test_each_unknown_key_of_openhands_is_one_line_and_the_rest_is_used(tmp_path: Path) -> None:
    file = tmp_path / "settings_sdk.json"
    file.write_text(json.dumps({"model": "a/b", "agent": "CodeActAgent", "language": "en", "temperature": None}))
    settings = Settings.load(file)
    assert settings.model == "a/b"
    told = [
        f"Settings file {str(file)!r}: ohsandbox has no setting {key!r}; it is not used."
        for key in ("agent", "language")
    ]
    assert list(settings.warnings) == told


def test_servers_of_openhands_become_ours() -> None:
    config = MCPConfig.parse(Settings.model_validate(SDK_SETTINGS).mcp_config or {})
    assert {name: (one.url or one.command, one.transport, one.headers) for name, one in config.servers.items()} == {
        "sse1": ("https://a.example/sse", "sse", {}),
        "sse2": ("https://b.example/sse", "sse", {"Authorization": "Bearer k"}),
        "shttp1": ("https://c.example/mcp", "http", {"Authorization": "Bearer k2"}),
        "shttp2": ("https://d.example/mcp", "http", {}),
        "fetch": ("uvx", None, {}),
    }
    fetch = config.servers["fetch"]
    assert (fetch.args, fetch.env, fetch.runs_in) == (("mcp-server-fetch",), {"A": "b"}, "sandbox")
    assert config.servers["shttp1"].timeout == 60


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ({"sse_servers": [{"url": "https://a", "name": "x"}], "mcpServers": {"x": {"command": "y"}}}, "named 'x'"),
        ({"sse_servers": [{"url": "https://a", "api_key": "k", "headers": {"authorization": "z"}}]}, "Leave one out"),
        ({"sse_servers": [{"url": "https://a", "type": "http"}]}, "transport 'http'"),
        ({"stdio_servers": ["https://a"]}, "`name`, `command` and `args`"),
        ({"shttp_servers": [{"url": "https://a", "key": "k"}]}, "unknown key 'key'"),
        ({"ws_servers": []}, "Unknown key 'ws_servers'"),
    ],
)
def test_conflict_or_unknown_key_of_a_server_is_an_error_of_one_line(servers: dict[str, object], told: str) -> None:
    with pytest.raises(MCPConfigError) as caught:
        MCPConfig.parse(servers)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
