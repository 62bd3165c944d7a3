"""Every regular expression of the package takes time in proportion to the text, whatever the text is.

`re` holds the interpreter's lock: a match that takes a minute stops all threads and Ctrl-C for a minute.
"""

from __future__ import annotations

import ast
import time
from collections import defaultdict
from typing import Any

import pytest

from tests.patterns import Found, Unread, in_objects, in_source, modules, text_of, units

LONG, SHORT = 4000, 500
RATIO = 24
"""What LONG may take in units of SHORT: linear is 8, quadratic 64."""
NOISE_S = 0.002
"""Less is not looked at: a quadratic pattern takes 20 ms and more for LONG."""

MADE_AT_RUN_TIME = {
    ("ohsandbox.integrations.swerex", "expect"): "the caller's own, as in SWE-ReX",
    ("ohsandbox.integrations.swerex", "one"): "the caller's own, as in SWE-ReX",
    ("ohsandbox.llm.openai_format", "pattern"): "a tool's schema's, which is compiled and matched with nothing",
    ("ohsandbox.llm.scripted", "pattern or ''"): "the author of a script's own",
    ("ohsandbox.llm.scripted", "self.expect_regex"): "the author of a script's own",
    (
        "ohsandbox.runtime.docker.channel",
        "b'%s (\\\\d{1,10})([^\\\\r\\\\n]*)\\\\r?\\\\n' % nonce.encode()",
    ): "begins with a secret",
    (
        "ohsandbox.runtime.docker.build_ignore",
        "fnmatch.translate(part)",
    ): "fnmatch's own, which never backtracks, on a name",
    (
        "ohsandbox.cli.interactive.input",
        "'|'.join(map(re.escape, sorted(self._texts, key=len, reverse=True)))",
    ): "marks of our own, escaped",
    ("ohsandbox.runtime.docker.error_mapping", "pattern"): "found in the tables it makes",
    ("ohsandbox.runtime.docker.usage", "line"): "of the three literals beside it, a line of a kernel's table each",
}
"""Calls of `re` whose pattern stands in no literal, and why that is no danger."""

TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}
READ = [found for name, tree in TREES.items() for found in in_source(name, tree)]


def found_patterns() -> dict[str, list[Found]]:
    """By module, each pattern once."""
    by_module: dict[str, list[Found]] = defaultdict(list)
    seen = {(found.pattern.pattern, found.pattern.flags) for found in READ if isinstance(found, Found)}
    for found in READ:
        if isinstance(found, Found):
            by_module[found.where.partition(":")[0]].append(found)
    for name in TREES:
        for pattern in in_objects(name):
            if (pattern.pattern, pattern.flags) not in seen:
                seen.add((pattern.pattern, pattern.flags))
                by_module[name].append(Found(name, pattern, frozenset({"search"})))
    return by_module


def seconds(found: Found, use: str, text: Any, *, best_of: int = 1) -> float:
    """The shortest time of some tries."""
    times = []
    for _ in range(best_of):
        began = time.perf_counter()
        if use in ("sub", "subn"):
            found.pattern.sub(text[:0], text)
        elif use == "finditer":
            [*found.pattern.finditer(text)]
        else:
            getattr(found.pattern, use)(text)
        times.append(time.perf_counter() - began)
    return min(times)


def grows_too_fast(found: Found, use: str, unit: tuple[str, str, str]) -> bool:
    """Whether eight times the text takes RATIO times as long, twice."""
    as_bytes = isinstance(found.pattern.pattern, bytes)
    long, short = (text_of(unit, length, as_bytes=as_bytes) for length in (LONG, SHORT))
    if seconds(found, use, long) < NOISE_S:
        return False
    for tries in (3, 7):
        slow = seconds(found, use, long, best_of=tries)
        if slow < NOISE_S or slow < RATIO * seconds(found, use, short, best_of=tries):
            return False
    return True


def test_every_pattern_is_known() -> None:
    assert {(call.module, call.source) for call in READ if isinstance(call, Unread)} == set(MADE_AT_RUN_TIME)


@pytest.mark.parametrize(("module", "patterns"), sorted(found_patterns().items()), ids=lambda value: str(value)[:60])
def test_time_grows_with_the_text_and_not_with_its_square(module: str, patterns: list[Found]) -> None:
    slow = {
        (found.where, found.pattern.pattern): (use, unit)
        for found in patterns
        for unit in dict.fromkeys(units(found.pattern))
        for use in found.uses
        if grows_too_fast(found, use, unit)
    }
    assert slow == {}, module
