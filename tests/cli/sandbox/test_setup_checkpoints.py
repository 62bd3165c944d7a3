"""Setup commands of a project: what they depend on, and that they run once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.options.shared import ProjectCommands, SandboxOptions
from ohsandbox.cli.sandbox.setup_checkpoints import setup_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke


def key(directory: Path, *setup: str, inputs: tuple[str, ...] | None = None, **more: Any) -> str | None:
    project = ProjectCommands(directory=directory, setup=setup or ("make",), inputs=inputs)
    return setup_key(SandboxOptions(project=project, **more))


def test_a_setup_depends_on_its_commands_its_directory_and_the_files_that_it_reads(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    for directory in (project, other):
        (directory / "scripts").mkdir(parents=True)
        (directory / "scripts" / "a.sh").write_text("1")
    before = [key(project), key(project, "sh ./scripts/a.sh -x"), key(project, inputs=("scripts/*",))]
    assert len({*before, key(other), key(project, "make", "make")}) == 5
    (project / "notes.txt").write_text("no input")
    assert before == [key(project), key(project, "sh ./scripts/a.sh -x"), key(project, inputs=("scripts/*",))]
    (project / "scripts" / "a.sh").write_text("2")
    after = [key(project), key(project, "sh ./scripts/a.sh -x"), key(project, inputs=("scripts/*",))]
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, False, False]
    (project / "requirements-dev.txt").write_text("pytest")
    assert key(project) != after[0]
    assert key(project, no_setup_cache=True) is None


def test_an_input_that_is_a_link_out_of_the_project_or_no_file_is_not_read(tmp_path: Path) -> None:
    import os  # noqa: PLC0415 - for this test

    project, secret = tmp_path / "project", tmp_path / "secret"
    project.mkdir()
    secret.write_text("1")
    (project / "package.json").symlink_to(secret)
    os.mkfifo(project / "Makefile")
    before = key(project)
    secret.write_text("2")
    assert key(project) == before is not None
    (project / "package.json").unlink()
    (project / "package.json").write_text("2")
    assert key(project) != before


def test_inputs_that_are_too_large_to_be_read_at_each_start_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.cli.sandbox.setup_checkpoints.MAX_INPUT_BYTES", 10)
    (tmp_path / "uv.lock").write_text("x" * 8)
    assert key(tmp_path) is not None
    (tmp_path / "package.json").write_text("x" * 8)
    assert key(tmp_path) is None


@pytest.mark.slow
@pytest.mark.docker
def test_setup_runs_once_until_what_it_reads_changes(invoke: Invoke, project: Path, image: str) -> None:
    (project / "requirements.txt").write_text("a")
    setup = "cat requirements.txt >>$HOME/installed; echo x >>runs"
    (project / ".ohsandbox.toml").write_text(f'image = "{image}"\nworkspace = "bind"\nsetup = ["{setup}"]')
    assert invoke("trust", "--yes").code == 0
    show = ("exec", "--", "sh", "-c", "cat $HOME/installed")
    runs = []
    for change, more in (("", []), ("", []), ("b", []), ("", ["--no-setup-cache"])):
        with (project / "requirements.txt").open("a") as file:
            file.write(change)
        ended = invoke(show[0], *more, *show[1:])
        assert ended.code == 0
        runs.append((ended.out, (project / "runs").read_text().count("x"), "done before" in ended.err))
    assert runs == [("a", 1, False), ("a", 1, True), ("ab", 2, False), ("ab", 3, False)]
