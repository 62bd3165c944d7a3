"""CLIRuntime's processes, whatever its own process was started as."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
from ohsandbox import CLIRuntime
with CLIRuntime(sys.argv[1], bubblewrap=False, quiet=True) as runtime:
    for signal in ("INT", "QUIT", "HUP"):
        print(runtime.execute(f"sh -c 'kill -{signal} $$; echo lives'").exit_code)
    print(runtime.run(["sh", "-c", "kill -INT $$; echo lives"]).cause)
    runtime.execute("sleep 60", idle_timeout_s=0.3)
    print(runtime.execute("C-c", is_input=True, timeout_s=10).exit_code)
    print(runtime.run(["no-such-program"]).exit_code)
"""


@pytest.mark.parametrize("started", ["trap '' INT QUIT HUP; exec", "exec"])
def test_ctrl_c_ends_a_command_though_the_host_program_ignores_it(tmp_path: Path, started: str) -> None:
    words = ["sh", "-c", f'{started} "$@"', "sh", sys.executable, "-c", PROGRAM, str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout.splitlines() == ["130", "131", "129", "signal 2", "130", "127"], told.stderr
