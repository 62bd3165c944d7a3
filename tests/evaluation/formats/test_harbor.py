"""Harbor's tasks: what is read, and what is refused, with file and line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation.formats import InvalidTask, harbor
from tests.evaluation.formats.trees import HARBOR, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.task import Task


def read(root: Path, **changed: str | None) -> Task:
    return harbor.read(write_tree(root / "add", HARBOR, **changed))


def refused(root: Path, **changed: str | None) -> list[str]:
    with pytest.raises(InvalidTask) as caught:
        read(root, **changed)
    return [str(one).removeprefix(f"{root}/add/") for one in caught.value.problems]


def test_a_task_with_old_keys_is_read(tmp_path: Path) -> None:
    task = read(tmp_path)
    assert (task.id, task.format, task.metadata["difficulty"]) == ("add", "harbor", "easy")
    assert (task.environment.build, task.environment.cpus) == (tmp_path / "add/environment", 1)
    assert (task.environment.memory_bytes, task.environment.disk_bytes) == (2 * 1024**3, None)
    assert task.notes == ("the environment's storage is not bounded",)
    [step] = task.steps
    assert step.instruction == "# Add\n\nWrite the sum of 1 and 2 to /app/sum.txt.\n"
    assert (step.agent.timeout_s, step.verifier.timeout_s) == (300, 120)
    assert step.verifier.command == "/tests/test.sh"
    assert step.solution is not None
    assert step.solution.command == "chmod +x /solution/solve.sh && /solution/solve.sh"


@pytest.mark.parametrize(
    ("environment", "agent", "verifier"),
    [
        ("", "none", "open"),
        ("allow_internet = true", "open", "open"),
        ("allow_internet = false", "none", "none"),
        ('network_mode = "public"', "open", "open"),
        ('network_mode = "no-network"', "none", "none"),
        ('network_mode = "no-network"\nallow_internet = true', "none", "none"),
    ],
)
def test_the_environment_says_which_network_both_phases_have(
    tmp_path: Path, environment: str, agent: str, verifier: str
) -> None:
    [step] = read(tmp_path, task_toml=f"[environment]\n{environment}\n").steps
    assert (step.agent.network, step.verifier.network) == (agent, verifier)


def test_a_phase_has_the_last_word_about_its_network(tmp_path: Path) -> None:
    text = '[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "no-network"\n'
    [step] = read(tmp_path, task_toml=text).steps
    assert (step.agent.network, step.verifier.network) == ("none", "open")


def test_a_list_of_hosts_is_that_of_its_phase(tmp_path: Path) -> None:
    text = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["A.example.org", "*.b.example.org"]\n'
    [step] = read(tmp_path, task_toml=text).steps
    assert (step.agent.network, step.agent.allow) == ("allowlist", ("a.example.org", "*.b.example.org"))
    assert (step.verifier.network, step.verifier.allow) == ("open", ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[agent]\ntimeout = 3\n", "task.toml:2: unknown key 'agent.timeout': did you mean 'timeout_sec'?"),
        ("[agent]\nmemory_mb = 3\n", "task.toml:2: unknown key 'agent.memory_mb': it belongs in"),
        ("[agent]\nname = 'x'\n", "task.toml:2: unknown key 'agent.name': it belongs in task or"),
        ("[agent]\nnonsense = 1\n", "task.toml:2: unknown key 'agent.nonsense': what only describes belongs in"),
        ("[agent]\ntimeout_sec = -1\n", "task.toml:2: agent.timeout_sec = -1: expected greater than 0"),
        ("[agent]\ntimeout_sec = inf\n", "task.toml:2: agent.timeout_sec = inf: expected a finite number"),
        ("[agent]\nuser = 1.5\n", "task.toml:2: agent.user = 1.5: expected a string or an integer"),
        ("\n[environment\n", "task.toml:2: not TOML: "),
        ('schema_version = "2.0"\n', "task.toml:1: schema_version: '2.0' is not known: expected 1.0 to 1.4"),
        ("version = 1.0\n", "task.toml:1: version = 1.0: expected a valid string"),
        ('[environment]\nmemory = "lots"\n', "task.toml:1: environment: memory = 'lots': expected a size such as 2G"),
        ('[environment]\nmemory = "2G"\nmemory_mb = 1\n', "task.toml:1: environment: memory = '2G' contradicts"),
        ("[environment]\nmemory_mb = 1\n", "task.toml:2: environment.memory_mb: SandboxLimits(...)"),
        ("[environment]\ngpus = 1\n", "task.toml:2: environment.gpus: gpus are not supported"),
        ('[environment]\nos = "Windows"\n', "task.toml:2: environment.os: sandboxes run Linux"),
        ('[environment]\ndocker_image = "UPPER/x"\n', "task.toml:2: environment.docker_image: 'UPPER/x' is not"),
        ('[environment]\nworkdir = "/proc/1"\n', "task.toml:2: environment.workdir: workdir="),
        ('[environment.env]\n"A-B" = "1"\n', "task.toml:1: environment.env: Environment name 'A-B' is invalid"),
        ('[environment.env]\nA = "a\\u0000b"\n', "task.toml:2: environment.env.A: holds a NUL character"),
        ('[environment.env]\nA = "${NO_SUCH}"\n', "task.toml:2: environment.env.A: ${NO_SUCH} is not set here: set it"),
        (
            '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.1"]\n',
            "task.toml:3: agent.allowed_hosts: Invalid network rule '10.0.0.1'",
        ),
        (
            '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["private:x.org"]\n',
            "task.toml:3: agent.allowed_hosts: 'private:x.org' is for the person who runs the task",
        ),
        ('[agent]\nallowed_hosts = ["x.org"]\n', "task.toml:1: agent: allowed_hosts is only valid with network_mode"),
        ('artifacts = ["/a/../b"]\n', "task.toml:1: artifacts.0.source: '/a/../b' has '..' in it"),
        ('[[artifacts]]\nsource = "/a"\ndestination = "../b"\n', "task.toml:3: artifacts.0.destination: '../b'"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"\n', "task.toml: two [[steps]] have the same name"),
        ('[[steps]]\nname = "../a"\n', "task.toml:2: steps.0.name: '../a': expected the name of a directory in steps/"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n', "task.toml:1: verifier: "),
        ("a = " + "[" * 50_000, "task.toml: not TOML that is read: nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_task_toml_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    [*problems] = refused(tmp_path, task_toml=text)
    assert any(one.startswith(told) for one in problems), problems


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "[agent]\nuser = []\n[verifier]\nretries = 3\ntimeout_sec = 'soon'\n"
    assert len(refused(tmp_path, task_toml=text)) == 3
    problems = refused(tmp_path / "2", tests_test_sh=None, instruction_md="\n", environment_Dockerfile=None)
    assert [re.sub(":.*", "", one) for one in problems] == ["environment/Dockerfile", "instruction.md", "tests/test.sh"]


def test_a_value_of_the_host_is_taken_by_name_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE", "here")
    text = '[verifier.env]\nA = "${JUDGE}"\nB = "${NO_SUCH:-there}"\nC = "x${JUDGE}"\n'
    task = read(tmp_path, task_toml=text)
    assert task.steps[0].verifier.env == {"A": "here", "B": "there", "C": "x${JUDGE}"}
    assert task.notes == ("takes JUDGE from this machine's environment",)


def test_harborignore_leaves_files_of_tests_and_solution_out(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "add", HARBOR)
    (root / "tests" / ".harborignore").write_text("data/*\n!data/keep.txt\n*.pyc\n")
    (root / "tests" / "data" / "keep.txt").write_text("")
    (root / "tests" / "x.pyc").write_text("")
    [files] = harbor.read(root).steps[0].verifier.files
    assert files.excluded == (".harborignore", "x.pyc", "data/expected.txt")
    (root / "tests" / ".harborignore").write_text("*.sh\n")
    with pytest.raises(InvalidTask, match=r"test\.sh: is left out by a \.harborignore: it is needed"):
        harbor.read(root)


def test_links_that_lead_out_of_the_task_are_refused(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "add", HARBOR, instruction_md=None)
    secret = tmp_path / "secret.md"
    secret.write_text("secret")
    (root / "instruction.md").symlink_to(secret)
    (root / "tests" / "link").symlink_to("../../secret.md")
    (root / "tests" / "inside").symlink_to("test.sh")
    with pytest.raises(InvalidTask) as caught:
        harbor.read(root)
    told = [str(one) for one in caught.value.problems]
    assert [re.sub(r": leads out of the task.*", "", one) for one in told] == [
        f"{root}/instruction.md", f"{root}/tests/link",
    ]  # fmt: skip


def test_steps_have_their_own_files_and_fall_back_on_the_tasks(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path / "add", HARBOR, instruction_md=None,
        task_toml='[agent]\ntimeout_sec = 9\n[[steps]]\nname = "one"\nmin_reward = 0.5\n[steps.agent]\nuser = "me"\n'
        '[[steps]]\nname = "two"\n[steps.verifier.env]\nA = "1"\n',
    )  # fmt: skip
    for name in ("one", "two"):
        (root / "steps" / name / "workdir").mkdir(parents=True)
        (root / "steps" / name / "instruction.md").write_text(f"Do {name}.")
    (root / "steps/one/workdir/setup.sh").write_text("true\n")
    one, two = harbor.read(root).steps
    assert (one.name, one.agent.user, one.agent.timeout_s, one.setup) == ("one", "me", 9, "sh ./setup.sh")
    assert (one.min_reward, two.verifier.env, two.setup) == ({"reward": 0.5}, {"A": "1"}, None)


def test_a_separate_verifier_runs_in_the_image_of_tests_or_in_the_tasks_own(tmp_path: Path) -> None:
    text = '[environment]\ncpus = 2\n[verifier]\nenvironment_mode = "separate"\n'
    own = read(tmp_path / "1", task_toml=text).steps[0].verifier
    assert own.environment is not None
    assert own.environment.build == tmp_path / "1/add/environment"
    assert own.files
    root = write_tree(tmp_path / "2" / "add", HARBOR, task_toml=text)
    (root / "tests" / "Dockerfile").write_text("FROM python:3.13-slim\nCOPY . /tests\n")
    built = harbor.read(root).steps[0].verifier
    assert built.environment is not None
    assert (built.environment.build, built.environment.cpus, built.files) == (root / "tests", 2, ())


def test_a_service_that_the_task_does_not_have_is_told(tmp_path: Path) -> None:
    text = 'artifacts = [{source = "/x", service = "db"}]\n[[verifier.collect]]\ncommand = "x"\nservice = "web"\n'
    assert refused(tmp_path, task_toml=text) == [
        "task.toml:4: verifier.collect.0.service: unknown service 'web': the task has main",
        "task.toml:1: artifacts: unknown service 'db': the task has main",
    ]


def test_a_compose_file_that_adds_options_only_needs_no_compose(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "add", HARBOR)
    compose = root / "environment" / "docker-compose.yaml"
    compose.write_text("services:\n  main:\n    environment:\n      - MODE=test\n    working_dir: /srv\n")
    environment = harbor.read(root).environment
    assert (environment.env, environment.workdir) == ({"MODE": "test"}, "/srv")
    assert environment.build == root / "environment"


def test_files_of_the_task_that_compose_would_bind_are_copied(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "add", HARBOR)
    (root / "environment" / "data").mkdir()
    (root / "environment" / "grade.py").write_text("pass\n")
    compose = root / "environment" / "docker-compose.yaml"
    long = "{type: bind, source: ./grade.py, target: /srv/g.py, read_only: true}"
    compose.write_text(f"services:\n  main:\n    volumes: ['./data:/data:ro', {long}]\n")
    data, grade = harbor.read(root).environment.files
    assert (data.source, data.target) == (root / "environment/data", "/data")
    assert (grade.texts, grade.target) == ({"g.py": "pass\n"}, "/srv")


def test_a_compose_file_of_another_name_is_a_file_like_any_other(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "add", HARBOR)
    (root / "environment" / "docker-compose.yml").write_text("services: {broken")
    assert harbor.read(root).environment.build == root / "environment"
