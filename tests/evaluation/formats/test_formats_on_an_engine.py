"""Tasks of each format, carried out: the solution passes and doing nothing does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.commands.eval import validate_tasks
from ohsandbox.cli.options.per_command import ValidateOptions
from tests.evaluation.formats.trees import COMPOSE, HARBOR, TERMINAL_BENCH, write_tree

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = "FROM ohsandbox-base:debian\nWORKDIR /app\n"
RUN_TESTS = """\
#!/bin/bash
echo "ERROR: a package manager is noisy"
[ "$(cat /app/sum.txt)" = "$(cat /data/expected.txt)" ] && outcome=PASSED || outcome=FAILED
[ -f $TEST_DIR/test_outputs.py ] || outcome=ERROR
echo "=== short test summary info ==="
echo "$outcome test_outputs.py::test_sum[a - b]"
echo "=== 1 test in 0.1s ==="
"""
LIST = """\
- id: listed
  image: ohsandbox-base:debian
  workdir: /work/here
  user: nobody
  files: {in/number.txt: "3"}
  prompt: Copy it.
  check: test "$(cat in/copy.txt)" = 3
  solution: cp in/number.txt in/copy.txt
"""


@pytest.mark.docker
def test_tasks_of_all_formats_are_carried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harbor = write_tree(tmp_path / "harbor", HARBOR, environment_Dockerfile=DOCKERFILE)
    (harbor / "tests" / ".harborignore").write_text("data\n")
    test = harbor / "tests" / "test.sh"
    test.write_text(test.read_text().replace("]; echo", "] && [ ! -e /tests/data ]; echo"))
    compose = COMPOSE.replace("    volumes:\n", "    volumes:\n      - ./data:/data:ro\n")
    terminal_bench = write_tree(
        tmp_path / "terminal-bench", TERMINAL_BENCH, Dockerfile=DOCKERFILE, docker_compose_yaml=compose,
        run_tests_sh=RUN_TESTS,
    )  # fmt: skip
    (terminal_bench / "data").mkdir()
    (terminal_bench / "data" / "expected.txt").write_text("3\n")
    (tmp_path / "tasks.yaml").write_text(LIST)
    assert validate_tasks([tmp_path], ValidateOptions(output=tmp_path / ".out", no_tui=True)) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert rows == [[name, "1", "0", "valid"] for name in ("harbor", "listed", "terminal-bench")]
