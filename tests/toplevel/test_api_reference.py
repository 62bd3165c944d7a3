"""docs/api.md says what the docstrings say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_api_reference_is_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_api.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
