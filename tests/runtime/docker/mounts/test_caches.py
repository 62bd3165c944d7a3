"""Package caches: kept between sandboxes of one project, image and user, and out of everybody else's reach."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.config.container_config import ContainerConfig, SandboxLimits, host_config
from ohsandbox.runtime.docker.config.options import DockerOptions, validated_options
from ohsandbox.runtime.docker.config.selfcheck import verdict
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.mounts import caches
from ohsandbox.runtime.docker.mounts.caches import CACHE_DIR
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.mount_text import Mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

IMAGE = "ohsandbox-base:debian"


class _Address:
    url = "unix:///there"


class _OtherEngine:
    """As much of an engine as a volume's name needs."""

    address = _Address()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two projects; the caches of both are removed at the end."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    yield tmp_path / "one", tmp_path / "other"
    with DockerInventory() as inventory:
        for cache in inventory.list_caches():
            assert inventory.remove_cache(cache.name)


def volume(place: Path, *, cache: str = "project", image: str = IMAGE, profile: Any = None, **config: object) -> str:
    """The name of a sandbox's volume."""
    options = DockerOptions(
        cache=cache, image=image, profile=profile, workspaces=(Mount(source=str(place), target="/workspace"),)
    )
    made = ContainerConfig.model_validate({"name": "n", "image": "i", "workdir": "/", **config})
    return caches._record(_OtherEngine(), options, made).volume  # type: ignore[arg-type]


def test_a_volume_is_of_one_project_image_user_and_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first = volume(one)
    assert volume(one) == first
    assert volume(one, user="0:0") == volume(one, user="root") == first
    others = [
        volume(other),
        volume(one, image="ohsandbox-base:hostile"),
        volume(one, user="1000"),
        volume(one, profile="trusted"),
        volume(one, architecture="arm64"),
        volume(one, cache="one"),
        volume(one, cache=str(one)),
    ]
    one.rename(tmp_path / "before")
    other.rename(one)  # another project comes to lie there
    others.append(volume(one))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    others.append(volume(one))
    monkeypatch.undo()
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "another machine"))
    others.append(volume(one))
    assert len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cache": "project"}, "needs a directory"),
        ({"cache": "../x"}, "is not a cache's name"),
        ({"cache": "none"}, "is not a cache's name"),
        ({"cache": "a", "profile": "strict"}, "profile='strict' and cache= exclude each other"),
        ({"cache": "a", "limits": SandboxLimits(disk_bytes=2**30)}, "outside of what disk_bytes"),
        ({"cache": "a", "attach": "there"}, "cache= is for a new container"),
    ],
)
def test_a_cache_that_is_none_or_would_widen_something_is_refused(asked: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        validated_options(**asked)


def test_a_sandbox_whose_volume_is_not_the_cache_is_refused() -> None:
    config = ContainerConfig(name="n", image="i", workdir="/", user="0", cache_volume="ohsandbox-cache-a")
    assert host_config(config)["Mounts"][-1]["VolumeOptions"] == {"NoCopy": True}
    facts = {"Uid": "0", "CapBnd": config.capability_mask, "CapEff": config.capability_mask}
    facts |= {"NoNewPrivs": "1", "Seccomp": "2", "interfaces": "lo", "memory": "1", "pids": "1", "cpu": "1,1000000"}
    facts |= {"fsize": "1,1", "nofile": "1", "ro/proc/sys": "1", "ro/sys": "1", "/run/ohs": "tmpfs,/"}
    facts |= {"/run/ohs-net": "tmpfs,/"}
    assert verdict(facts, config) == f"{CACHE_DIR} is not the volume ohsandbox-cache-a (nothing)"
    other = facts | {CACHE_DIR: "ext4,/var/lib/docker/volumes/ohsandbox-cache-b/_data"}
    assert "is not the volume" in str(verdict(other, config))
    assert verdict(facts | {CACHE_DIR: "ext4,/var/lib/docker/volumes/ohsandbox-cache-a/_data"}, config) is None


def test_a_kernel_of_its_own_has_no_cache(tmp_path: Path) -> None:
    config = ContainerConfig(name="n", image="i", workdir="/", user="0", runtime="runsc", own_kernel=True)
    options = DockerOptions(cache="a", image=IMAGE)
    with pytest.raises(UsageError, match=r"'runsc' has a kernel of its own.* Leave --cache"):
        caches.attach(_OtherEngine(), options, config)  # type: ignore[arg-type]
    assert not (tmp_path / "home" / "caches").exists()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.skipif(os.getuid() != 0, reason="a file system of our own needs root")
@pytest.mark.one_engine
def test_what_fills_the_disk_of_a_cache_is_killed(places: tuple[Path, Path], engine: Engine, tmp_path: Path) -> None:
    with DockerRuntime(IMAGE, workspace=places[0], copy=True, cache="project") as first:
        first.start()
        [kept] = caches.infos(engine)
    where = engine.api.inspect_volume(kept.name)["Mountpoint"]
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3g", "tmpfs", small], check=True)
    (small / kept.name / "_data").mkdir(parents=True)
    subprocess.run(["mount", "--bind", small / kept.name / "_data", where], check=True)
    try:
        limits = SandboxLimits(free_bytes=2 * 2**30)
        with DockerRuntime(IMAGE, workspace=places[0], copy=True, cache="project", limits=limits) as sandbox:
            told = sandbox.execute("yes >$PIP_CACHE_DIR/wheel", timeout_s=60)
            assert "The disk of the package cache has " in str(told.notice)
            assert "killed" in str(told.notice)
            assert sandbox.execute("rm $PIP_CACHE_DIR/wheel && echo cleared").output == "cleared\n"
    finally:
        subprocess.run(["umount", "-l", where, small], check=True)


POISON = f"""
cd {CACHE_DIR} && echo evil >pip/wheel && cp /bin/id pip/id && chmod 4755 pip/id 2>/dev/null
rm -rf npm uv apt && ln -s /etc npm && ln -s /workspace uv && ln -s /usr/local/bin apt; mkfifo cargo-git/waits; ls -l
"""
"""What an agent that is root may leave for the sandboxes after it."""
LOOK = f"""
cat {CACHE_DIR}/pip/wheel; ls -ld /etc /usr/local/bin; ls -d /usr/local/bin/partial; ls /workspace
chmod u+s /tmp 2>/dev/null && echo setuid; setpriv --reuid 1000 --clear-groups {CACHE_DIR}/pip/id -u 2>/dev/null
"""


@pytest.mark.docker
def test_what_one_sandbox_leaves_is_the_next_ones_and_nobody_elses_and_is_followed_nowhere(
    places: tuple[Path, Path], engine: Engine
) -> None:
    one, other = places
    with DockerRuntime(IMAGE, workspace=one, copy=True, cache="project") as first:
        assert first.run(["sh", "-c", POISON]).exit_code == 0
        with DockerInventory() as inventory:
            [kept] = inventory.list_caches()
            assert (kept.scope, kept.in_use, inventory.remove_cache(kept.name)) == (str(one), True, False)
            assert inventory.unused_caches() == []
        checkpoint = first.checkpoint()
    with DockerRuntime(IMAGE, workspace=one, copy=True, cache="project") as second:
        told = second.run(["sh", "-c", LOOK]).stdout.decode()
        assert told.startswith("evil\n")  # which is why nobody else has it
        assert told.count("drwxr-xr-x") == 2  # nothing that a link leads to was opened up
        assert "partial" not in told
        assert not told.endswith("\n0\n")  # no setuid file is one
        assert second.describe()["package caches"]
    look = ["sh", "-c", f"ls {CACHE_DIR}/pip {CACHE_DIR}/npm 2>&1; echo $PIP_CACHE_DIR"]
    clean: list[tuple[str, Callable[[], DockerRuntime]]] = [
        (f"{CACHE_DIR}/pip", lambda: DockerRuntime(IMAGE, workspace=other, copy=True, cache="project")),
        (
            f"{CACHE_DIR}/pip",
            lambda: DockerRuntime("ohsandbox-base:hostile", workspace=one, copy=True, cache="project"),
        ),
        (f"{CACHE_DIR}/pip", lambda: DockerRuntime(IMAGE, workspace=one, cache="project", user="4711")),
        ("", lambda: DockerRuntime(IMAGE, workspace=one, copy=True)),
        ("", lambda: DockerRuntime(IMAGE, checkpoint=checkpoint.id)),  # a checkpoint holds no cache
    ]
    for variable, make in clean:
        with make() as sandbox:
            seen = sandbox.run(look).stdout.decode()
            assert "wheel" not in seen
            assert seen.endswith(f"\n{variable}\n")
    with DockerInventory() as inventory:
        inventory.drop_checkpoint(checkpoint.id)
        one.rename(one.with_name("unmounted"))
        assert inventory.unused_caches() == []
        long_ago = time.time() - caches.UNUSED_S - 1
        os.utime(caches._path(kept.name), (long_ago, long_ago))
        assert inventory.unused_caches() == [kept.name]
        assert kept.name in {result.name for result in inventory.collect_garbage() if result.outcome == "removed"}
    assert kept.name not in {str(one["Name"]) for one in engine.api.volumes().get("Volumes") or []}


APT = """
export SOURCE_DATE_EPOCH=0
mkdir -p /repo/deb/DEBIAN && cd /repo || exit
for name in one two; do
    printf 'Package: %s\\nVersion: 1\\nArchitecture: all\\nMaintainer: a\\nDescription: x\\n' $name >deb/DEBIAN/control
    printf '#!/bin/sh\\n[ ! -e /go ] || { echo >/begun; read x </go; }\\n' >deb/DEBIAN/postinst
    chmod 755 deb/DEBIAN/postinst
    dpkg-deb --build deb $name.deb >/dev/null || exit
    cat deb/DEBIAN/control - >>Packages <<END
Filename: ./$name.deb
Size: $(stat -c %s $name.deb)
SHA256: $(sha256sum $name.deb | cut -d' ' -f1)

END
done
rm -f /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] copy:/repo ./' >/etc/apt/sources.list && apt-get update
"""
"""A repository with two packages, whose installation waits where there is a FIFO /go.

Both sandboxes have to make the same packages: apt takes what is cached for another one if its size differs, and with
the files' times in it a package has 700 bytes or, of 40 times in two, 704.
"""


@pytest.mark.slow
@pytest.mark.docker
def test_two_sandboxes_install_with_apt_at_the_same_moment_and_each_has_what_the_other_fetched() -> None:
    with DockerRuntime(IMAGE, cache="apt-test") as one, DockerRuntime(IMAGE, cache="apt-test") as two:
        for sandbox in (one, two):
            made = sandbox.run(["sh", "-c", APT])
            assert made.exit_code == 0, made.stdout
        assert one.run(["mkfifo", "/go", "/begun"]).exit_code == 0
        with one.open_channel(["apt-get", "install", "-y", "one"]) as installing:
            one.run(["sh", "-c", "read x </begun"], timeout_s=60)
            meanwhile = two.run(["apt-get", "install", "-y", "two"], timeout_s=60)
            assert (meanwhile.exit_code, b"Need to get 0 B" in meanwhile.stdout) == (0, False), meanwhile.stdout
            one.run(["sh", "-c", "echo >/go"], timeout_s=60)
            assert installing.wait(60) == 0
        assert two.run(["sh", "-c", "apt-get update && rm /repo/one.deb"]).exit_code == 0
        found = two.run(["apt-get", "install", "-y", "one"])
        assert (found.exit_code, b"Need to get 0 B/" in found.stdout) == (0, True), found.stdout
    with DockerInventory() as inventory:
        [kept] = inventory.list_caches()
        assert inventory.remove_cache(kept.name)
