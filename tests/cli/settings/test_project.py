"""A project's file at the command line: what counts at once, what is asked, what is left out."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.settings.project import use_project
from ohsandbox.project.trust import trusted
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Invoke, Recorded, WriteScript

WIDE = 'image = "evil:1"\nnetwork = "open"\nmax_iterations = 7\nsetup = ["echo \\u001b[2J"]\n'
QUESTION = b"Trust this directory with this content? [y/N] "


def say(project: Path, text: str) -> None:
    (project / ".ohsandbox.toml").write_text(text)


def rows(invoke: Invoke) -> dict[str, tuple[object, str]]:
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(invoke("config", "list", "--json").out)}


def test_without_trust_only_what_narrows_counts_and_one_line_says_so(invoke: Invoke, project: Path) -> None:
    say(project, WIDE)
    ended = invoke("config", "list", "--json")
    assert ended.err.count("\n") == 1
    assert "is not trusted, so its image, network, setup are not used" in ended.err
    assert f"`ohsandbox trust {project}`" in ended.err
    found = rows(invoke)
    assert found["max_iterations"] == (7, f"project file {str(project / '.ohsandbox.toml')!r}")
    assert (found["image"][0], found["network"][0]) == ("python:3.12", None)


def test_a_trusted_file_counts_until_it_changes_or_trust_is_revoked(invoke: Invoke, project: Path) -> None:
    say(project, WIDE)
    ended = invoke("trust", "--yes")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "echo \\u{1b}[2J" in ended.out
    assert rows(invoke)["network"][0] == "open"
    say(project, WIDE.replace("evil:1", "worse:1"))
    assert rows(invoke)["network"][0] is None
    assert "has changed since you trusted it" in invoke("config", "list").err
    assert json.loads(invoke("trust", "--list", "--json").out)[0]["state"] == "changed"
    say(project, WIDE)
    assert rows(invoke)["network"][0] == "open"
    assert invoke("trust", "--revoke").code == 0
    assert rows(invoke)["network"][0] is None
    assert invoke("trust", "--list").out == "No directory is trusted.\n"


def test_trust_without_a_terminal_needs_yes(invoke: Invoke, project: Path) -> None:
    say(project, WIDE)
    ended = invoke("trust")
    assert ended.code == 2
    assert "--yes" in ended.err
    assert trusted() == []


def test_a_file_that_only_narrows_needs_no_trust(invoke: Invoke, project: Path) -> None:
    say(project, "max_iterations = 7")
    ended = invoke("trust")
    assert ended.code == 0
    assert "only narrows" in ended.out
    assert trusted() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "is_trusted"), [(b"y\n", True), (b"\n", False), (b"n\n", False), (b"\x1b[200~y\n\x1b[201~\n", False)]
)
def test_a_person_is_asked_once_and_only_a_typed_yes_counts(
    at_terminal: Callable[..., Recorded], project: Path, answer: bytes, *, is_trusted: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    say(project, WIDE)
    recorded = at_terminal("exec", "true", answers=[(QUESTION, answer)])
    assert b"network (open, allowlist: what the sandbox sees can leave this machine): open" in recorded.raw
    assert b"echo \\u{1b}[2J" in recorded.raw
    assert recorded.code == 4  # no engine
    assert bool(trusted()) is is_trusted
    if is_trusted:
        assert QUESTION not in at_terminal("exec", "true").raw


def test_what_changes_while_it_is_looked_at_is_not_trusted(at_terminal: Callable[..., Recorded], project: Path) -> None:
    def swap(_process: object, master: int) -> None:
        say(project, WIDE.replace("evil:1", "worse:1"))
        os.write(master, b"y\n")

    say(project, WIDE)
    recorded = at_terminal("trust", answers=[(QUESTION, swap)])
    assert recorded.code == 2
    assert b"changed while it was looked at" in recorded.raw
    assert trusted() == []


@pytest.mark.parametrize("command", [["run", "x", "--model", "scripted:none"], ["exec", "true"], ["mcp", "serve"]])
def test_a_wrong_file_stops_every_command_by_one_line_and_no_project_goes_on(
    invoke: Invoke, project: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    say(project, "imag = 1")
    ended = invoke(*command)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "Did you mean 'image'?" in ended.err
    if command[0] == "exec":
        assert invoke("exec", "--no-project", "true").code == 4


def used(project: Path, text: str, **where: Any) -> SandboxOptions:
    say(project, text)
    asked = SandboxOptions(**where)
    found = use_project(asked, None, person=False)
    assert found is not None
    settings = Settings.load(project=found.layer)
    return found.applied_to(asked).checked().with_settings(settings)


def test_flags_and_variables_stand_above_a_trusted_project(
    invoke: Invoke, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'image = "a:1"\nworkspace = "copy"\nmemory = "1g"\n'
    say(project, text)
    assert invoke("trust", "--yes").code == 0
    found = used(project, text)
    assert (found.image, found.workspace, found.copy, found.memory) == ("a:1", project, True, 1 << 30)
    found = used(project, text, image="b:1", workspace=project, memory=512 << 20)
    assert (found.image, found.copy, found.memory) == ("b:1", False, 512 << 20)
    monkeypatch.setenv("OHSANDBOX_IMAGE", "c:1")
    assert used(project, text).image == "c:1"


@pytest.mark.parametrize(("model", "key"), [("openai/gpt-5.1", None), ("anthropic/claude-opus-4-5", "k")])
def test_the_person_s_key_is_not_given_to_another_provider_that_a_project_names(
    invoke: Invoke, project: Path, home: Path, model: str, key: str | None
) -> None:
    file = home / ".ohsandbox" / "settings.json"
    file.parent.mkdir(mode=0o700)
    file.write_text('{"model": "anthropic/claude-sonnet-4-5", "api_key": "k", "price": [1, 2]}')
    file.chmod(0o600)
    say(project, f'model = "{model}"')
    assert invoke("trust", "--yes").code == 0
    found = use_project(SandboxOptions(), None, person=False)
    assert found is not None
    settings = Settings.load(project=found.layer)
    assert (settings.model, settings.resolved_api_key(), settings.price) == (model, key, None)


def test_a_build_of_the_project_yields_to_any_image_that_is_asked_for(
    invoke: Invoke, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "image").mkdir()
    (project / "image" / "Dockerfile").write_text("FROM scratch")
    say(project, 'build = "image"')
    assert invoke("trust", "--yes").code == 0
    assert (used(project, 'build = "image"').build, used(project, 'build = "image"', image="b:1").build) == (
        project / "image",
        None,
    )
    monkeypatch.setenv("OHSANDBOX_IMAGE", "c:1")
    assert (used(project, 'build = "image"').build, used(project, 'build = "image"').image) == (None, "c:1")


def test_nothing_of_a_project_runs_on_this_host_or_in_a_container_that_is_joined(invoke: Invoke, project: Path) -> None:
    text = 'setup = ["touch /tmp/x"]\nworkspace = "bind"\n'
    say(project, text)
    assert invoke("trust", "--yes").code == 0
    assert used(project, text).project.setup == ("touch /tmp/x",)
    for where in ({"runtime": "cli"}, {"attach": "x"}):
        found = used(project, text, **where)
        assert (found.project.setup, found.workspace) == ((), None)


def test_the_project_of_the_workspace_counts_and_not_that_of_the_current_directory(
    project: Path, tmp_path: Path
) -> None:
    say(project, "max_iterations = 7")
    other = tmp_path / "other"
    other.mkdir()
    assert use_project(SandboxOptions(workspace=other), None, person=False) is None


def test_python_does_not_look_for_a_project(project: Path) -> None:
    say(project, WIDE)
    assert Settings.load() == Settings()


@pytest.mark.docker
def test_setup_runs_once_in_a_shell_of_its_own_and_its_output_is_shown(
    invoke: Invoke, project: Path, image: str, write_script: WriteScript
) -> None:
    say(project, f'image = "{image}"\nsetup = ["cd /tmp", "echo made > here; echo told"]\n')
    assert invoke("trust", "--yes").code == 0
    ended = invoke("exec", "cat", "/tmp/here")
    assert (ended.code, ended.out) == (0, "made\n")
    assert "told" in ended.err
    model = write_script(("Look.", "cat /tmp/here; pwd"), ("Done.", None))
    ended = invoke("run", "x", "--model", model, "--no-tui", "--no-setup-cache")
    assert ended.code == 0
    assert "setup: cd /tmp" in ended.out
    assert "made" in ended.out
    assert "/workspace" in ended.out


@pytest.mark.docker
def test_a_setup_that_fails_is_an_error_that_names_the_command(invoke: Invoke, project: Path, image: str) -> None:
    say(project, f'image = "{image}"\nsetup = ["echo why; false", "echo never"]\n')
    assert invoke("trust", "--yes").code == 0
    ended = invoke("exec", "echo", "ran")
    assert (ended.code, ended.out) == (4, "")
    assert "why" in ended.err
    assert "'echo why; false' of the project file failed with exit code 1" in ended.err
    assert "never" not in ended.err


@pytest.mark.docker
def test_without_trust_no_setup_runs_and_the_image_is_the_persons(invoke: Invoke, project: Path, image: str) -> None:
    say(project, 'image = "evil:1"\nsetup = ["touch /tmp/here"]\n')
    ended = invoke("exec", "--image", image, "test", "-e", "/tmp/here")
    assert ended.code == 1
    assert "are not used" in ended.err


def test_a_huge_value_is_cut_and_its_length_told(invoke: Invoke, project: Path) -> None:
    (project / ".ohsandbox.toml").write_text(f'setup = ["echo {"x" * 9_990}"]\nallow = {["a.example"] * 300}\n')
    shown = invoke("trust", "--yes").out
    assert "[... cut here: 9,995 characters in all, see the file ...]" in shown.replace("\n  | ", "")
    assert shown.count("xxxxx") < 1000
    assert "... and 100 more, 300 in all: see the file" in shown
