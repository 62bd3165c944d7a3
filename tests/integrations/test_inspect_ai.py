"""The sandbox provider of Inspect AI: Inspect's own checks of providers, and evaluations from start to end."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ChatMessageTool, Model, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import bash, bash_session, text_editor
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    override_sandbox_output_limit,
    sandbox,
)
from inspect_ai.util._sandbox import self_check

from ohsandbox.integrations.inspect_ai import InspectSandboxConfig, InspectSandboxEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(300),
    # what the host project leaves open is closed when it is collected, in whichever test that happens
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEBIAN = "ohsandbox-base:debian"
CHECKS = 44
"""How many checks Inspect 0.3.285 has."""
# one of Inspect's checks makes a user with adduser, which a minimal Debian lacks
DOCKERFILE = r"""
FROM {base}
USER root
RUN printf '#!/bin/sh\n[ "$1" != --help ] || exit 0\nfor name; do :; done\nexec useradd --create-home "$name"\n' \
    >/usr/local/sbin/adduser && chmod 755 /usr/local/sbin/adduser
{rest}
"""
IMAGES = {"root": (DEBIAN, "WORKDIR /work"), "nonroot": ("ohsandbox-base:nonroot", "USER agent")}


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    """The mock model counts tokens by a table that would be downloaded; litellm ships it, and is slow to import."""
    litellm = importlib.util.find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"))
        yield


# --- Inspect's checks -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["root", pytest.param("nonroot", marks=pytest.mark.slow)])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxEnvironment]:
    base, rest = IMAGES[request.param]
    path = tmp_path_factory.mktemp(request.param) / "Dockerfile"
    path.write_text(DOCKERFILE.format(base=base, rest=rest))
    yield from _started(str(path))


@pytest.fixture
def env() -> Iterator[SandboxEnvironment]:
    yield from _started(InspectSandboxConfig(image=DEBIAN, env={"LEVEL": "debug"}))


def _started(config: InspectSandboxConfig | str) -> Iterator[SandboxEnvironment]:
    provider = InspectSandboxEnvironment
    asyncio.run(provider.task_init("test", config))
    environments = asyncio.run(provider.sample_init("test", config, {}))
    yield environments["default"]
    asyncio.run(provider.sample_cleanup("test", config, environments, interrupted=False))
    asyncio.run(provider.task_cleanup("test", config, cleanup=True))


def test_no_check_is_left_out() -> None:
    assert len(self_check.__all__) >= CHECKS


@pytest.mark.parametrize("name", self_check.__all__)
def test_inspects_check_of_providers(name: str, checked: SandboxEnvironment) -> None:
    asyncio.run(getattr(self_check, name)(checked))


def test_the_images_of_the_checks_are_root_and_not_root(checked: SandboxEnvironment) -> None:
    asked = asyncio.run(checked.exec(["id", "-un"]))
    assert asked.stdout.strip() in {"root", "agent"}


# --- what the interface says besides --------------------------------------------------------------


def test_a_cancelled_call_leaves_no_process(env: SandboxEnvironment) -> None:
    async def cancelled() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(env.exec, ["sh", "-c", "(setsid sleep 4321 &); touch begun; sleep 4321"])
            while not (await env.exec(["test", "-e", "begun"])).success:
                pass
            group.cancel_scope.cancel()
        return (await env.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])).stdout

    found = asyncio.run(cancelled())
    assert "cat" in found
    assert "sleep 4321" not in found


def test_what_came_before_a_timeout_is_told(env: SandboxEnvironment) -> None:
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(env.exec(["sh", "-c", "echo so far; exec sleep 60"], timeout=1))
    assert caught.value.truncated_output == "so far\n"  # type: ignore[attr-defined]


def test_more_output_than_the_limit_is_an_error_with_its_beginning(env: SandboxEnvironment) -> None:
    with override_sandbox_output_limit(1024), pytest.raises(OutputLimitExceededError) as caught:
        asyncio.run(env.exec(["head", "-c", "5000", "/dev/zero"]))
    assert caught.value.truncated_output == "\0" * 1024


def test_the_sandbox_has_no_network_and_the_environment_of_its_configuration(env: SandboxEnvironment) -> None:
    shown = asyncio.run(env.exec(["sh", "-c", 'echo "$LEVEL"; ls /sys/class/net']))
    assert shown.stdout.split() == ["debug", "lo"]


def test_a_nul_in_a_path_is_told_as_inspect_tells_it_to_a_model(env: SandboxEnvironment) -> None:
    with pytest.raises(ValueError, match="embedded null byte"):
        asyncio.run(env.read_file("a\0b"))


@pytest.mark.parametrize("name", ["/etc/passwd/x", "a" * 300])
def test_a_name_that_nothing_can_have_is_not_found(name: str, env: SandboxEnvironment) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(env.read_file(name))


def test_the_command_of_a_connection_opens_a_shell(env: SandboxEnvironment) -> None:
    connection = asyncio.run(env.connection(user="root"))
    command = connection.command.replace("-it", "-i")
    ended = subprocess.run(["sh", "-c", command], input="pwd", capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.returncode) == ("/workspace", 0)


def test_a_sandbox_that_is_gone_is_unavailable_and_has_no_connection(env: SandboxEnvironment) -> None:
    container = asyncio.run(env.connection()).container
    subprocess.run(["docker", "rm", "-f", str(container)], capture_output=True, check=True)
    with pytest.raises(SandboxUnavailableError, match=str(container)):
        asyncio.run(env.exec(["true"]))
    with pytest.raises(ConnectionError):
        asyncio.run(env.connection())


def test_a_configuration_comes_back_from_a_log_and_is_prepared_once() -> None:
    config = InspectSandboxConfig(image=DEBIAN, env={"A": "b"})
    spec = SandboxEnvironmentSpec.model_validate({"type": "ohsandbox", "config": config.model_dump()})
    assert spec.config == config
    assert len({spec, SandboxEnvironmentSpec("ohsandbox", config)}) == 1


HOME_OF = {DEBIAN: "/workspace", "ohsandbox-base:nonroot": "/home/agent"}
"""Where commands run."""

# --- evaluations ------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> ModelOutput:
    return ModelOutput.for_tool_call("mockllm/model", name, arguments)


def model(*outputs: ModelOutput) -> Model:
    done = ModelOutput.from_content("mockllm/model", "done")
    return get_model("mockllm/model", custom_outputs=[*outputs, done], memoize=False)


@scorer(metrics=[accuracy()])
def answer_file() -> Scorer:
    async def score(_: TaskState, target: Target) -> Score:
        text = await sandbox().read_file("answer.txt")
        return Score(value="C" if text.strip() == target.text else "I")

    return score


def task(**options: Any) -> Task:
    """Two numbers to add."""
    sample = Sample("Add them.", target="42", files={"in/numbers": "40 2"}, setup="mkdir out; pwd >out/where")
    return Task(dataset=[sample], scorer=answer_file(), **options)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Inspect leaves streams to the collector
@pytest.mark.parametrize("image", HOME_OF)
def test_an_evaluation_works_with_the_tools_of_inspect(image: str, tmp_path: Path) -> None:
    """bash_session and text_editor run a server in the sandbox, which Inspect puts there."""
    calls = [
        call("bash", command="cat in/numbers out/where; pwd"),
        call("text_editor", command="create", path="/tmp/sum.sh", file_text="echo $(($1 + $2))\n"),
        call("bash_session", action="type_submit", input="sh /tmp/sum.sh $(cat in/numbers) >answer.txt; echo it is $?"),
        call("bash", command="cat no\0pe"),
        call("bash", command="sleep 60"),
    ]
    solver = [use_tools(bash(timeout=1), bash_session(), text_editor()), generate()]
    [log] = evaluate(
        task(solver=solver, sandbox=("ohsandbox", image)), model=model(*calls), log_dir=str(tmp_path), display="none"
    )
    assert log.status == "success", log.error
    [sample] = log.samples or []
    told = [message for message in sample.messages if isinstance(message, ChatMessageTool)]
    assert told[0].text.splitlines() == [f"40 2{HOME_OF[image]}", HOME_OF[image]]
    assert "it is 0" in told[2].text
    assert [message.error.type for message in told if message.error] == ["parsing", "timeout"]
    assert sample.scores is not None
    assert sample.scores["answer_file"].value == "C"


# --- the command line -------------------------------------------------------------------------------

TASK_FILE = """
from inspect_ai import task
from tests.integrations import test_inspect_ai as t

@task
def sums():
    agent = [t.use_tools(t.bash()), t.generate()]
    return t.task(solver=agent, model=t.model(t.call("bash", command={command!r})))
"""


def inspect(directory: Path, *words: str) -> str:
    """What the command `inspect` prints, in directory."""
    ended = subprocess.run(
        [sys.executable, "-m", "inspect_ai", *words],
        cwd=directory, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=110, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def evaluated(directory: Path, command: str, *words: str) -> tuple[EvalLog, str]:
    """The log of `inspect eval` of a model that runs command, and what was printed."""
    (directory / "sums.py").write_text(TASK_FILE.format(command=command))
    printed = inspect(directory, "eval", "sums.py", "--display", "none", *words)
    [path] = (directory / "logs").glob("*.eval")
    return read_eval_log(str(path)), printed


def containers(name: str) -> list[str]:
    """Names of the containers that there are whose name contains name."""
    words = ["docker", "ps", "--all", "--filter", f"name={name}", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalLog, str]:
    """What an `inspect eval` left whose sandbox is to stay: its log, and the name of the sandbox."""
    options = ["--sandbox", f"ohsandbox:{DEBIAN}", "--no-sandbox-cleanup"]
    log, printed = evaluated(tmp_path_factory.mktemp("kept"), "echo 42 >answer.txt", *options)
    return log, printed.split("inspect sandbox cleanup ohsandbox ")[1].split()[0]


@pytest.mark.slow
def test_inspect_eval_finds_the_provider_and_takes_an_image(kept: tuple[EvalLog, str]) -> None:
    log, _ = kept
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1


def test_the_example_of_the_documents_runs_as_it_stands_there(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
    program, command, configuration = re.findall(r"```\w+\n(.*?)```", page, re.DOTALL)[:3]
    (tmp_path / "sums.py").write_text(program.replace("python:3.12", DEBIAN))
    assert command.startswith("inspect eval sums.py ")
    inspect(tmp_path, *command.split()[1:], "--display", "none")
    [path] = (tmp_path / "logs").glob("*.eval")
    assert read_eval_log(str(path)).status == "success"
    names: dict[str, Any] = {}
    exec(configuration, names)
    assert names["sandbox"].config.network == "open"


@pytest.mark.slow
def test_a_dockerfile_beside_the_task_is_used(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {DEBIAN}\nCOPY secret.txt /usr/share/secret.txt\n")
    (tmp_path / "secret.txt").write_text("42")
    log, _ = evaluated(tmp_path, "cp /usr/share/secret.txt answer.txt", "--sandbox", "ohsandbox")
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1


@pytest.mark.slow
def test_a_sandbox_that_is_to_stay_is_removed_by_the_cleanup_of_its_name(
    kept: tuple[EvalLog, str], tmp_path: Path
) -> None:
    _, name = kept
    assert containers(name) == [name]
    inspect(tmp_path, "sandbox", "cleanup", "ohsandbox", "another-name")
    assert containers(name) == [name]
    assert f"removed {name}" in inspect(tmp_path, "sandbox", "cleanup", "ohsandbox", name)
    assert containers(name) == []


KILLED = """
import asyncio, os, signal
from ohsandbox.integrations.inspect_ai import InspectSandboxConfig, InspectSandboxEnvironment as Provider
found = asyncio.run(Provider.sample_init("killed", InspectSandboxConfig(image={image!r}), {{}}))
print(found["default"].runtime.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_cleanup_removes_what_a_killed_evaluation_left_and_no_sandbox_in_use(
    env: SandboxEnvironment, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", KILLED.format(image=DEBIAN)]
    name = subprocess.run(program, capture_output=True, text=True, check=False).stdout.strip()
    assert containers(name) == [name]
    in_use = str(asyncio.run(env.connection()).container)
    printed = inspect(tmp_path, "sandbox", "cleanup", "ohsandbox")
    assert containers(name) == []
    assert containers(in_use) == [in_use]
    assert f"left {in_use}: A process works in container {in_use}." in printed
