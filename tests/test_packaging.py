"""What a wheel of ohsandbox contains."""

import os
import subprocess
import sys
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
    wheel = config["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["ohsandbox"]
    assert set(wheel) == {"packages", "force-include"}
    path = ROOT / "ohsandbox" / name
    assert path.is_file()
    ignored = subprocess.run(["git", "check-ignore", "-q", str(path)], cwd=ROOT, check=False)
    assert ignored.returncode == 1


def run(*command: str | Path, **environ: str) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_a_wheel_built_of_an_sdist_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Its dependencies are those of this environment, by PYTHONPATH: an editable install is not followed from there."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "hatchling>=1.27")
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    sdist = next(tmp_path.glob("*.tar.gz"))
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", sdist)

    environ = {
        "PYTHONPATH": os.pathsep.join(one for one in sys.path if one.endswith("site-packages")),
        "OHSANDBOX_HOME": str(tmp_path / "home"),
    }
    where = run(python, "-P", "-c", "import ohsandbox; print(ohsandbox.__file__)", PYTHONSAFEPATH="1", **environ)
    said = run(venv / "bin/ohsandbox", "--version", **environ)
    helped = run(venv / "bin/ohsandbox", "images", "build", "--help", **environ)
    shipped = [*Path(where.strip()).parent.glob("runtime/docker/shipped/*/Dockerfile")]

    assert where.startswith(str(venv))
    assert said == f"ohsandbox 0.1.0 ({run('git', 'rev-parse', 'HEAD')[:12]})\n"
    assert "Usage" in helped
    assert sorted(path.parent.name for path in shipped) == ["browser", "default"]
