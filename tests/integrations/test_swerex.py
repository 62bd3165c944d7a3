"""The runtime and the deployment that SWE-ReX users get: what its documents promise, and its error types."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from swerex.deployment.hooks.status import SetStatusDeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from ohsandbox import DockerRuntime
from ohsandbox.errors import SandboxGone
from ohsandbox.integrations.swerex import OhsandboxDeployment, OhsandboxRuntime
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox import Runtime

IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")


@pytest.fixture(scope="module")
def container() -> Iterator[Runtime]:
    with DockerRuntime(image=IMAGE) as runtime:
        yield runtime


@pytest.fixture(params=[pytest.param("fake", marks=pytest.mark.slow), pytest.param("docker", marks=pytest.mark.docker)])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    if request.param == "docker":
        yield request.getfixturevalue("container")
        return
    with FakeRuntime() as runtime:
        yield runtime


@pytest.fixture
async def runtime(sandbox: Runtime) -> Any:
    runtime = OhsandboxRuntime(sandbox)
    await runtime.create_session(CreateBashSessionRequest())
    yield runtime
    await runtime.close()


async def _run(runtime: OhsandboxRuntime, command: str, **options: Any) -> BashObservation:
    return await runtime.run_in_session(BashAction(command=command, **{"timeout": 20.0} | options))


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo ''", "\n"),
        ("printf '  x'", "  x"),
        ("printf '\\n\\nx\\n\\n\\n'", "\n\nx\n\n\n"),
        ("\n\n echo one \n  \n echo two \n\n", "one\ntwo\n"),
        ("echo 'one\ntwo'", "one\ntwo\n"),
        ("# only a comment", ""),
        ("\n \n", ""),
        ("cat <<EOF\na\n\nb\nEOF", "a\n\nb\n"),
        ("for i in 1 2; do\n echo $i\n done", "1\n2\n"),
        ("[[ $x == $x ]]; A=(); echo done", "done\n"),
    ],
)
async def test_the_output_of_a_command_is_exact(runtime: OhsandboxRuntime, command: str, output: str) -> None:
    seen = await _run(runtime, command)
    assert (seen.output, seen.exit_code) == (output, 0)


async def test_a_session_keeps_its_state_and_shares_it_with_none(runtime: OhsandboxRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="other"))
    await asyncio.gather(_run(runtime, "x=1; cd /usr"), _run(runtime, "x=2", session="other"))
    assert (await _run(runtime, "echo $x; pwd")).output == "1\n/usr\n"
    assert (await _run(runtime, "echo $x", session="other")).output == "2\n"


async def test_check_decides_what_becomes_of_an_exit_code(runtime: OhsandboxRuntime) -> None:
    assert (await _run(runtime, "(exit 3)", check="silent")).exit_code == 3
    assert (await _run(runtime, "(exit 3)", check="ignore")).exit_code is None
    with pytest.raises(NonZeroExitCodeError, match=r"^Could not build: Command '.*exit code 3"):
        await _run(runtime, "(exit 3)", error_msg="Could not build")


async def test_a_command_that_bash_cannot_parse_is_not_run(runtime: OhsandboxRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as raised:
        await _run(runtime, "touch /tmp/swerex-ran; (a")
    assert "syntax error" in raised.value.extra_info["bash_stderr"]
    assert raised.value.extra_info["bash_stdout"] == ""
    assert (await _run(runtime, "test -e /tmp/swerex-ran", check="silent")).exit_code == 1


async def test_a_command_past_its_timeout_runs_on_until_it_is_interrupted(runtime: OhsandboxRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match=r"0\.1"):
        await _run(runtime, "echo begun; sleep 600", timeout=0.1)
    with pytest.raises(CommandTimeoutError, match="still runs"):
        await _run(runtime, "echo never", timeout=0.1)
    seen = await runtime.run_in_session(BashInterruptAction())
    assert "never" not in seen.output
    assert (await _run(runtime, "echo after")).output == "after\n"


@pytest.mark.slow
async def test_a_command_that_ignores_interrupts_is_killed(runtime: OhsandboxRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await _run(runtime, "(trap '' INT; sleep 601)", timeout=0.2)
    await runtime.run_in_session(BashInterruptAction(timeout=0.05, n_retry=2))
    assert (await _run(runtime, "echo after")).output == "after\n"


async def test_a_command_that_waits_for_input_without_a_timeout_does_not_hang(runtime: OhsandboxRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match="waits for input"):
        await _run(runtime, "read answer", timeout=None)
    await runtime.run_in_session(BashInterruptAction())


async def test_an_interactive_program_is_talked_to(runtime: OhsandboxRuntime) -> None:
    prompt = {"is_interactive_command": True, "expect": ["never", ">>> "]}
    for _ in range(2):
        assert (await _run(runtime, "python3 -q", **prompt)).expect_string == ">>> "
        assert (await _run(runtime, "print('hello')", **prompt)).output == "hello\n"
        await _run(runtime, "quit()\n", is_interactive_quit=True)
        assert (await _run(runtime, "echo 'a shell'")).output == "a shell\n"


async def test_a_text_that_never_comes_is_a_timeout(runtime: OhsandboxRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await _run(runtime, "python3", is_interactive_command=True, expect=["NEVER"], timeout=0.1)
    await runtime.run_in_session(BashInterruptAction())


async def test_an_expected_text_ends_the_wait_for_a_command(runtime: OhsandboxRuntime) -> None:
    seen = await _run(runtime, "echo up; sleep 602", expect=[r"u.\n"], check="silent")
    assert (seen.exit_code, seen.expect_string) == (None, r"u.\n")
    await runtime.run_in_session(BashInterruptAction())
    with pytest.raises(NoExitCodeError):
        await _run(runtime, "echo up; sleep 602", expect=["up"])
    await runtime.run_in_session(BashInterruptAction())


async def test_startup_files_are_sourced(runtime: OhsandboxRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/tmp/swerex.rc", content="export FROM_RC=yes\necho sourced\n"))
    request = CreateBashSessionRequest(session="rc", startup_source=["/tmp/swerex.rc"], startup_timeout=20)
    assert (await runtime.create_session(request)).output == "sourced\n"
    assert (await _run(runtime, "echo $FROM_RC", session="rc")).output == "yes\n"


async def test_sessions_are_opened_once_and_closed_once(runtime: OhsandboxRuntime) -> None:
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    await runtime.close_session(CloseBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await _run(runtime, "true")
    with pytest.raises(SessionDoesNotExistError):
        await runtime.run_in_session(BashInterruptAction())


# --- processes and files --------------------------------------------------------------------------


async def test_a_process_has_its_streams_apart_or_in_one(runtime: OhsandboxRuntime) -> None:
    argv = ["sh", "-c", "echo out; echo err >&2"]
    apart = await runtime.execute(Command(command=argv))
    assert (apart.stdout, apart.stderr, apart.exit_code) == ("out\n", "err\n", 0)
    merged = await runtime.execute(Command(command=argv, merge_output_streams=True))
    assert (merged.stdout, merged.stderr) == ("out\nerr\n", "")


async def test_a_process_has_a_shell_a_directory_and_variables_where_asked(runtime: OhsandboxRuntime) -> None:
    line = Command(command="echo $A; pwd", shell=True, env={"A": "one"}, cwd="/usr")
    assert (await runtime.execute(line)).stdout == "one\n/usr\n"
    assert (await runtime.execute(Command(command=["echo", "-n", "$A  b"]))).stdout == "$A  b"
    assert (await runtime.execute(Command(command="\n", shell=True, check=True))).exit_code == 0


async def test_bytes_that_are_no_text_are_escaped(runtime: OhsandboxRuntime) -> None:
    assert (await runtime.execute(Command(command=["printf", r"\377"]))).stdout == r"\xff"


async def test_a_process_that_fails_raises_where_asked(runtime: OhsandboxRuntime) -> None:
    assert (await runtime.execute(Command(command="exit 4", shell=True))).exit_code == 4
    with pytest.raises(NonZeroExitCodeError, match=r"^No: "):
        await runtime.execute(Command(command="exit 4", shell=True, check=True, error_msg="No"))
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "603"], timeout=0.1))
    with pytest.raises(FileNotFoundError):
        await runtime.execute(Command(command=["no-such-program"]))
    with pytest.raises(FileNotFoundError):
        await runtime.execute(Command(command=["true"], cwd="/nowhere"))


async def test_files_are_written_and_read(runtime: OhsandboxRuntime) -> None:
    path = "/tmp/swerex/new/file.txt"
    await runtime.write_file(WriteFileRequest(path=path, content="ä\r\nb"))
    assert (await runtime.read_file(ReadFileRequest(path=path))).content == "ä\nb"
    assert (await runtime.read_file(ReadFileRequest(path=path, encoding="latin-1"))).content == "Ã¤\nb"
    with pytest.raises(UnicodeDecodeError):
        await runtime.read_file(ReadFileRequest(path=path, encoding="ascii"))
    ascii_only = ReadFileRequest(path=path, encoding="ascii", errors="ignore")
    assert (await runtime.read_file(ascii_only)).content == "\nb"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="/tmp/no-such-file"))


async def test_files_and_directories_are_uploaded(runtime: OhsandboxRuntime, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "one.txt").write_text("1")
    await runtime.upload(UploadRequest(source_path=str(source), target_path="/tmp/swerex-up/dir"))
    await runtime.upload(UploadRequest(source_path=str(source / "one.txt"), target_path="/tmp/swerex-up/two.txt"))
    for path in ("dir/one.txt", "two.txt"):
        assert (await runtime.read_file(ReadFileRequest(path=f"/tmp/swerex-up/{path}"))).content == "1"


async def test_a_runtime_that_is_gone_is_told_apart_from_a_failed_command() -> None:
    with FakeRuntime() as sandbox:
        runtime = OhsandboxRuntime(sandbox)
        assert await runtime.is_alive()
        sandbox.break_down(SandboxGone("gone"))
        assert not await runtime.is_alive()
        with pytest.raises(SandboxGone):
            await runtime.execute(Command(command=["true"]))


# --- deployments ----------------------------------------------------------------------------------


@pytest.mark.docker
async def test_a_deployment_is_started_and_stopped() -> None:
    told: list[str] = []
    deployment = OhsandboxDeployment(image=IMAGE)
    deployment.add_hook(SetStatusDeploymentHook("1", lambda _, message: told.append(message)))
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()
    assert (await deployment.runtime.execute(Command(command=["cat", "/etc/hostname"], check=True))).stdout
    await deployment.stop()
    await deployment.stop()
    assert told == ["Starting the sandbox"]
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime


async def test_a_deployment_of_a_runtime_of_your_own_closes_it() -> None:
    sandbox = FakeRuntime()
    deployment = OhsandboxDeployment(runtime=sandbox)
    await deployment.start()
    assert sandbox.is_alive()
    await deployment.stop()
    assert not sandbox.is_alive()
