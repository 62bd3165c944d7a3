"""What handles foreign text without a regular expression grows with it, too: masking, cleaning, matching, parsing."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox import review_text, strict_json
from ohsandbox.cli.rendering.markdown import StreamedMarkdown
from ohsandbox.errors import OhsandboxError
from ohsandbox.llm.text_calls import find_call
from ohsandbox.mcp import content as mcp_text
from ohsandbox.mcp.skill_files import KEY
from ohsandbox.mcp.skills import _parsed_yaml
from ohsandbox.runtime.files.operations import error_of
from ohsandbox.runtime.shell import terminal
from ohsandbox.runtime.shell.output import Capture
from ohsandbox.secrets import Masker
from ohsandbox.text import cut_middle
from ohsandbox.tools.file_editor.matching import explain_miss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHORT, LONG = 16_000, 64_000
RATIO = 8
"""What LONG may take in units of SHORT: linear is 4, quadratic 16."""
NOISE_S = 0.25
"""A machine at work loses this much at any moment; what is quadratic and slow enough to matter takes more."""

SURE_S = 5.0
"""What takes longer is not asked again. Below that, SHORT may have been fast as it fits into the processor's caches:
`tokenize` takes 24 ms for 16,000 characters, 208 for 64,000 and 439 for 128,000. LONG and four times LONG decide."""

SEEDS = {
    "returns": "\r", "blanks": " ", "newlines": "\n", "letters": "a", "escapes": "\x1b", "osc": "\x1b]0;x",
    "csi": "\x1b[", "c1": "\x9d", "bytes": "\ufffd", "marks": "\u202e", "combining": "a\u0301", "mixed": "p\u0430",
    "quotes": "\"'`", "backslashes": "\\", "brackets": "[{(", "tags": "<a>", "ends": "</", "progress": "10%\r",
    "lines": "a = 1\n", "tabs": "\tx\n", "secret": "s3cr3t-val", "fences": "```\n", "stars": "**_", "bars": "|a|b\n",
}  # fmt: skip

MASKER = Masker({"TOKEN": "s3cr3t-value-of-somebody", "OTHER": "aaaaaaaaaaaaaaab"})
SCHEMAS = {"a": {"text": {"type": "string"}}}


def _capture(text: str) -> None:
    kept = Capture()
    data = text.encode("utf-8", "replace")
    for at in range(0, len(data), 512):
        kept.feed(data[at : at + 512])
        kept.last(256)
    kept.read(final=True, masker=MASKER)


def _stream(text: str) -> None:
    masking = MASKER.stream()
    for at in range(0, len(text), 64):
        masking.feed(text[at : at + 64])
    masking.flush()


def _blocks(text: str) -> None:
    shown = StreamedMarkdown(MASKER)
    for at in range(0, len(text), 64):
        shown.feed(text[at : at + 64])
    shown.end(text)


FUNCTIONS: dict[str, Callable[[str], object]] = {
    "clean": lambda text: terminal.clean(text.encode("utf-8", "replace")),
    "sanitize": terminal.sanitize_for_terminal,
    "capture": _capture,
    "visible": review_text.visible,
    "concealed_in": review_text.concealed_in,
    "mask": MASKER.mask,
    "mask_cut": MASKER.mask_cut,
    "mask a stream": _stream,
    "cut_middle": lambda text: cut_middle(text, limit_chars=1000),
    "mcp text": lambda text: mcp_text.visible_line(text, limit_chars=500),
    "json": strict_json.parse_json,
    "json array": lambda text: strict_json.parse_json(f"[{','.join('1' * (len(text) // 2))}]"),
    "servers of a skill": lambda text: _parsed_yaml(f"{KEY}: {text}".encode("utf-8", "replace")),
    "written calls": lambda text: find_call(f"<a><text>{text}</text></a>", {"a": SCHEMAS["a"]}),
    "no match in a file": lambda text: explain_miss(text, text[:300] + "?"),
    "errors of tools": lambda text: error_of(text.encode("utf-8", "replace"), 1, "/file"),
    "answers by blocks": _blocks,
}


def _took(function: Callable[[str], object], text: str, *, best_of: int) -> float:
    times = []
    for _ in range(best_of):
        began = time.process_time()
        with contextlib.suppress(OhsandboxError, ValueError):
            function(text)
        times.append(time.process_time() - began)
    return min(times)


def _grows_too_fast(
    function: Callable[[str], object], seeds: Mapping[str, str] = SEEDS
) -> dict[str, tuple[float, float]]:
    """Seconds for SHORT and LONG characters, by seed; what seems slow is measured again, and longer."""
    slow = {}
    for seed, unit in seeds.items():
        short, long, longer = ((unit * length)[:length] for length in (SHORT, LONG, 4 * LONG))
        seconds = _took(function, long, best_of=1)
        if seconds < NOISE_S or seconds < RATIO * _took(function, short, best_of=2):
            continue
        seconds, short_seconds = (_took(function, text, best_of=3) for text in (long, short))
        if seconds > RATIO * short_seconds and (
            seconds > SURE_S or _took(function, longer, best_of=1) > RATIO * seconds
        ):
            slow[seed] = (short_seconds, seconds)
    return slow


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_four_times_the_text_takes_about_four_times_the_time(name: str) -> None:
    assert not _grows_too_fast(FUNCTIONS[name])


def test_a_quadratic_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: used[0])

    def takes(nanoseconds: Callable[[int], int]) -> Callable[[str], object]:
        def function(text: str) -> None:
            used[0] += nanoseconds(len(text)) / 1e9

        return function

    assert _grows_too_fast(takes(lambda chars: chars**2), {"letters": "a"})
    assert not _grows_too_fast(takes(lambda chars: 10_000 * chars), {"letters": "a"})
