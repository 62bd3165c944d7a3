"""The outcome of each test, read from what real test programs print."""

from __future__ import annotations

import pytest

from ohsandbox.evaluation.printed_outcomes import failures, outcomes

PYTEST = """\
============================= test session starts ==============================
test_a.py .FsxXE                                                         [100%]
=================================== FAILURES ===================================
----------------------------- Captured stdout call -----------------------------
PASSED test_a.py::test_forged
ERROR    root:a.py:3 - pip's dependency resolver
=========================== short test summary info ============================
PASSED test_a.py::TestA::test_good
PASSED test_a.py::test_param[a - b]
PASSED test_a.py::test_param[x y]
PASSED test_a.py::test_param[[x] - y]
SKIPPED [1] test_a.py:12: not here
XFAIL test_a.py::test_known[- ] - a known bug
XPASS test_a.py::test_surprise - no longer
FAILED test_a.py::test_bad[a - b] - AssertionError: 1 - 2
FAILED test_a.py::test_plain - assert [1] == [2] - no
ERROR test_a.py::test_setup - RuntimeError: x
ERROR test_b.py
============== 1 failed, 2 passed, 1 skipped, 1 xfailed in 0.05s ===============
"""


def test_pytest_sums_up() -> None:
    assert outcomes(PYTEST) == {
        "test_a.py::TestA::test_good": "passed",
        "test_a.py::test_param[a - b]": "passed",
        "test_a.py::test_param[x y]": "passed",
        "test_a.py::test_param[[x] - y]": "passed",
        "test_a.py::test_known[- ]": "xfailed",
        "test_a.py::test_surprise": "xpassed",
        "test_a.py::test_bad[a - b]": "failed",
        "test_a.py::test_plain": "failed",
        "test_a.py::test_setup": "error",
        "test_b.py": "error",
    }


def test_colours_and_the_returns_of_a_terminal_do_not_matter() -> None:
    coloured = PYTEST.replace("PASSED", "\x1b[32mPASSED\x1b[0m").replace("\n", "\r\n")
    assert outcomes(coloured) == outcomes(PYTEST)


def test_pytest_tells_while_it_runs() -> None:
    text = "test_a.py::test_x[a b] PASSED   [ 50%]\ntest_a.py::test_y SKIPPED (not here) [100%]\n1 passed\n"
    assert outcomes(text) == {"test_a.py::test_x[a b]": "passed", "test_a.py::test_y": "skipped"}


DJANGO = """\
test_one (app.tests.OneTests) ... ok
test_two (app.tests.OneTests.test_two) ... FAIL
test_three (app.tests.OneTests)
A sentence about it. ... ok
test_four (app.tests.OneTests) ... System check identified no issues (0 silenced).
ok
test_five (app.tests.OneTests) ... skipped 'no database'
test_six (app.tests.OneTests) ... expected failure
test_seven (app.tests.OneTests) ... ERROR
======================================================================
FAIL: test_two (app.tests.OneTests.test_two)
"""


def test_unittest_and_django_tell_names_and_docstrings() -> None:
    assert outcomes(DJANGO) == {
        "test_one (app.tests.OneTests)": "passed",
        "test_two (app.tests.OneTests.test_two)": "failed",
        "A sentence about it.": "passed",
        "test_three (app.tests.OneTests)": "passed",
        "test_four (app.tests.OneTests)": "passed",
        "test_five (app.tests.OneTests)": "skipped",
        "test_six (app.tests.OneTests)": "xfailed",
        "test_seven (app.tests.OneTests)": "error",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test_a ok\ntest_b F\ntest_c E\ntest_d f\ntest_e s [OK]\n", "passed failed error xfailed skipped"),
        ("SWEBench results starts here\nPASSED\nSWEBench results ends here\n", "passed"),
        ("SWEBench results starts here\n\nFAILED\nSWEBench results ends here\n", "failed"),
        ("MLEBench results starts here\nALL TESTS PASSED\n", "passed"),
        ("... SWE Lancer success\n", "passed"),
        ("nothing of the kind\n", ""),
    ],
)
def test_others_have_a_form_of_their_own(text: str, expected: str) -> None:
    assert " ".join(outcomes(text).values()) == expected


def test_a_test_that_is_named_twice_has_the_worse_outcome() -> None:
    text = "PASSED a.py::x\nFAILED a.py::x - no\nPASSED a.py::x\n"
    assert outcomes(text) == {"a.py::x": "failed"}


def test_tests_that_must_pass_are_missing_when_they_were_not_run() -> None:
    must = ("test_a.py::TestA::test_good", "test_a.py::test_known[- ]", "test_a.py::test_bad[a - b]", "test_a.py::gone")
    assert failures(outcomes(PYTEST), must) == ["test_a.py::test_bad[a - b]", "test_a.py::gone"]


def test_a_name_that_was_cut_in_its_parameters_stands_for_all_that_begin_so() -> None:
    assert failures(outcomes(PYTEST), ("test_a.py::test_param[x", "test_a.py::test_param[a")) == []
    assert failures({"a[x y]": "passed", "a[x z]": "failed"}, ("a[x", "a", "a[]")) == ["a[x", "a", "a[]"]


def test_tests_that_passed_before_may_be_skipped_and_must_be_found() -> None:
    found = outcomes("PASSED a\nFAILED b\n")
    assert failures({**found, "c": "skipped"}, ("c",), ("a", "b", "c", "d")) == ["c", "b", "d"]


def test_only_what_is_between_the_marks_of_swe_bench_counts() -> None:
    text = "FAILED a\n+ : '>>>>> Start Test Output'\nPASSED a\n+ : '>>>>> End Test Output'\nFAILED b\n"
    assert outcomes(text) == {"a": "passed"}


def test_without_names_all_must_pass_and_skipped_ones_do_not_matter() -> None:
    assert failures({"a": "passed", "b": "skipped", "c": "xfailed"}, ()) == []
    assert failures({"a": "passed", "b": "xpassed", "c": "error"}, ()) == ["b", "c"]
