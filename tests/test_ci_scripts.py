"""The scripts of .ci that judge tests: which of them are flaky, and how often one fails under load."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS = Path(__file__).parents[1] / ".ci"
PASSED, FAILED = "", '<failure message="no">no</failure>'


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run passes.py on a test that has failed beside others and passed alone; `known` is the table of such tests."""

    def run(known: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / ".ci").mkdir()
        shutil.copy(SCRIPTS / "passes.py", tmp_path / ".ci")
        (tmp_path / ".ci/known-flaky.toml").write_text(known)
        case = '<testcase classname="tests.a.test_b" name="test_c[x/y]">{}</testcase>'
        case = f"<testsuites><testsuite>{case}</testsuite></testsuites>"
        (tmp_path / "junit-first.xml").write_text(case.format(FAILED))
        (tmp_path / "junit-again.xml").write_text(case.format(PASSED))
        return subprocess.run(
            [sys.executable, ".ci/passes.py"],
            cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_a_flaky_test_without_an_entry_is_told_and_fails_the_run_if_that_is_wanted(
    judge: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    judged = judge(UNLISTED_FLAKY="fail")
    assert (judged.returncode, judged.stderr) == (1, "")
    assert "UNLISTED FLAKY (failed beside others, passed alone) tests.a.test_b::test_c[x/y]" in judged.stdout


@pytest.mark.parametrize("name", ["test_c", "test_c[x/y]"])
def test_a_flaky_test_with_an_entry_is_told_with_since_when_and_why(
    judge: Callable[..., subprocess.CompletedProcess[str]], name: str
) -> None:
    judged = judge(f'["tests/a/test_b.py::{name}"]\nsince = 2026-11-28\nwhy = "a slow disk"', UNLISTED_FLAKY="fail")
    assert (judged.returncode, judged.stderr) == (0, "")
    assert judged.stdout == "FLAKY (known since 2026-11-28: a slow disk) tests.a.test_b::test_c[x/y]\n"


def test_each_entry_names_a_test_that_exists_and_a_date_and_a_reason() -> None:
    for test_id, entry in tomllib.loads((SCRIPTS / "known-flaky.toml").read_text()).items():
        path, _, name = test_id.partition("::")
        assert f"def {name.partition('[')[0]}(" in (SCRIPTS.parent / path).read_text(), test_id
        assert entry.keys() == {"since", "why"}
        assert isinstance(entry["since"], dt.date)
        assert entry["why"].strip()


@pytest.mark.slow
def test_a_test_that_fails_now_and_then_is_counted_with_its_first_text(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "from pathlib import Path\n"
        "def test_it():\n"
        "    try:\n"
        "        Path(__file__).with_name('ran').mkdir()\n"
        "    except FileExistsError:\n"
        "        return\n"
        "    pytest.fail('was the first')\n"
    )
    run = subprocess.run(
        [sys.executable, SCRIPTS / "flaky.py", "2", "test_it.py", "-W", "ignore"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (1, "")
    assert "1 x test_it::test_it" in run.stdout
    assert "was the first" in run.stdout
    assert run.stdout.split()[-4:] == ["2", "1", "1", "1"]
