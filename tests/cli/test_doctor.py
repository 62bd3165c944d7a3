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
    assert (check["status"], check["remedy"]) == ("warn", "set ANTHROPIC_API_KEY")


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
