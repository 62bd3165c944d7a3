from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.secrets import Masker, MaskingFilter, Secrets, host_keys, parse_flags
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

VALUE = "v4lue-of-a-secret"


def test_flags_name_a_variable_another_one_or_a_file() -> None:
    assert parse_flags(["A", "B=env:C", "D=file:~/d"]) == {"A": "env:A", "B": "env:C", "D": "file:~/d"}


@pytest.mark.parametrize(
    "flag",
    [
        f"A={VALUE}",
        VALUE,
        f"A=env:{VALUE}",
        "A=",
        "A=file:",
        "PATH",
        "LD_PRELOAD=env:X",
        "OHSANDBOX_X",
        "1A",
        "",
        "A B",
    ],
)
def test_anything_else_is_refused_and_no_value_is_quoted(flag: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_flags([flag])
    assert VALUE not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_flags(["A", "A=env:B"])


def test_settings_hold_references_only(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"secrets": {"A": VALUE}}))
    with pytest.raises(UsageError, match="never the value") as refused:
        Settings.load(path)
    assert VALUE not in str(refused.value)
    path.write_text('{"secrets": {"A": "env:B"}}')
    assert Settings.load(path).secrets == {"A": "env:B"}


def test_values_come_from_variables_and_files_without_the_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("line one of it\nline two of it\r\n")
    file.chmod(0o600)
    secrets = Secrets.load({"A": "env:X", "B": f"file:{file}"}, environ={"X": VALUE})
    assert secrets.environment() == {"A": VALUE, "B": "line one of it\nline two of it"}
    assert secrets.variables({"C": "c"}) == {"C": "c", "secret:A": VALUE, "secret:B": secrets.environment()["B"]}
    assert secrets.warnings == ()
    assert VALUE not in repr(secrets)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"\n", "empty"), (b"a\0b", "NUL"), (b"\xff\xfe", "UTF-8"), (b"x" * 65537, "over 65536")],
)
def test_a_file_that_cannot_be_a_variable_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        Secrets.load({"A": f"file:{tmp_path / 'f'}"})


@pytest.mark.parametrize("reference", ["file:/nowhere/x", "file:/", "env:NOT_THERE"])
def test_a_value_that_is_not_there_is_one_line(reference: str) -> None:
    with pytest.raises(UsageError, match=r"[Ss]ecret 'A'"):
        Secrets.load({"A": reference}, environ={})


def test_a_file_that_others_read_and_a_short_value_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(VALUE)
    (tmp_path / "f").chmod(0o644)
    warnings = Secrets.load({"A": f"file:{tmp_path / 'f'}", "PIN": "env:PIN"}, environ={"PIN": "1234"}).warnings
    assert len(warnings) == 2
    assert "chmod 600" in warnings[0]
    assert "PIN" in warnings[1]
    assert "1234" not in warnings[1]


def test_the_models_own_key_is_not_given_to_a_sandbox() -> None:
    secrets = Secrets({"A": VALUE})
    with pytest.raises(UsageError, match="never enters a sandbox") as refused:
        secrets.hiding({"api_key": VALUE}, never=[VALUE])
    assert VALUE not in str(refused.value)


def test_hidden_values_are_masked_and_not_given() -> None:
    secrets = Secrets({"A": VALUE}).hiding({"OPENAI_API_KEY": "sk-0123456789abcdef"})
    assert secrets.environment() == {"A": VALUE}
    assert secrets.masker.mask(f"{VALUE} sk-0123456789abcdef") == "<secret:A> <secret:OPENAI_API_KEY>"


def test_keys_of_providers_are_found_by_name_and_placeholders_are_none() -> None:
    environ = {
        "OPENAI_API_KEY": "x" * 16,
        "LOCAL_API_KEY": "not-needed",
        "AWS_SECRET_ACCESS_KEY": "y" * 40,
        "LANG": "z" * 40,
    }
    assert host_keys(environ) == {"OPENAI_API_KEY": "x" * 16, "AWS_SECRET_ACCESS_KEY": "y" * 40}


def test_log_records_and_their_tracebacks_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(MaskingFilter(Masker({"A": VALUE})))
    try:
        int(VALUE)
    except ValueError:
        logging.getLogger("x").exception("failed with %s", VALUE)
    assert VALUE not in caplog.text
    assert "failed with <secret:A>" in caplog.text
    assert "with base 10: '<secret:A>'" in caplog.text
