"""What a wheel of ohsandbox contains."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    [
        "py.typed",
        "network/programs/connector-x86_64",
        "network/programs/connector-aarch64",
        "llm/scripts/demo.json",
        "evaluation/reports/templates/style.css",
        "cli/viewer/assets/style.css",
    ],
)
def test_the_wheel_contains_files_that_are_no_modules(name: str) -> None:
    """Hatchling takes every file of a package that git does not ignore, unless a filter is configured."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert config["build-system"]["build-backend"] == "hatchling.build"
    assert config["tool"]["hatch"] == {"build": {"targets": {"wheel": {"packages": ["ohsandbox"]}}}}
    path = ROOT / "ohsandbox" / name
    assert path.is_file()
    ignored = subprocess.run(["git", "check-ignore", "-q", str(path)], cwd=ROOT, check=False)
    assert ignored.returncode == 1
