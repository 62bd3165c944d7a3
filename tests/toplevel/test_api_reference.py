"""The generated pages say what the source says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("generator", ["generate_api.py", "generate_command_line.py"])
def test_a_generated_page_is_up_to_date(generator: str) -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "docs" / generator, "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
