"""Task directories for tests: they look like those of public datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HARBOR = {
    "task.toml": """\
version = "1.0"

[metadata]
author_name = "Somebody"
difficulty = "easy"
tags = ["files"]

[verifier]
timeout_sec = 120.0

[agent]
timeout_sec = 300.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory = "2G"
storage = "10G"
""",
    "instruction.md": "<!-- harbor-canary GUID 1 -->\n\n# Add\n\nWrite the sum of 1 and 2 to /app/sum.txt.\n",
    "environment/Dockerfile": "FROM python:3.13-slim\nWORKDIR /app\n",
    "solution/solve.sh": "#!/bin/bash\necho 3 > /app/sum.txt\n",
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/sum.txt)" = 3 ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n',
    "tests/data/expected.txt": "3\n",
}
COMPOSE = """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
      - LANG=C.UTF-8
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
    deploy:
      resources:
        limits:
          cpus: '1'
"""
TERMINAL_BENCH = {
    "task.yaml": """\
# a canary
instruction: |
  Write the sum of 1 and 2
  to /app/sum.txt.
author_name: Somebody
author_email: somebody@example.org
difficulty: easy
category: file-operations
tags:
  - files
parser_name: pytest
max_agent_timeout_sec: 900.0
max_test_timeout_sec: 180.0
run_tests_in_same_shell: false
estimated_duration_sec: 3
expert_time_estimate_min: 5
junior_time_estimate_min: 15
""",
    "Dockerfile": "FROM python:3.13-slim\nWORKDIR /app\n",
    "docker-compose.yaml": COMPOSE,
    "run-tests.sh": "#!/bin/bash\npytest $TEST_DIR/test_outputs.py -rA\n",
    "solution.sh": "#!/bin/bash\necho 3 > /app/sum.txt\n",
    "tests/test_outputs.py": "def test_sum():\n    assert open('/app/sum.txt').read() == '3\\n'\n",
}


def write_tree(root: Path, files: dict[str, str], **changed: str | None) -> Path:
    """Write files below root; changed replaces some (`task_toml`, say, for task.toml), and None leaves one out."""
    by_name = {name.replace(".", "_").replace("/", "_").replace("-", "_"): name for name in files}
    for key, text in {**dict.fromkeys(by_name), **changed}.items():
        name = by_name[key]
        content = changed[key] if key in changed else files[name]
        if content is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content.encode())
        del text
    return root
