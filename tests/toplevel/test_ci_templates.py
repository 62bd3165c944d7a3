"""The templates of docs/ci: their steps run here in order, with stand-ins for what the CI system itself does."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from tests.evaluation.test_run_on_an_engine import IMAGE, write_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
GITHUB, GITLAB = ROOT / "docs/ci/github-actions.yml", ROOT / "docs/ci/gitlab-ci.yml"
SECRET = "sk-ant-test-0123456789abcdefghij"
TASKS = 5
"""As many broken tasks are the fewest that a comparison takes for more than chance."""


class Ended(NamedTuple):
    """A step's or a job's end."""

    code: int
    printed: str


class Machine:
    """Where the steps of a job run: this host, or a container that has the engine's socket."""

    def __init__(self, workspace: Path, *, container: bool = False) -> None:
        self.workspace, self._container = workspace, container
        workspace.mkdir(parents=True)

    def run(self, script: str, env: Mapping[str, str]) -> Ended:
        """Run a step's script as both systems do: by bash, which ends at the first failure."""
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        path = f"{self.workspace.parent / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        # installing finds the package of this tree, which must be the template's version; to look at its dependencies,
        # which are here, takes pip 2.5 s more
        fixed = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
        env = {
            **env,
            **fixed,
            "HOME": str(self.workspace.parent),
            "OHSANDBOX_HOME": str(self.workspace.parent / "home"),
        }
        if self._container:
            shell = [*self._container_command(env), *shell]
        done = subprocess.run(
            shell, cwd=self.workspace, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return Ended(done.returncode, done.stdout)

    def _container_command(self, env: Mapping[str, str]) -> list[str]:
        """Our tree, its environment and Python are mounted, read-only, where they are here."""
        read = {str(ROOT), sys.prefix, sys.base_prefix, *(name for name in sys.path if Path(name).is_dir())}
        mounts = [f"{name}:{name}:ro" for name in sorted(read)]
        mounts += [f"{self.workspace.parent}:{self.workspace.parent}", "/var/run/docker.sock:/var/run/docker.sock"]
        volumes = [part for mount in mounts for part in ("--volume", mount)]
        variables = [part for name in env for part in ("--env", name)]
        return ["docker", "run", "--rm", "--network", "none", *volumes, *variables, "-w", str(self.workspace), IMAGE]


def checkout(workspace: Path) -> None:
    """What a repository of the user holds: tasks whose solutions print what looks like the provider's key."""
    for number in range(TASKS):
        write_task(workspace / "tasks" / f"task-{number}", solution=f"echo {SECRET}; echo 42 >/tmp/answer")


class GitHub:
    """GitHub Actions, as far as the template needs it."""

    def __init__(self, place: Path, *, agent: str = "oracle", container: bool = False, attempt: int = 1) -> None:
        text = GITHUB.read_text().replace("--agent oracle", f"--agent {agent}")
        self._in_container = container
        self.workflow = yaml.safe_load(text.replace("# container:", "container:") if container else text)
        assert not container or self.workflow["jobs"]["shard"]["container"] == "python:3.12"
        self.place, self.attempt, self.summaries = place, attempt, place / f"summary-{attempt}.md"
        for name in ("cache", "artifacts", "bin"):
            (place / name).mkdir(parents=True, exist_ok=True)
        (place / "bin" / "gh").write_text(_GH)
        (place / "bin" / "gh").chmod(0o755)

    def job(self, name: str, **matrix: int) -> dict[str, Ended]:
        """Run a job; return the ends of its named steps."""
        job, ends, code = self.workflow["jobs"][name], dict[str, Ended](), 0
        values = {f"matrix.{key}": str(value) for key, value in matrix.items()} | {
            "github.run_id": "77", "github.run_attempt": str(self.attempt), "github.token": "ghs_token",
            "secrets.ANTHROPIC_API_KEY": SECRET,
        }  # fmt: skip
        label = "-".join([name, *map(str, matrix.values()), str(self.attempt)])
        machine = Machine(self.place / label, container=self._in_container and "container" in job)
        env = self.workflow["env"] | {
            "GITHUB_STEP_SUMMARY": str(self.summaries), "GITHUB_REPOSITORY": "owner/repository",
            "GITHUB_ACTIONS": "true",
        }  # fmt: skip
        for written in job["steps"]:
            if code and written.get("if") != "always()":
                continue
            step = _filled(written, values)
            if "uses" in step:
                self._use(step["uses"].partition("@")[0], step.get("with", {}), machine.workspace)
                continue
            ends[step["name"]] = machine.run(step["run"], env | step.get("env", {}))
            code = code or ends[step["name"]].code
        return ends

    def _use(self, action: str, given: dict[str, Any], workspace: Path) -> None:
        cache, artifacts = self.place / "cache", self.place / "artifacts"
        match action:
            case "actions/checkout":
                checkout(workspace)
            case "actions/setup-python":
                assert tuple(map(int, given["python-version"].split("."))) >= (3, 11)
            case "actions/cache/restore":
                found = sorted(cache.glob(f"{given['key']}*")) or sorted(cache.glob(f"{given['restore-keys']}*"))
                if found:
                    shutil.copytree(found[-1], workspace / given["path"])
            case "actions/cache/save":
                shutil.copytree(workspace / given["path"], cache / given["key"])
            case "actions/upload-artifact":
                source, target = workspace / given["path"], artifacts / given["name"]
                target.mkdir()
                shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy2(source, target)
            case "actions/download-artifact":
                for artifact in artifacts.glob(given["pattern"]):
                    shutil.copytree(artifact, workspace / given["path"], dirs_exist_ok=True)
            case _:
                raise AssertionError(f"no stand-in for {action}")


_GH = """#!/bin/bash
: "${GH_TOKEN:?}" "${BASELINES:=$HOME/baselines}"
case "$*" in
  "run list "*) [ ! -d "$BASELINES" ] || echo 76 ;;
  "run download 76 "*) while [ "$1" != --dir ]; do shift; done; cp -r "$BASELINES"/* "$2" ;;
  *) echo "unexpected: gh $*" >&2; exit 2 ;;
esac
"""


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """The step with its expressions replaced."""
    if isinstance(value, dict):
        return {key: _filled(one, values) for key, one in value.items()}
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: values[match[1]], value) if isinstance(value, str) else value


def codes(ends: Mapping[str, Ended]) -> dict[str, int]:
    return {name: end.code for name, end in ends.items()}


def all_bytes(place: Path) -> bytes:
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> GitHub:
    """A first run on main, all of whose jobs succeeded."""
    first = GitHub(tmp_path_factory.mktemp("github"))
    for shard in first.workflow["jobs"]["shard"]["strategy"]["matrix"]["shard"]:
        ends = first.job("shard", shard=shard)
        assert set(codes(ends).values()) == {0}, ends
        assert SECRET not in str(ends)
    ends = first.job("report")
    assert set(codes(ends).values()) == {0}, ends
    assert "There is no baseline yet" in ends["Compare with the baseline"].printed
    return first


@pytest.mark.slow
def test_github_jobs_make_one_report_and_go_on_when_run_again(first: GitHub) -> None:
    place = first.place
    assert sorted(path.name for path in (place / "artifacts" / "report-1").iterdir()) == [
        "junit.xml", "report.html", "report.json", "summary.md",
    ]  # fmt: skip
    summary = (place / "artifacts" / "report-1" / "summary.md").read_text()
    report = json.loads((place / "artifacts" / "report-1" / "report.json").read_text())
    assert (report["complete"], report["outcomes"]["pass"]) == (True, TASKS)
    assert first.summaries.read_text().count("# ") == summary.count("# ")
    for results in place.glob("*/results"):
        assert SECRET.encode() not in all_bytes(results)
    again = GitHub(place, attempt=2)
    assert set(codes(again.job("shard", shard=1)).values()) == {0}
    old, new = (
        {path.parts[-3]: path.read_text() for path in (place / f"shard-1-{n}").rglob("result.json")} for n in (1, 2)
    )
    assert old == new
    assert set(codes(again.job("report")).values()) == {0}


@pytest.mark.slow
def test_github_fails_for_a_regression_alone(first: GitHub, tmp_path: Path) -> None:
    branch = GitHub(tmp_path / "branch", agent="nop")
    shutil.copytree(first.place / "artifacts" / "report-1", tmp_path / "branch" / "baselines" / "report-1")
    for shard in (1, 2):
        assert set(codes(branch.job("shard", shard=shard)).values()) == {0}
    ends = branch.job("report")
    assert [name for name, code in codes(ends).items() if code] == ["Compare with the baseline"], ends
    assert ends["Compare with the baseline"].code == 1
    assert "task-0" in branch.summaries.read_text().rpartition("```\n")[0].rpartition("```\n")[2]
    assert (tmp_path / "branch" / "artifacts" / "report-1" / "compare.html").is_file()


@pytest.mark.slow
@pytest.mark.one_engine
def test_github_shards_run_in_a_container_job(tmp_path: Path) -> None:
    inside = GitHub(tmp_path, container=True)
    ends = inside.job("shard", shard=2)
    assert set(codes(ends).values()) == {0}, ends
    results = [json.loads(path.read_text())["outcome"] for path in (tmp_path / "shard-2-1").rglob("result.json")]
    assert results == ["pass"] * (TASKS // 2)


class Packages(http.server.BaseHTTPRequestHandler):
    """GitLab's generic package registry."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        assert self.headers["JOB-TOKEN"] == "glcbt-token"
        self.send_response(200 if self.path in self.files else 404)
        self.end_headers()
        self.wfile.write(self.files.get(self.path, b""))

    def do_PUT(self) -> None:
        assert self.headers["JOB-TOKEN"] == "glcbt-token"
        self.files[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of an empty registry."""
    handler = type("EmptyPackages", (Packages,), {"files": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class GitLab:
    """A pipeline of GitLab, as far as the template needs it; shards run in containers, the report on this host."""

    def __init__(self, place: Path, registry: str, *, agent: str = "oracle", branch: str = "main") -> None:
        # curl and jq of the job's image are not in ours
        text = GITLAB.read_text().replace(".ohsandbox, .engine-of-the-job", ".ohsandbox, .engine-of-the-runner")
        self.pipeline = yaml.safe_load(text.replace("--agent oracle", f"--agent {agent}"))
        self.place = place
        self.env = {
            "CI_API_V4_URL": registry, "CI_PROJECT_ID": "5", "CI_PIPELINE_ID": "9", "CI_COMMIT_BRANCH": branch,
            "CI_DEFAULT_BRANCH": "main", "CI_JOB_TOKEN": "glcbt-token", "ANTHROPIC_API_KEY": SECRET,
        }  # fmt: skip

    def job(self, name: str, node: int = 1) -> Ended:
        """Run a job; return its end. after_script runs in any case, and its failure is none of the job's."""
        job: dict[str, Any] = {}
        extends = self.pipeline[name]["extends"]
        for part in (*([extends] if isinstance(extends, str) else extends), name):
            job |= self.pipeline[part]
        machine = Machine(self.place / f"{name}-{node}", container=name == "shard")
        nodes = {"CI_NODE_INDEX": str(node), "CI_NODE_TOTAL": str(job.get("parallel", 1))}
        env = self.env | nodes | {"CI_PROJECT_DIR": str(machine.workspace)}
        for variable, value in self.pipeline["variables"].items():
            env[variable] = re.sub(r"\$(\w+)", lambda match: env[match[1]], value)
        checkout(machine.workspace)
        for packed in self.place.glob("artifacts/*.tar.gz"):
            shutil.copy2(packed, machine.workspace)
        end = machine.run("\n".join([*job["before_script"], *job["script"]]), env)
        assert machine.run("\n".join(job.get("after_script", ["true"])), env).code == 0
        (self.place / "artifacts").mkdir(exist_ok=True)
        for pattern in job["artifacts"]["paths"]:
            found = [*machine.workspace.glob(pattern)]
            assert found, f"{name} leaves no {pattern}: {end.printed}"
            for one in found:
                shutil.move(one, self.place / "artifacts" / one.name)
        return end

    def shards(self) -> None:
        """Run all jobs of the first stage."""
        for node in range(1, self.pipeline["shard"]["parallel"] + 1):
            end = self.job("shard", node)
            assert end.code == 0, end.printed
            assert SECRET not in end.printed


@pytest.mark.slow
@pytest.mark.one_engine
def test_gitlab_jobs_in_containers_make_a_baseline_and_fail_for_a_regression(tmp_path: Path, registry: str) -> None:
    main = GitLab(tmp_path / "main", registry)
    main.shards()
    end = main.job("report")
    assert end.code == 0, end.printed
    assert "There is no baseline yet" in end.printed
    report = json.loads((tmp_path / "main" / "artifacts" / "report" / "report.json").read_text())
    assert (report["complete"], report["outcomes"]["pass"]) == (True, TASKS)
    assert (tmp_path / "main" / "artifacts" / main.pipeline["report"]["artifacts"]["reports"]["junit"]).is_file()
    branch = GitLab(tmp_path / "branch", registry, agent="nop", branch="topic")
    branch.shards()
    end = branch.job("report")
    assert (end.code, "task-0" in end.printed) == (1, True), end.printed
    assert "glcbt-token" not in end.printed
    assert (tmp_path / "branch" / "artifacts" / "report" / "compare.html").is_file()


def test_versions_are_pinned() -> None:
    uses = re.findall(r"uses: (\S+)", GITHUB.read_text())
    assert uses
    assert [one for one in uses if not re.fullmatch(r"[\w/-]+@v\d+", one)] == []
    images = re.findall(r'(?:image|container): (\S+)|services: \["(\S+)"\]', GITHUB.read_text() + GITLAB.read_text())
    assert {left or right for left, right in images} == {"python:3.12", "docker:28-dind"}


def test_code_of_a_fork_runs_without_secrets() -> None:
    triggers = yaml.safe_load(GITHUB.read_text())[True]  # `on`, as YAML 1.1 reads it
    assert set(triggers) == {"push", "pull_request"}
