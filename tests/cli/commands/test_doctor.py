import json
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

pytestmark = pytest.mark.usefixtures("no_engine")


def _checks(invoke: Invoke) -> dict[str, dict[str, str]]:
    ended = invoke("doctor", "--json")
    assert ended.code == 4
    return {check["name"]: check for check in json.loads(ended.out)}


def _settings(home: Path, text: str) -> None:
    (home / ".ohsandbox").mkdir()
    (home / ".ohsandbox" / "settings.json").write_text(text)


def test_a_missing_engine_fails_with_a_remedy(invoke: Invoke) -> None:
    check = _checks(invoke)["engine"]
    assert check["status"] == "fail"
    assert check["remedy"]


def test_a_person_reads_a_table(invoke: Invoke) -> None:
    ended = invoke("doctor")
    assert ended.code == 4
    assert "fail" in ended.out
    assert "→" in ended.out


def test_a_missing_key_is_a_warning_that_names_the_variable(invoke: Invoke, home: Path) -> None:
    _settings(home, '{"model": "anthropic/claude-sonnet-4-5"}')
    check = _checks(invoke)["model key"]
    assert (check["status"], check["remedy"]) == ("warn", "run `ohsandbox init`, or set ANTHROPIC_API_KEY")


def test_a_key_is_never_printed(invoke: Invoke, home: Path) -> None:
    _settings(home, '{"model": "openai/gpt-5", "api_key": "sk-canary-4711"}')
    ended = invoke("doctor")
    assert "canary" not in ended.out + ended.err
    assert "other users may read it" in ended.out


def test_malformed_settings_are_a_failed_check(invoke: Invoke, home: Path) -> None:
    _settings(home, "{")
    assert _checks(invoke)["settings"]["status"] == "fail"


def test_a_state_directory_that_others_may_write_has_one_remedy(invoke: Invoke, home: Path) -> None:
    _settings(home, "{}")
    (home / ".ohsandbox").chmod(0o777)
    check = _checks(invoke)["settings"]
    assert "`chmod 700 " in check["value"]
    assert "remove" not in check["value"] + check["remedy"]


def test_a_project_file_that_is_not_trusted_is_a_warning_with_its_remedy(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "a project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    assert _checks(invoke)["project file"]["value"] == "none here"
    (directory / ".ohsandbox.toml").write_text("max_tokens = 10")
    assert "only narrows" in _checks(invoke)["project file"]["value"]
    (directory / ".ohsandbox.toml").write_text("network = 'open'")
    check = _checks(invoke)["project file"]
    assert check["status"] == "warn"
    assert "not used of it: network" in check["value"]
    assert check["remedy"].endswith(f"`ohsandbox trust '{directory}'`")
    assert invoke("trust", "--yes").code == 0
    assert _checks(invoke)["project file"]["status"] == "ok"
    (directory / ".ohsandbox.toml").write_text("networ = 'open'")
    assert _checks(invoke)["project file"]["status"] == "fail"


@pytest.mark.parametrize("model", ["anthropic/claude-sonet-4-5", "antropic/claude-sonnet-4-5"])
def test_a_slip_in_the_model_s_name_is_a_warning_with_the_nearest_one(invoke: Invoke, home: Path, model: str) -> None:
    _settings(home, json.dumps({"model": model}))
    check = _checks(invoke)["model"]
    assert (check["status"], check["remedy"]) == ("warn", "Did you mean 'anthropic/claude-sonnet-4-5'?")


def test_where_the_key_is_is_told(invoke: Invoke, home: Path) -> None:
    _settings(home, '{"model": "openai/gpt-5", "api_key": "env:A_KEY"}')
    assert "A_KEY" in _checks(invoke)["model key"]["value"]
