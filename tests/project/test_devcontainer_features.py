"""Features of a devcontainer that lie in the project: read through no link, installed once, as what was trusted."""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.settings.project import use_project
from ohsandbox.errors import UsageError
from ohsandbox.project.features import MAX_BYTES, MAX_FILES
from ohsandbox.project.project_file import Project, find_project
from ohsandbox.project.trust import trust
from ohsandbox.runtime.docker import Build, DockerRuntime, build_image
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.images import builders
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

NASTY = "a'b\"c\n$(touch /owned) `touch /owned` \\ ${HOME}\nRUN touch /owned"


IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")


def feature(project: Path, name: str, script: str = "true\n", **said: Any) -> Path:
    directory = project / ".devcontainer" / name
    directory.mkdir()
    (directory / "devcontainer-feature.json").write_text(json.dumps({"id": name, "version": "1.0.0"} | said))
    (directory / "install.sh").write_text("#!/bin/sh\nset -e\n" + script)
    return directory


def found(project: Path, features: dict[str, Any], **said: Any) -> Project:
    text = json.dumps({"image": "a:1", "features": features} | said)
    (project / ".devcontainer" / "devcontainer.json").write_text(text)
    one = find_project(project)
    assert one is not None
    return one


def order(project: Project) -> list[str]:
    assert project.devcontainer is not None
    return [one.id for one in project.devcontainer.features]


def test_all_of_a_feature_is_shown_and_trusted(project: Path) -> None:
    here = feature(
        project, "one", options={"tool-version": {"type": "string", "default": "2"}, "x": {"type": "boolean"}}
    )
    first = found(project, {"./one": {"x": True}})
    assert "image" not in first.values
    wide = first.needing_trust(Settings())
    assert wide["image"] == "a:1"
    assert wide["features"][0].startswith("./one 1.0.0 (")
    assert wide["features"][0].endswith(" TOOL_VERSION='2' X='true'")
    digests = {first.digest(), found(project, {"./one": {}}).digest()}
    (here / "install.sh").write_text("evil")
    digests.add(found(project, {"./one": {}}).digest())
    (here / "more").write_text("x")
    digests.add(found(project, {"./one": {}}).digest())
    (here / "more").chmod(0o755)
    digests.add(found(project, {"./one": {}}).digest())
    assert len(digests) == 5
    (project / ".ohsandbox.toml").write_text('image = "b:1"')
    other = found(project, {"./one": {}})
    assert other.image_build() is None
    assert other.devcontainer is not None
    assert "features ./one (the project's file has an image)" in other.devcontainer.left_out


def test_they_are_installed_in_their_order_and_what_lacks_another_is_left_out(project: Path) -> None:
    feature(project, "a", installsAfter=["example.org/features/c"])
    feature(project, "b")
    feature(project, "c", dependsOn={"./b:1": {}})
    every: dict[str, Any] = {"./a": {}, "./b": {}, "./c": {}}
    assert order(found(project, every)) == ["b", "c", "a"]
    assert order(found(project, {"./b": {}, "./a": {}}, overrideFeatureInstallOrder=["./a"])) == ["a", "b"]
    lacking = found(project, {"./c": {}, "./a": {}})
    assert order(lacking) == ["a"]
    assert lacking.devcontainer is not None
    assert lacking.devcontainer.left_out == ("feature ./c (it depends on ./b:1, which is not installed)",)
    feature(project, "d", installsAfter=["./e"])
    feature(project, "e", installsAfter=["./d"])
    with pytest.raises(UsageError, match=r"features \./d, \./e wait for each other"):
        found(project, {"./d": {}, "./e": {}})


def test_what_raises_rights_and_what_is_no_feature_is_told_and_left_out(project: Path) -> None:
    feature(project, "a", privileged=True, mounts=["x"], capAdd=["SYS_ADMIN"], entrypoint="/x", init=True, newOne=1)
    dev = found(project, {"./a": {}, "docker-in-docker": {}}).devcontainer
    assert dev is not None
    assert [one.partition(" (")[0] for one in dev.left_out] == [
        "feature docker-in-docker",
        *(f"{name} of feature ./a" for name in ("capAdd", "entrypoint", "init", "mounts", "newOne", "privileged")),
    ]


@pytest.mark.parametrize(
    ("said", "given", "told"),
    [
        ({"id": "../x"}, {}, "no valid 'id'"),
        ({"id": None}, {}, "no valid 'id'"),
        ({"options": []}, {}, "'options' is not an object"),
        ({"options": {"a": 3}}, {}, "no option 'a'"),
        ({}, {"b": "x"}, "no option 'b'"),
        ({"options": {"a": {"type": "string", "enum": ["x"]}}}, {"a": "y"}, "not one of"),
        ({"options": {"a": {"type": "string"}}}, {"a": ["y"]}, "is not a string"),
        ({"options": {"a": {"type": "string"}}}, {"a": "\0"}, "NUL byte"),
        ({}, 3, "options are not an object"),
        ({"containerEnv": {"A": "x\nRUN touch /owned"}}, {}, "not a variable of one line"),
        ({"containerEnv": {"A B": "x"}}, {}, "not a variable of one line"),
        ({"installsAfter": "x"}, {}, "not a list"),
    ],
)
def test_a_feature_that_is_wrong_is_told(project: Path, said: dict[str, Any], given: Any, told: str) -> None:
    feature(project, "a", **said)
    with pytest.raises(UsageError, match=told):
        found(project, {"./a": given})


def test_nothing_outside_is_read_through_names_links_or_kinds_and_no_bomb(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("devcontainer-feature.json", "install.sh"):
        (outside / name).write_text('{"id": "x"}')
    for reference in ("./../../outside", "./", "./\0", "./missing"):
        with pytest.raises(UsageError, match=r"outside of|cannot be read"):
            found(project, {reference: {}})
    (project / ".devcontainer" / "link").symlink_to(outside)
    with pytest.raises(UsageError, match="through no link"):
        found(project, {"./link": {}})
    here = feature(project, "a")
    for make in (
        lambda path: path.symlink_to(outside / "install.sh"),
        lambda path: path.symlink_to(outside),
        os.mkfifo,
        lambda path: path.write_bytes(b"x" * MAX_BYTES),
    ):
        make(here / "more")
        with pytest.raises(UsageError, match=r"through no link|not a regular file|has over"):
            found(project, {"./a": {}})
        (here / "more").unlink()
    (here / "/".join("d" * 40)).mkdir(parents=True)
    with pytest.raises(UsageError, match="too many directories"):
        found(project, {"./a": {}})
    many = feature(project, "b")
    for number in range(MAX_FILES):
        (many / str(number)).touch()
    with pytest.raises(UsageError, match="has over"):
        found(project, {"./b": {}})


def test_what_is_built_is_what_was_trusted(project: Path) -> None:
    here = feature(project, "one")
    trusted = found(project, {"./one": {}})
    trust(project, trusted.digest())
    asked = SandboxOptions(workspace=project)
    used = use_project(asked, None, person=False)
    assert used is not None
    (here / "install.sh").write_text("evil")
    where = used.applied_to(asked)
    assert where.build is not None
    assert where.from_project.build == Build(where.build, base="a:1")
    assert "evil" not in (where.build / "0" / "feature" / "install.sh").read_text()
    assert used.applied_to(SandboxOptions(workspace=project, image="b:1")).build is None
    again = use_project(asked, None, person=False)
    assert again is not None
    assert again.applied_to(asked).build is None


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["buildkit", pytest.param("classic", marks=pytest.mark.slow)])
def test_scripts_run_as_root_once_with_their_options_on_the_image_or_its_build(
    project: Path, builder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if builder == "classic":
        monkeypatch.setattr(builders, "buildkit_command", lambda _: None)
    script = (
        'id -u > /made; pwd >> /made; printf "%s" "$TEXT" > /text\n'
        'echo "$_REMOTE_USER $_REMOTE_USER_HOME $_CONTAINER_USER $FROM_ENV $ON" >> /made\ncp file /copied\n'
    )
    options = {"text": {"type": "string"}, "on": {"type": "boolean", "default": True}}
    here = feature(project, "one", script, options=options, containerEnv={"FROM_ENV": 'q"\\:${FIRST}'})
    (here / "file").write_text(tag := secrets.token_hex(8))
    feature(project, "two", "test -f /copied; touch /second\n", installsAfter=["./one"])
    (project / ".devcontainer" / "D").write_text(
        f"FROM {IMAGE}\nLABEL test={tag}\nENV FIRST=1\n"
        "RUN echo dev:x:1234:1234::/home/dev:/bin/sh >> /etc/passwd\nUSER dev"
    )
    features: dict[str, Any] = {"./two": {}, "./one": {"text": NASTY}}
    asked = found(project, features, image=None, build={"dockerfile": "D"}).image_build()
    assert asked is not None
    try:
        built = build_image(asked)
        assert build_image(asked) == built
        with DockerRuntime(build=asked, network="none") as sandbox:
            assert sandbox.execute("cat /text").output.rstrip("\n") == NASTY
            told = sandbox.execute("cat /made; id -un; ls -d /second; ls -d /owned; ls -d /var/tmp/ohsandbox*").output
    finally:
        _remove_images(tag)
    for line in ("0", "/var/tmp/ohsandbox-feature-0/feature", 'dev /home/dev dev q"\\:1 true', "dev", "/second"):
        assert line in told.splitlines()
    assert told.count("No such file") == 2


def _remove_images(tag: str) -> None:
    engine = connect()
    try:
        for image in engine.api.images(filters={"label": f"test={tag}"}, all=False):
            engine.api.remove_image(image["Id"], force=True)
    finally:
        engine.close()
