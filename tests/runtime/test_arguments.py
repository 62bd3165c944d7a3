"""Wrong arguments of a runtime are refused on entry, by name, value and what was expected, on one line."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime, DockerRuntime, SandboxLimits, find_sandbox, list_sandboxes, remove_sandbox
from ohsandbox.errors import SandboxFileError, UsageError
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def wrong(value: Any) -> Any:
    """Past the type checker."""
    return value


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    """Typed as Any: what mypy refuses is passed here."""
    with FakeRuntime() as started:
        yield started


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda r: r.execute(["echo"]), "Invalid command ['echo']. Give a string, or pass the list to run()"),
        (lambda r: r.execute(b"x"), "Invalid command b'x'. Give a string"),
        (lambda r: r.execute(None), "Invalid command None. Give a string"),
        (lambda r: r.execute("x", session=3), "Invalid session 3"),
        (lambda r: r.execute("x", is_input="x"), "is_input='x' is of type str; expected is bool"),
        (lambda r: r.run(["x"], merge_streams="x"), "merge_streams='x' is of type str; expected is bool"),
        (lambda r: r.upload("x", "y", limits=5), "limits=5 is of type int; expected is TransferLimits"),
        (
            lambda r: r.download("x", "y", limits={"members": 5}),
            "limits=... is of type dict; expected is TransferLimits",
        ),
        (lambda r: r.execute_tool(5, {}), "name=5 is of type int; expected is str"),
        (lambda r: r.execute("x", expect=b"a"), "Invalid expect b'a'"),
        (lambda r: r.execute("x", timeout_s="5"), "Invalid timeout_s '5'. Give a positive number of seconds"),
        (lambda r: r.execute("x", timeout_s=True), "Invalid timeout_s True"),
        (lambda r: r.execute("x", env={"A": 1}), "Environment value of 'A' is of type int. Give a string"),
        (lambda r: r.execute("x", env={1: "A"}), "Environment name 1 is invalid"),
        (lambda r: r.execute("x", env=["A=1"]), "env is of type list. Give a dict"),
        (lambda r: r.execute("x", user=1.5), "Invalid user 1.5. Give a user's name or number"),
        (lambda r: r.execute("x", workdir=b"/"), "Invalid workdir b'/'"),
        (lambda r: r.execute("x", on_output=3), "on_output is of type int. Give a function"),
        (lambda r: r.execute("x", cancel=True), "cancel is of type bool. Give a threading.Event"),
        (
            lambda r: r.run("echo hi"),
            "Invalid argv 'echo hi'. Give a list of words, such as ['ls', '-l'], or call execute()",
        ),
        (lambda r: r.run(None), "Invalid argv None. Give a list of words"),
        (lambda r: r.run(b"ls"), "Invalid argv b'ls'. Give a list of words"),
        (lambda r: r.run([]), "argv is empty"),
        (lambda r: r.run(["echo", 1]), "Invalid argv[1] 1. Give a string"),
        (lambda r: r.run(["cat"], stdin="text"), "stdin is of type str; expected are bytes. Encode the text"),
        (lambda r: r.run(["cat"], limit_bytes="5"), "Invalid limit_bytes '5'"),
        (
            lambda r: r.write_bytes("x", "text"),
            "data is of type str; expected are bytes. Encode the text: data=text.encode()",
        ),
        (lambda r: r.write_bytes("x", b"", mode="644"), "Invalid mode '644'. Give permission bits as a number"),
        (lambda r: r.write_bytes("x", b"", mode=-1), "Invalid mode -1"),
        (
            lambda r: r.write_bytes("x", b"", mode=644),
            "Invalid mode 644. Write 0o644 for the usual",
        ),
        (lambda r: r.write_bytes("x", b"", mode=755), "Write 0o755"),
        (lambda r: r.write_bytes("x", b"", mode=600), "Write 0o600"),
        (lambda r: r.write_bytes("x", b"", user=object()), "Invalid user <object"),
        (lambda r: r.read_bytes(b"x"), "Invalid path b'x'. Give a string"),
        (lambda r: r.read_bytes(None), "Invalid path None"),
        (lambda r: r.read_bytes("x", limit_bytes=-1), "Invalid limit_bytes -1"),
        (lambda r: r.list_dir(3), "Invalid path 3"),
        (lambda r: r.upload(3, "x"), "Invalid path 3"),
        (lambda r: r.download("x", b"y"), "Invalid path b'y'"),
        (lambda r: r.open_session(None), "Invalid session None"),
        (lambda r: r.set_env(None), "Invalid env None. Give a dict"),
        (lambda r: r.set_env("A=1"), "env is of type str. Give a dict"),
        (lambda r: r.set_env({"A": 1}), "Environment value of 'A' is of type int"),
        (lambda r: r.set_env({"UID": "1"}), "Environment name 'UID' is reserved"),
        (lambda r: r.close(keep="yes"), "keep='yes' is of type str; expected is bool"),
        (lambda r: r.close(keep=True), "A FakeRuntime has nothing to keep"),
        (lambda _: CLIRuntime(env={"A": None}), "Environment value of 'A'"),  # type: ignore[dict-item]
    ],
)
def test_a_wrong_argument_is_refused_on_one_line(runtime: Any, call: Callable[[Any], object], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        call(runtime)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert runtime.is_alive()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"network": "opne"},
            "Invalid DockerRuntime(network=...) 'opne'. Give 'none', 'allowlist' or 'open'.",
        ),
        ({"credentials": "github"}, "credentials='github' is of type str; expected is a list of str"),
        ({"user": object()}, "Invalid user <object"),
        ({"env": {"A": 1}}, "Environment value of 'A' is of type int"),
        ({"env": "A=1"}, "env is of type str"),
        ({"progress": "yes"}, "Invalid progress 'yes'. Give a function"),
        (
            {"limits": {"memory": 5}},
            "Invalid DockerRuntime(limits=...) {'memory': 5}: SandboxLimits(...): unknown key",
        ),
        ({"image": 5}, "Invalid DockerRuntime(image=...) 5. Give a string."),
        ({"limits": 5}, "Invalid DockerRuntime(limits=...) 5. Give names with values."),
        ({"copy": "yes", "workspace": "."}, "Invalid copy 'yes'. Give True, False or 'all'"),
        ({"keep": "yes"}, "Invalid DockerRuntime(keep=...) 'yes'. Give true or false."),
        ({"workspace": 5}, "Invalid workspace 5. Give a string, or a path object"),
        ({"ca_bundle": b"x"}, "Invalid ca_bundle b'x'"),
        ({"labels": {"job": 7}}, "Invalid DockerRuntime(labels=...) {'job': 7}: job. Give a string."),
        ({"labels": ["job"]}, "Invalid DockerRuntime(labels=...) ['job']. Give names with values."),
        ({"git": "ro"}, "git='ro' is for a bound directory. Pass workspace=DIR"),
        ({"profile": "contained", "workspace": "."}, "profile='contained' binds no directory"),
        ({"build": ".", "image": "python:3.12"}, "build= and image='python:3.12' exclude each other"),
        ({"attach": 5}, "Invalid DockerRuntime(attach=...) 5. Give a string."),
        ({"attach": "some-name", "keep": False}, "keep=False: a container that is joined is not ours to remove"),
        *(
            ({"attach": "some-name", name: value}, f"{name}= is for a new container, and attach= joins one")
            for name, value in {
                "image": "python:3.12",
                "network": "none",
                "limits": SandboxLimits(),
                "labels": {"a": "b"},
                "name": "own",
                "runtime": "runsc",
                "checkpoint": "c",
                "workspace": ".",
            }.items()
        ),
    ],
)
def test_a_wrong_option_of_a_container_is_refused_before_any_engine_is_asked(
    arguments: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/never-asked.sock")
    with pytest.raises(UsageError) as refused:
        DockerRuntime(**arguments)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: remove_sandbox(wrong(None)), "sandbox=None is of type NoneType; expected is str or SandboxInfo"),
        (lambda: find_sandbox(wrong(5)), "wanted=5 is of type int; expected is str"),
        (lambda: find_sandbox(labels=wrong("job=7")), "labels='job=7' is of type str; expected is a dict"),
        (lambda: list_sandboxes(labels=wrong(5)), "labels=5 is of type int; expected is a dict"),
        (lambda: list_sandboxes(labels={"job": wrong(7)}), "labels['job']=7 is of type int; expected is str"),
    ],
)
def test_a_wrong_sandbox_is_refused_before_any_engine_is_asked(
    call: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/never-asked.sock")
    with pytest.raises(UsageError) as refused:
        call()
    assert said in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o777, 0o640, 0o664, 0o555, 0o660, 0o770, 0o400, 0o2755, 0, 1])
def test_usual_modes_are_taken_in_octal(runtime: Any, mode: int) -> None:
    runtime.write_bytes("mode", b"", mode=mode)
    assert runtime.run(["stat", "-c", "%a", "mode"]).stdout == b"%o\n" % mode


def test_a_value_of_the_environment_is_never_shown(runtime: Any) -> None:
    with pytest.raises(UsageError) as refused:
        runtime.run(["true"], env={"TOKEN": b"hunter2"})
    assert "hunter2" not in str(refused.value)


def test_path_objects_are_paths_of_the_sandbox(runtime: Any, tmp_path: Path) -> None:
    runtime.write_bytes(PurePosixPath("by/path.txt"), b"here")
    assert runtime.read_bytes(Path("by/path.txt")) == b"here"
    assert [entry.name for entry in runtime.list_dir(Path("by"))] == ["path.txt"]
    runtime.download(PurePosixPath("by"), tmp_path)
    runtime.upload(tmp_path / "path.txt", PurePosixPath("again.txt"))
    assert runtime.read_bytes("again.txt") == b"here"


def test_a_missing_source_of_an_upload_is_a_file_not_found_error(runtime: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist on this machine") as missing:
        runtime.upload(tmp_path / "none", "x")
    assert isinstance(missing.value, SandboxFileError)
    assert missing.value.filename == str(tmp_path / "none")


@pytest.mark.parametrize(
    "use",
    [
        lambda runtime, env: runtime.set_env(env),
        lambda runtime, env: runtime.execute("true", env=env),
        lambda runtime, env: runtime.run(["true"], env=env),
        lambda runtime, env: runtime.open_session("other", env=env),
        lambda runtime, env: asyncio.run(runtime.arun(["true"], env=env)),
    ],
    ids=["set_env", "execute", "run", "open_session", "arun"],
)
def test_no_variable_brings_the_value_of_a_credential_inside(use: Callable[[Any, dict[str, str]], object]) -> None:
    with FakeRuntime() as runtime:
        runtime.outside_secrets = {"github": "ghp_0123456789"}
        with pytest.raises(UsageError, match="Variable 'TOKEN' has the value of credential 'github'") as refused:
            use(runtime, {"TOKEN": "Bearer ghp_0123456789"})
        assert "ghp_0123456789" not in str(refused.value)
        assert runtime.run(["true"], env={"TOKEN": "another"}).exit_code == 0
