"""Going on after a signal, a kill and an ordinary end; on this host and in a container."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.options.shared import ProjectParts, SandboxOptions
from ohsandbox.cli.session.resume import SANDBOX_NAME, _stored, stored_options
from ohsandbox.runtime.build_options import Build, resolved_build
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.service_options import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.inventory import SandboxInfo
    from tests.cli.conftest import Ended, Invoke, Start, WriteScript

ON_HOST = ("--runtime", "cli", "--no-tui")


@pytest.fixture(autouse=True)
def _nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


def _conversations(home: Path) -> list[Path]:
    return sorted((home / ".ohsandbox" / "conversations").glob("[!.]*"))


def _logged(home: Path, event_type: str) -> list[dict[str, Any]]:
    (directory,) = _conversations(home)
    lines = [json.loads(line) for line in (directory / "sdk_events.jsonl").read_text().splitlines()]
    return [line["data"] for line in lines if line["type"] == event_type]


def _wait_for_call(home: Path, process: subprocess.Popen[bytes], number: int) -> None:
    """Until so many calls are stored."""
    deadline = time.monotonic() + 60
    while True:
        logs = list((home / ".ohsandbox" / "conversations").glob("*/sdk_events.jsonl"))
        if logs and logs[0].read_text().count('"type":"tool_call"') >= number:
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _cut_off(start: Start, home: Path, arguments: list[str], *, at_call: int, by: signal.Signals) -> int:
    process = start(*arguments)
    _wait_for_call(home, process, at_call)
    time.sleep(0.3)
    process.send_signal(by)
    return process.wait(60)


@pytest.fixture
def model(write_script: WriteScript) -> str:
    """Makes a place and a variable, is cut off, then looks."""
    return write_script(
        ("prepare", "mkdir -p deep && cd deep && export COLOUR=green && echo made >file && sleep 777 & sleep 0.1"),
        ("prepare", "cd deep && export COLOUR=green && echo made >file"),
        ("wait", "sleep 61.75"),
        ("look", 'echo "at ${PWD##*/} $COLOUR $(cat file) $(ps 2>/dev/null | grep -c "[s]leep [67]")"'),
        ("over", None),
    )


def test_a_killed_run_goes_on_by_itself_and_its_call_is_not_repeated(
    start: Start, invoke: Invoke, model: str, home: Path, tmp_path: Path
) -> None:
    arguments = ["run", "hi", "--model", model, "--workspace", str(tmp_path), *ON_HOST]
    assert _cut_off(start, home, arguments, at_call=3, by=signal.SIGKILL) == -signal.SIGKILL
    ended = invoke("run", "--autoresume", "--no-tui")
    assert ended.code == 0, ended.err
    assert "cut off" in ended.out
    assert "answer   over" in ended.out
    results = _logged(home, "tool_result")
    assert len(results) == len(_logged(home, "tool_call")) - 1
    assert "at deep  made" in results[-1]["result"]["output"]
    assert "its environment is lost" in results[-1]["result"]["output"]
    assert len(_logged(home, "user_message")) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stopped_run_is_resumed_by_the_beginning_of_its_id(  # noqa: PLR0917 - fixtures
    start: Start, invoke: Invoke, model: str, home: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    arguments = ["run", "hi", "--model", model, "--workspace", str(tmp_path), *ON_HOST]
    assert _cut_off(start, home, arguments, at_call=3, by=number) == code
    assert _logged(home, "status_update")[-1]["status"] == "CANCELED"
    name = _conversations(home)[0].name
    ended = invoke("run", "--resume", name[:12], "--no-tui")
    assert (ended.code, "answer   over" in ended.out) == (0, True)


def test_a_message_goes_to_the_conversation_with_the_newest_event(
    invoke: Invoke, write_script: WriteScript, home: Path
) -> None:
    model = write_script(("first", None), ("second", None))
    for name in ("old", "new"):
        assert invoke("run", name, "--model", model, *ON_HOST).code == 0
    older, newer = sorted(_conversations(home), key=lambda path: path.stat().st_ctime_ns)
    title = json.loads((older / "metadata.json").read_text())["title"]
    assert invoke("run", "more", "--resume", older.name, *ON_HOST[2:]).code == 0
    assert older.joinpath("sdk_events.jsonl").read_text().count("user_message") == 2
    ended = invoke("run", "again", "--autoresume", "--no-tui")
    assert f"Conversation {older.name} goes on: {title}" in ended.out
    assert ended.code == 5  # the script of older is over
    assert newer.joinpath("sdk_events.jsonl").read_text().count("user_message") == 1


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("nosuch", "No conversation"), ("2", "begin with"), ("../x", "Invalid conversation id"), ("", "No conversation")],
)
def test_an_id_that_names_none_or_several_is_a_usage_error(
    invoke: Invoke, write_script: WriteScript, wanted: str, words: str
) -> None:
    model = write_script(("hello", None))
    for _ in range(2):
        invoke("run", "hi", "--model", model, *ON_HOST)
    ended = invoke("run", "--resume", wanted, "--model", model, *ON_HOST)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert words in ended.err


def test_what_would_leave_its_files_is_refused(invoke: Invoke, write_script: WriteScript, tmp_path: Path) -> None:
    model = write_script(("hello", None))
    invoke("run", "hi", "--model", model, *ON_HOST)
    assert invoke("run", "--autoresume", "--model", model, "--runtime", "docker").code == 2
    assert invoke("run", "--autoresume", "--model", model, "--workspace", str(tmp_path)).code == 2
    assert invoke("run", "--autoresume", "--resume", "x", "--model", model).code == 2
    assert invoke("run", "--autoresume", "--model", model, "--attach", "c", "--image", "i").code == 2


def test_a_run_that_was_finished_asks_the_model_nothing_more(invoke: Invoke, write_script: WriteScript) -> None:
    finish = {"tool_calls": [{"name": "finish", "arguments": {"message": "done"}}]}
    invoke("run", "hi", "--model", write_script(finish), *ON_HOST)
    assert invoke("run", "--autoresume", "--no-tui").code == 0


# --- in a container ---------------------------------------------------------------------------------


def _sandboxes() -> list[SandboxInfo]:
    with DockerInventory() as inventory:
        return inventory.list_sandboxes()


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    yield
    with DockerInventory() as inventory:
        inventory.collect_garbage(kept=True)
    assert not [one for one in _sandboxes() if one.ours]
    with contextlib.closing(connect()) as engine:
        for record in checkpoint_images.records(engine):
            checkpoint_images.release(engine, record)


def _in_container(image: str, model: str, *more: str) -> list[str]:
    return ["run", "hi", "--model", model, "--image", image, "--no-tui", *more]


def _resumed(invoke: Invoke, *more: str) -> Ended:
    ended = invoke("run", "--autoresume", "--no-tui", *more)
    assert ended.code == 0, ended.err
    return ended


@pytest.mark.docker
@pytest.mark.usefixtures("no_leftovers")
def test_a_killed_runs_container_is_found_again_with_directory_and_environment(
    start: Start, invoke: Invoke, model: str, home: Path, image: str
) -> None:
    _cut_off(start, home, _in_container(image, model), at_call=3, by=signal.SIGKILL)
    assert invoke("exec", "--image", image, "--", "true").code == 0  # a new sandbox collects orphans, and not this one
    (before,) = [one for one in _sandboxes() if one.ours]
    assert (before.resumable, before.owner_alive) == (True, False)
    ended = _resumed(invoke)
    assert f"Container {before.name}" in ended.out
    last = _logged(home, "tool_result")[-1]["result"]["output"]
    assert "at deep green made 0" in last
    assert "its exported environment is restored" in last
    assert [one for one in _sandboxes() if one.ours] == []  # an ordinary end removes it


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("meanwhile", ["stop", "pause"])
def test_a_terminated_runs_container_stays_and_is_started_again(  # noqa: PLR0917 - fixtures
    start: Start, invoke: Invoke, model: str, home: Path, image: str, meanwhile: str
) -> None:
    assert _cut_off(start, home, _in_container(image, model), at_call=3, by=signal.SIGTERM) == 143
    (before,) = [one for one in _sandboxes() if one.ours]
    subprocess.run(["docker", meanwhile, before.name], check=True, capture_output=True)
    ended = _resumed(invoke, "--network", "open")
    assert "has network none, and open was asked for" in ended.out
    assert ("it was started again" if meanwhile == "stop" else "was paused; it goes on") in ended.out
    assert "at deep" in _logged(home, "tool_result")[-1]["result"]["output"]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(("checkpoints", "kept_files"), [(True, "last checkpoint"), (False, "files are lost")])
def test_where_the_container_is_gone_person_and_model_are_told(
    start: Start, invoke: Invoke, model: str, home: Path, image: str, *, checkpoints: bool, kept_files: str
) -> None:
    (home / ".ohsandbox").mkdir()
    (home / ".ohsandbox" / "settings.json").write_text(json.dumps({"checkpoints": checkpoints}))
    _cut_off(start, home, _in_container(image, model), at_call=3, by=signal.SIGKILL)
    with DockerInventory() as inventory:
        assert [done.outcome for done in inventory.collect_garbage(kept=True)] == ["removed"]
    ended = _resumed(invoke)
    (notice,) = [each for each in _logged(home, "notice") if each.get("to_model")]
    for told in (ended.out, notice["message"]):
        assert "sandbox of before is gone" in told
        assert kept_files in told
    assert "[Exit code 0" in _logged(home, "tool_result")[-1]["result"]["output"]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.usefixtures("no_leftovers")
def test_a_second_ctrl_c_leaves_at_once(start: Start, write_script: WriteScript, home: Path, image: str) -> None:
    stubborn = write_script(("wait", "trap '' INT TERM; while :; do sleep 1; done"))
    process = start(*_in_container(image, stubborn))
    _wait_for_call(home, process, 1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    (left,) = [one for one in _sandboxes() if one.ours]
    assert (left.resumable, left.owner_alive) == (True, False)


def test_the_build_and_the_services_of_a_project_are_stored_and_found_again(tmp_path: Path) -> None:
    base = Build(str(tmp_path), "D", {"A": "1"})
    parts = ProjectParts(
        build=Build(tmp_path, base=base), services=(Service("db", image="a:1"), Service("b", image="c:1"))
    )  # fmt: skip
    stored = _stored(SandboxOptions(build=tmp_path, from_project=parts))
    assert stored["build_options"] == {"base": {"context": str(tmp_path), "dockerfile": "D", "args": {"A": "1"}}}
    (tmp_path / "Dockerfile").write_text("FROM a")
    (tmp_path / "D").write_text("FROM a")
    (tmp_path / SANDBOX_NAME).write_text(json.dumps(stored, default=str))
    found = stored_options(tmp_path)
    assert found is not None
    assert found.from_project.services[0] == parts.services[0]
    assert found.from_project.build is not None
    assert resolved_build(found.from_project.build).base == base
    (tmp_path / SANDBOX_NAME).write_text(json.dumps(stored | {"build_options": None, "services": []}, default=str))
    assert stored_options(tmp_path) == SandboxOptions(build=tmp_path)
