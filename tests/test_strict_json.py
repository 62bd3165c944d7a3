"""JSON of a person: nothing is dropped, nothing guessed, and no size or depth is a traceback."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.llm.scripted import parse_script
from ohsandbox.mcp.config import MCPConfig
from ohsandbox.settings import Settings
from ohsandbox.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

BAD = [
    ('{"network": "none", "image": "a", "network": "open"}', "'network' stands twice"),
    ('{"tools": {"enable_browsing": false, "enable_browsing": true}}', "'enable_browsing' stands twice"),
    ('{"tools": {}, "secrets": [{"a": 1, "a": 1}]}', "'a' stands twice"),
    ('{"net\\u0077ork": "none", "network": "open"}', "'network' stands twice"),
    ('{"max_time_s": NaN}', "NaN is not a JSON number"),
    ('{"max_time_s": -Infinity}', "Infinity is not a JSON number"),
    ('{"max_time_s": 1e999}', "1e999 is too large"),
    ('{"max_iterations": 1' + "0" * 5000 + "}", "is too large"),
    ('{"max_iterations": 36893488147419103232}', "is too large"),
    ("[" * 200_000, "nested too deep"),
    ('{"a":' * 100_000, "nested too deep"),
]


@pytest.mark.parametrize(("text", "fact"), BAD)
def test_a_settings_file_a_server_list_and_a_script_are_read_strictly(text: str, fact: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    for read in (lambda: Settings.load(path), lambda: MCPConfig.load(path), lambda: parse_script(text, name="s")):
        with pytest.raises(UsageError, match=fact) as caught:
            read()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


def test_many_keys_take_linear_time() -> None:
    text = "{" + ",".join(f'"{number}": 0' for number in range(200_000)) + ', "7": 1}'
    began = time.monotonic()
    with pytest.raises(ValueError, match="'7' stands twice"):
        parse_json(text)
    assert time.monotonic() - began < 20


def test_a_byte_order_mark_is_no_part_of_it() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, -2, 0.5, true, null, "\xc3\xa9"]}') == {
        "a": [1, -2, 0.5, True, None, "é"]
    }
    assert parse_json('\ufeff{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError, match="not UTF-8"):
        parse_json('{"a": 1}'.encode("utf-16"))


def test_a_settings_file_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="it is not a regular file"):
        Settings.load("/dev/zero")
