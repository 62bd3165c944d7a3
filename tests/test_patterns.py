"""Every regular expression of the package takes time in proportion to the text, whatever the text is.

`re` holds the interpreter's lock: a match that takes a minute stops all threads and Ctrl-C for a minute.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from functools import cache
from typing import Any

import pytest

from tests.patterns import Found, Unread, in_objects, in_source, modules, text_of, units

LONG, SHORT = 4000, 500
RATIO = 24
"""What LONG may take in units of SHORT: linear is 8, quadratic 64."""
NOISE_S = 0.002
"""Less is not looked at: a quadratic pattern takes 20 ms and more for LONG."""
LONGER, SURE_RATIO = 16_000, 8
"""What takes longer for LONG only since a bound of the pattern, as `{1,999}`, lies between takes no longer for LONGER
than for LONG. Linear is 4, quadratic 16."""

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
        "ohsandbox.runtime.docker.images.build_ignore",
        "fnmatch.translate(quoted_brackets(part))",
    ): "fnmatch's own, which never backtracks, on a name",
    (
        "ohsandbox.cli.interactive.input",
        "'|'.join(map(re.escape, sorted(self._texts, key=len, reverse=True)))",
    ): "marks of our own, escaped",
    ("ohsandbox.runtime.docker.engine.error_mapping", "pattern"): "found in the tables it makes",
    ("ohsandbox.conversation.approvals.rules.programs", "given.pop('text')"): "found in the table it makes",
    (
        "ohsandbox.runtime.docker.monitoring.usage",
        "line",
    ): "one of the three literals beside it",
}
"""Calls of `re` whose pattern stands in no literal, and why that is no danger."""

USERS = [
    name for name, path in modules().items() if re.search(r"^\s*import re$", path.read_text("utf-8"), re.MULTILINE)
]
"""The modules that have patterns of their own. Only a test that is run imports them: all together take 18 s."""


@cache
def read(name: str) -> list[Found | Unread]:
    """What stands in calls of `re` of a module."""
    return [*in_source(name, ast.parse(modules()[name].read_text("utf-8")))]


def found_patterns(name: str) -> list[Found]:
    """Those of a module, each once; one of a table that stands in a call elsewhere is looked at there."""
    own = [found for found in read(name) if isinstance(found, Found)]
    loaded = [found for user in USERS if user in sys.modules for found in read(user)]
    seen = {(found.pattern.pattern, found.pattern.flags) for found in loaded if isinstance(found, Found)}
    made = {(one.pattern, one.flags): one for one in in_objects(name) if (one.pattern, one.flags) not in seen}
    return [*own, *(Found(name, pattern, frozenset({"search"})) for pattern in made.values())]


def seconds(found: Found, use: str, text: Any, *, best_of: int = 1) -> float:
    """The shortest processor time of some tries."""
    times = []
    for _ in range(best_of):
        began = time.thread_time()
        if use in ("sub", "subn"):
            found.pattern.sub(text[:0], text)
        elif use == "finditer":
            [*found.pattern.finditer(text)]
        else:
            getattr(found.pattern, use)(text)
        times.append(time.thread_time() - began)
    return min(times)


def grows_too_fast(found: Found, use: str, unit: tuple[str, str, str]) -> bool:
    """Whether eight times the text takes RATIO times as long, twice, and four times that SURE_RATIO times."""
    as_bytes = isinstance(found.pattern.pattern, bytes)
    long, short, longer = (text_of(unit, length, as_bytes=as_bytes) for length in (LONG, SHORT, LONGER))
    if seconds(found, use, long) < NOISE_S:
        return False
    for tries in (3, 7):
        slow = seconds(found, use, long, best_of=tries)
        if slow < NOISE_S or slow < RATIO * seconds(found, use, short, best_of=tries):
            return False
    return seconds(found, use, longer, best_of=3) > SURE_RATIO * seconds(found, use, long, best_of=7)


def test_every_pattern_is_known() -> None:
    calls = [call for name in modules() for call in read(name) if isinstance(call, Unread)]
    assert {(call.module, call.source) for call in calls} == set(MADE_AT_RUN_TIME)
    assert {name for name in modules() if read(name)} <= set(USERS)


@pytest.mark.slow
@pytest.mark.parametrize("module", USERS)
def test_time_grows_with_the_text_and_not_with_its_square(module: str) -> None:
    slow = {
        (found.where, found.pattern.pattern): (use, unit)
        for found in found_patterns(module)
        for unit in dict.fromkeys(units(found.pattern))
        for use in found.uses
        if grows_too_fast(found, use, unit)
    }
    assert slow == {}
