"""What a person writes for a credential, and the header and placeholders that it becomes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.network.credentials.credentials import PRESETS, Credential, parse_credentials

if TYPE_CHECKING:
    from pathlib import Path

KEY = "sk-real-0123456789abcdefghij"
ENVIRON = {"TOKEN": KEY, "BROKEN": "a\r\nx-evil: 1", "EMPTY": "", "WIDE": "schlüssel"}


def _one(flag: str) -> Credential:
    (found,) = parse_credentials([flag], environ=ENVIRON)
    return found


@pytest.mark.parametrize(
    ("flag", "host", "port", "header", "value"),
    [
        ("api.example.org=env:TOKEN", "api.example.org", 443, "authorization", f"Bearer {KEY}"),
        ("API.Example.ORG.=env:TOKEN,bearer", "api.example.org", 443, "authorization", f"Bearer {KEY}"),
        ("api.example.org:8443=env:TOKEN,header:X-Api-Key", "api.example.org", 8443, "x-api-key", KEY),
        (
            "git.example.org=env:TOKEN,basic:me", "git.example.org", 443, "authorization",
            "Basic " + base64.b64encode(f"me:{KEY}".encode()).decode(),
        ),
    ],
)  # fmt: skip
def test_a_flag_says_host_value_and_header(flag: str, host: str, port: int, header: str, value: str) -> None:
    found = _one(flag)
    assert (found.host, found.port, found.header, found.header_value.decode()) == (host, port, header, value)
    assert found.placeholders == (("TOKEN", "ohsandbox-placeholder"),)


def test_a_value_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key,with,commas"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    found = _one(f"api.example.org=file:{path},header:x-key")
    assert (found.value, found.header, found.placeholders) == (KEY, "x-key", ())


@pytest.mark.parametrize("word", PRESETS)
def test_a_preset_finds_its_variable_and_fills_it_with_a_placeholder_inside(word: str) -> None:
    variable = PRESETS[word].variables[-1]
    found = parse_credentials([word], environ={variable: KEY})
    assert {one.value for one in found} == {KEY}
    inside = dict(pair for one in found for pair in one.placeholders)
    assert variable in inside
    assert KEY not in inside.values()
    assert "placeholder" in inside[variable]


def test_a_preset_takes_another_variable() -> None:
    assert {one.value for one in parse_credentials(["github=env:TOKEN"], environ=ENVIRON)} == {KEY}


@pytest.mark.parametrize(
    "flag",
    [
        KEY, f"api.example.org={KEY}", "api.example.org", "api.example.org=", "api.example.org=env:", "gihub",
        "=env:TOKEN", "*.example.org=env:TOKEN", "https://api.example.org=env:TOKEN", "127.0.0.1=env:TOKEN",
        "0x7f.1=env:TOKEN", "2130706433=env:TOKEN", "[::1]=env:TOKEN", "localhost=env:TOKEN",
        "me@example.org=env:TOKEN", "a b.example.org=env:TOKEN", "api.example.org:0=env:TOKEN",
        "api.example.org:99999=env:TOKEN", "api.example.org=env:TOKEN,header:host", "api.example.org=env:TOKEN,header:",
        "api.example.org=env:TOKEN,header:Proxy-Authorization", "api.example.org=env:TOKEN,header:a\r\nb",
        "api.example.org=env:TOKEN,basic:", "api.example.org=env:TOKEN,basic:a b", "api.example.org=env:BROKEN",
        "api.example.org=env:EMPTY", "api.example.org=env:WIDE", "api.example.org=env:MISSING",
        "api.example.org=env:PATH", "api.example.org=file:/nowhere/at/all",
    ],
)  # fmt: skip
def test_what_is_no_credential_is_refused_in_one_line_that_quotes_no_value(flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_credentials([flag], environ=ENVIRON)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert "evil" not in str(caught.value)


def test_a_word_that_is_nearly_a_preset_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"Did you mean 'github'\? Write HOST=env:NAME or HOST=file:PATH, or"):
        parse_credentials(["gihub"], environ=ENVIRON)


def test_a_preset_without_its_variable_names_all_that_it_takes() -> None:
    with pytest.raises(UsageError, match=r"GH_TOKEN or GITHUB_TOKEN is not set.* or github=file:PATH"):
        parse_credentials(["github"], environ={})
    with pytest.raises(UsageError, match="'OTHER'"):
        parse_credentials(["github=env:OTHER"], environ={})


@pytest.mark.parametrize("form", ["basic", "heador:X-Api-Key", "token"])
def test_a_form_that_is_none_is_told_with_those_there_are(form: str) -> None:
    with pytest.raises(UsageError, match=r"form that is not known.*,bearer or ,header:NAME or ,basic:USER"):
        parse_credentials([f"api.example.org=env:TOKEN,{form}"], environ=ENVIRON)


def test_two_credentials_for_one_host_are_refused() -> None:
    with pytest.raises(UsageError, match="two credentials"):
        parse_credentials(["api.example.org=env:TOKEN", "API.example.org=env:TOKEN,basic:x"], environ=ENVIRON)


def test_repr_hides_the_value() -> None:
    shown = repr(_one("api.example.org=env:TOKEN,basic:me"))
    assert KEY not in shown
    assert "api.example.org" in shown
