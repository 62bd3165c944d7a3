"""Reads the outcome of each test from the output of test programs: pytest, unittest, Django, SymPy and others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_TestOutcome = Literal["passed", "xfailed", "skipped", "xpassed", "failed", "error"]
_FROM_GOOD_TO_BAD: tuple[_TestOutcome, ...] = ("passed", "xfailed", "skipped", "xpassed", "failed", "error")
GOOD: frozenset[_TestOutcome] = frozenset({"passed", "xfailed"})
"""Outcomes that count as passed for a test that must pass, as SWE-bench counts."""
HARMLESS: frozenset[_TestOutcome] = GOOD | {"skipped"}
"""Outcomes that are accepted for any test where all must pass, as Terminal-Bench counts."""
_PYTEST: dict[str, _TestOutcome] = {
    "PASSED": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped", "XFAIL": "xfailed",
    "XPASS": "xpassed",
}  # fmt: skip
_UNITTEST: dict[str, _TestOutcome] = {
    "ok": "passed", "FAIL": "failed", "ERROR": "error", "skipped": "skipped", "expected failure": "xfailed",
    "unexpected success": "xpassed",
}  # fmt: skip
_SYMPY: dict[str, _TestOutcome] = {
    "ok": "passed",
    "F": "failed",
    "E": "error",
    "f": "xfailed",
    "X": "xpassed",
    "s": "skipped",
}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEGIN, _END = ">>>>> Start Test Output", ">>>>> End Test Output"
"""Scripts of SWE-bench run the tests between these two lines; everything outside is set-up."""
_SUMMARY_HEADER = re.compile(r"=+ short test summary info =+")
_SUMMARY = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS):? (\S.*)")
_PROGRESS = re.compile(
    r"(\S.{0,500}) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \([^()]{0,500}\))? {1,200}\[ {0,2}\d{1,3}%\]"
)
_COUNT = re.compile(r"\[\d+\] ")
_UNITTEST_END = re.compile(r"(ok|FAIL|ERROR|skipped|expected failure|unexpected success)(?: ['\"].*)?")
_UNITTEST_HEADING = re.compile(r"(FAIL|ERROR): (\S.*)")
_SYMPY_LINE = re.compile(r"(test_\w{1,200}) (ok|F|E|f|X|s)(?: \[[A-Z]+\])?")
_SUMMED_UP = re.compile(r"(SWEBench|SWE-Perf|MLEBench) results starts here")
_SWELANCER = re.compile(r"swe lancer (success|failure)", re.IGNORECASE)


def outcomes(printed: str) -> dict[str, _TestOutcome]:
    """Return the outcomes of all tests that a text names; of a test that is named twice the worse one.

    So a program under test that prints `PASSED name` cannot hide the line of a test that failed. Where pytest has
    summed up, only its summaries and its progress count, no other line. Names are pytest's node ids, or what unittest
    prints before ` ... `: `test_x (module.Class)`, or the first line of the test's docstring.
    """
    by_name: dict[str, _TestOutcome] = {}
    begin, end = printed.find(_BEGIN), printed.rfind(_END)
    if 0 <= begin < end:
        printed = printed[begin:end]
    for name, outcome in _named(_ESCAPE.sub("", printed)):
        previous = by_name.get(name, outcome)
        by_name[name] = max(previous, outcome, key=_FROM_GOOD_TO_BAD.index)
    return by_name


def failures(
    found: dict[str, _TestOutcome], must_pass: tuple[str, ...], must_not_fail: tuple[str, ...] = ()
) -> list[str]:
    """Return the tests that did not have the required outcome, or were not found.

    Where no tests are named, all failed ones.

    The lists of SWE-bench end some names in their parameters, as `test_a[x` for `test_a[x y]`: such a name stands for
    all that begin with it.
    """
    if not must_pass and not must_not_fail:
        return [name for name, outcome in found.items() if outcome not in HARMLESS]
    required = [(name, GOOD) for name in must_pass] + [(name, HARMLESS) for name in must_not_fail]
    return [name for name, good in required if not (met := _meant(found, name)) or not good.issuperset(met)]


def _meant(by_name: dict[str, _TestOutcome], name: str) -> list[_TestOutcome]:
    if name in by_name:
        return [by_name[name]]
    if name.count("[") <= name.count("]"):
        return []
    return [outcome for test, outcome in by_name.items() if test.startswith(name)]


def _named(printed: str) -> Iterator[tuple[str, _TestOutcome]]:
    lines = [line.rstrip() for line in printed.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    has_summary = any(map(_SUMMARY_HEADER.fullmatch, lines))
    in_summary, summed_up = not has_summary, ""
    unittest = _Unittest()
    for line in lines:
        if has_summary and line.startswith("="):
            in_summary = bool(_SUMMARY_HEADER.fullmatch(line))
        elif in_summary and (match := _SUMMARY.fullmatch(line)):
            yield from _of_summary(match[1], match[2])
        elif progress := _PROGRESS.fullmatch(line):
            yield progress[1], _PYTEST[progress[2]]
        elif begins := _SUMMED_UP.fullmatch(line):
            summed_up = begins[1]
        elif summed_up and line:
            yield summed_up, "passed" if line in {"PASSED", "ALL TESTS PASSED"} else "failed"
            summed_up = ""
        elif lancer := _SWELANCER.search(line):
            yield "SWE-Lancer", "passed" if lancer[1].lower() == "success" else "failed"
        elif not has_summary and (sympy := _SYMPY_LINE.fullmatch(line)):
            yield sympy[1], _SYMPY[sympy[2]]
        elif not has_summary:
            yield from unittest.read(line)


class _Unittest:
    """Parses the output of unittest with `-v`: a name, ` ... ` and the outcome, which may stand on a later line."""

    def __init__(self) -> None:
        self._begun: list[str] = []
        self._before = ""

    def read(self, line: str) -> Iterator[tuple[str, _TestOutcome]]:
        ended = None
        if heading := _UNITTEST_HEADING.fullmatch(line):
            yield heading[2], _UNITTEST[heading[1]]
        elif " ... " in line:
            name, _, status_text = line.rpartition(" ... ")
            # with a docstring, the name stands on a line of its own before the docstring's first line
            has_docstring = not name.startswith("test") and self._before.startswith("test")
            self._begun = [name, self._before] if has_docstring else [name]
            ended = _UNITTEST_END.fullmatch(status_text)
        elif self._begun:
            ended = _UNITTEST_END.fullmatch(line)
        if ended:
            yield from ((name, _UNITTEST[ended[1]]) for name in self._begun)
            self._begun = []
        self._before = line


def _of_summary(status: str, text: str) -> Iterator[tuple[str, _TestOutcome]]:
    """Parse a line of pytest's summary. PASSED lines have no ` - reason`, and parameters may contain that text."""
    if status == "SKIPPED" and _COUNT.match(text):
        return  # [2] path:line: reason, which names no test
    is_name = status == "PASSED" and text.endswith("]")
    yield text if is_name else _without_reason(text), _PYTEST[status]


def _without_reason(text: str) -> str:
    """Return the node id: the text up to the first ` - ` outside the brackets of its parameters."""
    bracket = text.find("[")
    first = text.find(" - ")
    if first < 0 or not 0 <= bracket < first:
        return text if first < 0 else text[:first]
    end = text.find("] - ", bracket)
    return text[: end + 1] if end >= 0 else text if text.endswith("]") else text[:first]
