"""What a verdict is, and what cannot change it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.evaluation.task import Files, Verifier
from ohsandbox.evaluation.verifier import KEPT_BYTES, NoVerdict, Printed, run_verifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.evaluation.verifier import Score

IMAGE = "ohsandbox-base:debian"
ONE = "echo 1 >/logs/verifier/reward.txt"
ZERO = "echo 0 >/logs/verifier/reward.txt"
LOGS = "mkdir -p /logs/verifier && chmod 777 /logs/verifier; "


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerRuntime]:
    with DockerRuntime(IMAGE) as runtime:
        assert runtime.run(["useradd", "-m", "agent"]).exit_code == 0
        yield runtime


def agent_does(sandbox: DockerRuntime, command: str, user: str = "root") -> None:
    """Do what an agent might; then all its processes end, as in a trial."""
    done = sandbox.run(["/bin/sh", "-c", command], user=user)
    assert done.exit_code == 0, done.stderr
    sandbox.end_processes()


def judge(sandbox: DockerRuntime, command: str, directory: Path, **asked: object) -> Score:
    verifier = Verifier.model_validate({"command": command, **asked})
    return run_verifier(sandbox, verifier, directory / "verifier", timeout_s=20, cancel=threading.Event())


def test_of_long_output_the_beginning_and_the_end_are_kept() -> None:
    printed = Printed(kept_bytes=4)
    for one in b"abcdefghijklmnopqrstuvwxyz":
        printed.add(bytes([one]))
    assert printed.text() == b"abcd\n[... 18 bytes left out ...]\nwxyz"


@pytest.mark.parametrize("size", [0, 3, 4, 8])
def test_short_output_is_kept_whole(size: int) -> None:
    printed = Printed(kept_bytes=4)
    printed.add(b"12345678"[:size])
    assert printed.text() == b"12345678"[:size]


@pytest.mark.docker
@pytest.mark.parametrize(
    "forged",
    [
        f"{LOGS}{ONE}",
        "rm -rf /logs/verifier; mkdir -p /logs/verifier/reward.txt/x",
        "rm -rf /logs; mkdir /elsewhere; ln -s /elsewhere /logs; mkdir /logs/verifier; " + ONE,
        "rm -rf /logs/verifier; mkdir -p /logs /other; ln -s /other /logs/verifier; " + ONE,
        "rm -rf /logs; echo a file >/logs",
        f"{LOGS}chmod 000 /logs/verifier; seq 20000 | (cd /logs/verifier; xargs touch); {ONE}",
        f"{LOGS}setsid sh -c 'while :; do {ONE}; sleep 0.02; done' >/dev/null 2>&1 & sleep 0.1",
    ],
    ids=["file", "directory", "logs a link", "verifier a link", "logs a file", "many files", "daemon"],
)
def test_a_reward_that_the_agent_has_written_does_not_count(
    sandbox: DockerRuntime, forged: str, tmp_path: Path
) -> None:
    agent_does(sandbox, forged)
    with pytest.raises(NoVerdict, match="wrote neither"):
        judge(sandbox, "sleep 0.2; exit 0", tmp_path)
    assert judge(sandbox, ZERO, tmp_path).reward == 0


@pytest.mark.docker
def test_a_fork_bomb_of_another_user_is_over_before_the_verdict(sandbox: DockerRuntime, tmp_path: Path) -> None:
    bomb = f"b() {{ {ONE}; b | b & }}; b >/dev/null 2>&1; sleep 0.5"
    agent_does(sandbox, LOGS + "true")
    sandbox.run(["/bin/sh", "-c", bomb], user="agent")  # its own shell may fail to fork
    sandbox.end_processes()
    counted = 'sleep 0.2; n=$(ls -d /proc/[0-9]* | wc -l); [ "$n" -lt 12 ] && echo 0 >/logs/verifier/reward.txt'
    assert judge(sandbox, counted, tmp_path).reward == 0


@pytest.mark.docker
@pytest.mark.parametrize(
    "planted",
    [
        "mkdir -p /tests; echo 'raise SystemExit(0)' >/tests/conftest.py; echo 'echo 1' >/tests/test.sh",
        "rm -rf /tests; mkdir -p /mine; echo planted >/mine/conftest.py; ln -s /mine /tests",
        "rm -rf /tests; echo a file >/tests",
    ],
    ids=["files", "link", "file"],
)
def test_tests_come_in_after_the_agent_and_alone(sandbox: DockerRuntime, planted: str, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("#!/bin/sh\nls /tests | wc -l >/logs/verifier/reward.txt\n")
    (tmp_path / "tests" / "test.sh").chmod(0o600)
    agent_does(sandbox, planted)
    files = [{"target": "/tests", "source": tmp_path / "tests"}]
    assert judge(sandbox, "/tests/test.sh", tmp_path, files=files, user="agent").reward == 1


@pytest.mark.docker
def test_what_is_printed_is_no_verdict_and_its_ends_are_kept(sandbox: DockerRuntime, tmp_path: Path) -> None:
    with pytest.raises(NoVerdict, match="exit code 3"):
        judge(sandbox, "echo PASSED; seq 2000000; echo PASSED; exit 3", tmp_path)
    kept = (tmp_path / "verifier" / "test-stdout.txt").read_bytes()
    assert (kept[:9], kept[-15:]) == (b"PASSED\n1\n", b"2000000\nPASSED\n")
    assert len(kept) < 2 * KEPT_BYTES + 99


@pytest.mark.docker
def test_a_verifier_that_hangs_is_stopped_with_all_that_it_started(sandbox: DockerRuntime, tmp_path: Path) -> None:
    verifier = Verifier(command=f"sleep 1000 & echo begun; sleep 1000; {ONE}")
    with pytest.raises(TimeoutError, match="took longer than"):
        run_verifier(sandbox, verifier, tmp_path, timeout_s=0.5, cancel=threading.Event())
    assert (tmp_path / "test-stdout.txt").read_bytes() == b"begun\n"
    assert b"sleep\0001000" not in sandbox.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout


@pytest.mark.docker
@pytest.mark.parametrize(
    ("written", "reward"),
    [("printf 1 >reward.txt", 1), ('echo \'{"a": 0.5, "reward": 1}\' >reward.json; echo 0 >reward.txt', 1)],
)
def test_a_reward_is_a_finite_number(sandbox: DockerRuntime, written: str, reward: float, tmp_path: Path) -> None:
    assert judge(sandbox, f"cd /logs/verifier; {written}", tmp_path).reward == reward


@pytest.mark.docker
@pytest.mark.parametrize(
    "written",
    ["echo nan >reward.txt", "echo '{}' >reward.json", "echo '{\"a\": \"x\"}' >reward.json", ": >reward.txt",
     "ln -s /etc/hostname reward.txt", "mkdir reward.json", "head -c 100000 /dev/zero >reward.txt"],
)  # fmt: skip
def test_what_is_no_reward_is_no_verdict(sandbox: DockerRuntime, written: str, tmp_path: Path) -> None:
    with pytest.raises(NoVerdict):
        judge(sandbox, f"cd /logs/verifier; {written}", tmp_path)


@pytest.mark.docker
def test_a_verifier_that_writes_too_much_has_its_verdict(sandbox: DockerRuntime, tmp_path: Path) -> None:
    assert judge(sandbox, f"truncate -s 300M /logs/verifier/core; {ONE}", tmp_path).reward == 1
    assert "more than" in (tmp_path / "verifier" / "left-out.txt").read_text()


@pytest.mark.docker
def test_named_tests_must_all_have_passed(sandbox: DockerRuntime, tmp_path: Path) -> None:
    printed = "printf 'PASSED t.py::a\\nFAILED t.py::b\\nPASSED t.py::c\\n'"
    files = [Files(target="/tests", texts={"x": "y"})]
    score = judge(sandbox, printed, tmp_path, verdict="tests", must_pass=["t.py::a", "t.py::b"], files=files)
    assert score.rewards == {"reward": 0, "passed": 1, "failed": 1}
    assert judge(sandbox, printed, tmp_path, verdict="tests", must_pass=["t.py::a", "t.py::c"]).reward == 1


@pytest.mark.docker
def test_tests_that_print_in_a_form_that_is_not_known_give_no_verdict(sandbox: DockerRuntime, tmp_path: Path) -> None:
    with pytest.raises(NoVerdict, match="no test's outcome in a form that is known"):
        judge(sandbox, "echo '--- PASS: TestA (0.00s)'", tmp_path, verdict="tests", must_pass=["TestA"])
