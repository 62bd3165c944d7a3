"""A devcontainer.json at the command line: offered for a workspace, and this repository's own one, used for real."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.commands.sandboxes import _unused_copies
from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.settings.project import use_project
from ohsandbox.private_files import MAX_RECORD_BYTES
from ohsandbox.project.trust import trusted
from ohsandbox.runtime.build_options import Build
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Invoke, Recorded, WriteScript

ROOT = Path(__file__).parents[2]
QUESTION = b"Trust this directory with this content? [y/N] "


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / ".devcontainer").mkdir(parents=True)
    return directory


def say(project: Path, said: dict[str, Any]) -> None:
    (project / ".devcontainer" / "devcontainer.json").write_text(json.dumps(said))


def used(**where: Any) -> SandboxOptions:
    asked = SandboxOptions(**where)
    found = use_project(asked, None, person=False)
    settings = Settings.load(project=found.layer if found else None)
    return (found.applied_to(asked) if found else asked).checked().with_settings(settings)


def test_it_counts_for_a_workspace_once_it_is_trusted_and_flags_stand_above(
    invoke: Invoke, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    say(project, {"image": "a:1", "postCreateCommand": "make", "remoteUser": "me", "privileged": True})
    assert used().image == used(workspace=project).image == (Settings().image or "python:3.12")
    assert capfd.readouterr().err.count("is not trusted, so its setup, remote user, image are not used") == 1
    shown = invoke("trust", "--yes")
    assert "not used, whatever you answer: privileged" in shown.out
    assert (used().image, used().project.setup) == (Settings.load().image or "python:3.12", ())
    found = used(workspace=project)
    assert (found.image, found.project.setup, found.project.folder) == ("a:1", ("sh -c make",), "/workspaces/project")
    assert "devcontainer.json, not used: privileged (" in capfd.readouterr().err
    assert (found.user, used(workspace=project, copy=True).user) == (None, "me")
    assert used(workspace=project, image="b:1").image == "b:1"
    assert "--image b:1 is used in the place of the project's image 'a:1'." in capfd.readouterr().err
    assert used(workspace=project, runtime="cli").project.setup == ()
    say(project, {"image": "a:2", "postCreateCommand": "make"})
    assert used(workspace=project).project.setup == ()


def test_a_build_of_it_is_one_with_its_file_arguments_and_stage(
    invoke: Invoke, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / ".devcontainer" / "D").write_text("FROM scratch AS dev")
    say(project, {"build": {"dockerfile": "D", "args": {"A": "1"}, "target": "dev"}})
    assert invoke("trust", str(project), "--yes").code == 0
    found = used(workspace=project)
    assert found.build == project / ".devcontainer"
    assert found.from_project.build == Build(str(found.build), "D", {"A": "1"}, "dev")
    capfd.readouterr()
    assert used(workspace=project, image="b:1").build is None
    told = f"ohsandbox: --image b:1 is used in the place of the project's build of {found.build}.\n"
    assert capfd.readouterr().err == told


def test_what_features_are_built_from_goes_once_nobody_used_it_and_no_conversation_names_it(
    invoke: Invoke, project: Path, home: Path
) -> None:
    feature = project / ".devcontainer" / "one"
    feature.mkdir()
    (feature / "devcontainer-feature.json").write_text('{"id": "one"}')
    (feature / "install.sh").write_text("true")
    say(project, {"image": "a:1", "features": {"./one": {}}})
    assert invoke("trust", str(project), "--yes").code == 0
    place = used(workspace=project).build
    assert place is not None
    assert _unused_copies() == []
    os.utime(place, (0, 0))
    assert used(workspace=project).build == place
    assert _unused_copies() == [], "it was used again"
    os.utime(place, (0, 0))
    options = home / ".ohsandbox/conversations/one/sandbox.json"
    options.parent.mkdir(parents=True)
    options.write_text(json.dumps({"build": str(place)}))
    assert _unused_copies(remove=True) == []
    moved = options.parent.rename(home / "moved")
    options.parent.symlink_to(moved)
    assert _unused_copies(remove=True) == [], "a conversation elsewhere names it"
    os.truncate(options, MAX_RECORD_BYTES + 1)
    assert _unused_copies(remove=True) == [], "nobody knows what it names"
    options.unlink()
    assert _unused_copies(remove=True) == [place]
    assert not place.exists()


def test_a_person_is_asked_with_what_it_wants_and_what_it_does_not_get(
    at_terminal: Callable[..., Recorded], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    say(project, {
        "image": "a:1", "containerEnv": {"KEY": "${localEnv:MY_KEY}"}, "initializeCommand": "touch /tmp/owned",
        "postCreateCommand": "echo \x1b[2J", "forwardPorts": [3000],
    })  # fmt: skip
    recorded = at_terminal("exec", "--workspace", str(project), "true", answers=[(QUESTION, b"y\n")])
    for row in (
        b"local (variables of this machine that commands get): KEY = MY_KEY", b"not used, whatever you answer: init",
        b"echo \\u{1b}[2J", b"sandbox's servers): 3000",
    ):  # fmt: skip
        assert row in recorded.raw
    assert trusted()[0].directory == project


@pytest.mark.slow
@pytest.mark.docker
def test_this_repository_s_own_is_used_by_a_run(
    invoke: Invoke, tmp_path: Path, image: str, write_script: WriteScript
) -> None:
    project = tmp_path / "own"
    shutil.copytree(ROOT / ".devcontainer", project / ".devcontainer")
    shutil.copytree(ROOT / "ohsandbox", project / "ohsandbox", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project / name)
    assert invoke("trust", str(project), "--yes").code == 0
    look = 'echo "$PATH"; ls -d /var/tmp/venv; cd /workspaces/own && python3 -c "import ohsandbox.text; print(6 * 7)"'
    model = write_script(("Look.", look), ("Done.", None))
    where = ("--workspace", str(project), "--image", image, "--network", "none", "--model", model, "--no-tui")
    ended = invoke("run", "x", *where)
    assert ended.code == 0, ended.err
    assert "setup: sh -c 'sh .devcontainer/install'" in ended.out
    assert "/var/tmp/venv/bin:/usr/local/sbin:" in ended.out
    assert "42" in ended.out
    assert not (project / "ohsandbox" / "__pycache__").exists()
    model = write_script(("Look.", look), ("Done.", None))
    assert "setup: done before" in invoke("run", "x", *where).out


@pytest.mark.docker
def test_a_command_of_a_start_that_does_not_end_goes_on_in_the_background(
    invoke: Invoke, project: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.cli.sandbox.setup_checkpoints.START_WAIT_S", 0.2)
    say(project, {"image": image, "postStartCommand": {
        "server": "echo up; exec sleep 987", "short": "echo 'a b'; touch /tmp/short", "wrong": "echo why; exit 3",
        "last": "touch /tmp/last",
    }})  # fmt: skip
    assert invoke("trust", str(project), "--yes").code == 0
    look = "cat /tmp/ohsandbox-start-1.log; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /tmp/short; [ -e /tmp/last ]"
    ended = invoke("exec", "--workspace", str(project), "--network", "none", "--", "sh", "-c", look)
    assert "It runs on in the background: /tmp/ohsandbox-start-1.log" in ended.err
    assert ended.out.startswith("up\n")
    assert "sleep 987" in ended.out
    assert "/tmp/short" in ended.out
    assert ended.code == 1
    for line in ("a b", "why", "failed. The sandbox is used as is"):
        assert line in ended.err
