"""Mounts and several workspaces: what is refused, what is bound, and that it is what was looked at."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime, Mount
from ohsandbox.errors import SandboxRefused, SandboxUnavailable, UsageError
from ohsandbox.paths import state_dir
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker import provision
from ohsandbox.runtime.docker.config.options import DockerOptions
from ohsandbox.runtime.docker.mounts import bind_mounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

IMAGE = "ohsandbox-base:debian"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("first", "lib", "data/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "table.csv").write_text("1\n")
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "/", "/proc", "/proc/self", "//proc/1/", "/sys/fs", "/dev/shm", "/run/ohs", "/run/ohs-net/x", "/run", "/etc",
        "/etc/passwd", "/usr", "/usr/bin", "/bin", "/lib/x86_64-linux-gnu", "/home", "/home/ohsandbox", "/tmp", "/root",
        "/workspaces", "/data/../etc", "/usr/local/share/ohsandbox-ca.pem",
        "/data\nx", "/da:ta", "/\x1b[2J", "relative",
    ],
)  # fmt: skip
def test_a_target_over_the_system_or_our_own_files_is_refused(here: Path, target: str) -> None:
    with pytest.raises(UsageError, match="cannot be mounted at"):
        DockerRuntime(mounts=[Mount(source=str(here / "data"), target=target, read_only=True)])


@pytest.mark.parametrize("target", ["/data", "/etc/nginx/nginx.conf", "/usr/src/app", "/opt/x y", "/root/.m2/x"])
def test_other_targets_are_taken_in_their_normal_form(here: Path, target: str) -> None:
    runtime = DockerRuntime(mounts=[Mount(source=str(here / "data"), target=f"{target}//./", read_only=True)])
    assert [one.target for one in runtime._options.mounts] == [target]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{0}/data", "is not SOURCE:TARGET"),
        ("{0}/data:data", "is not SOURCE:TARGET"),
        ("{0}/data:/a:/b", "is not SOURCE:TARGET"),
        ("{0}/data:/a:rox", "is not SOURCE:TARGET"),
        (":/a", "is not SOURCE:TARGET"),
        ("{0}/data/table.csv:/t", "is not a directory. Name a directory, or a file with :ro"),
        ("{0}/nosuch:/t", "Make it first"),
        ("/etc/ssl:/t:ro", "belongs to the host"),
        ("/var/run/docker.sock:/t:ro", "neither a directory nor a file|belongs to the host"),
        ("/dev/null:/t:ro", "neither a directory nor a file"),
    ],
)
def test_what_is_no_mount_or_no_source_is_refused_with_a_remedy(here: Path, given: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        DockerRuntime(mounts=[given.format(here)])
    assert re.search(r"\. (Name|Choose|Make|Work|Mount|Install|Use) ", str(refused.value))


def test_sockets_fifos_homes_and_the_state_directory_are_no_sources(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(here / "fifo")
    monkeypatch.chdir(here)  # a socket's name is at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    (here / "home/.ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "link").symlink_to(here / "home/.ssh")
    for name in ("fifo", "socket", "home", "home/.ssh", "link", "link/../.ssh"):
        with pytest.raises(UsageError, match=r"\. (Name|Choose|Make|Work|Mount|Install|Use|Give) "):
            DockerRuntime(mounts=[f"{here / name}:/t:ro"])
    with pytest.raises(UsageError, match="state directory"):
        DockerRuntime(mounts=[f"{state_dir(create=True)}:/t:ro"])


@pytest.mark.parametrize("name", [".git", ".git/hooks", ".GIT", ".vscode", ".git/modules/x", "bare/hooks"])
def test_a_part_of_a_repository_is_bound_by_itself_only_to_be_read(here: Path, name: str) -> None:
    """The guard knows hooks and configuration by their places in a repository."""
    for part in ("HEAD", "objects", "refs"):
        (here / "bare" / part).mkdir(parents=True)
    (here / name).mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match="is refused: it lies in"):
        DockerRuntime(mounts=[f"{here / name}:/t"])
    with pytest.raises(UsageError, match="is refused: it lies in"):
        DockerRuntime(workspace=here / name)
    assert DockerRuntime(mounts=[f"{here / name}:/t:ro"])


def test_nothing_lies_in_another_mount_neither_inside_nor_here(here: Path) -> None:
    first, data = str(here / "first"), str(here / "data")
    for bound in (["/workspace/x"], ["/workspace"], ["/d", "/d/e"], ["/d/e", "/d"], ["/d", "/d"]):
        sources = [data, str(here / "lib")]
        with pytest.raises(UsageError, match="cannot be mounted at"):
            DockerRuntime(workspace=first, mounts=[f"{s}:{t}" for s, t in zip(sources, bound, strict=False)])
    with pytest.raises(UsageError, match="one lies in the other"):
        DockerRuntime(workspace=first, mounts=[f"{first}:/again:ro"])
    with pytest.raises(UsageError, match="one lies in the other"):
        DockerRuntime(mounts=[f"{data}/deep:/deep", f"{data}:/data:ro"])
    with pytest.raises(UsageError, match="cannot be mounted at '/workspace/x': /workspace is used"):
        DockerRuntime(workspace=first, copy=True, mounts=[f"{data}:/workspace/x:ro"])


def test_workspaces_have_places_of_their_own(here: Path) -> None:
    first, lib = str(here / "first"), str(here / "lib")
    options = DockerRuntime(workspace=[first, f"{lib}:ro"])._options
    assert [str(one) for one in options.workspaces] == [f"{first}:/workspace", f"{lib}:/workspaces/lib:ro"]
    options = DockerRuntime(workspace=[first, lib], same_path=True)._options
    assert [str(one) for one in options.workspaces] == [f"{first}:{first}", f"{lib}:{lib}"]
    (here / "other/lib").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"would both be at '/workspaces/lib'\. Use --same-path"):
        DockerRuntime(workspace=[first, lib, here / "other/lib"])
    named = Mount(source=str(here / "other/lib"), target="/workspaces/lib2")
    assert DockerRuntime(workspace=[first, lib, named])._options.workspaces[-1].target == "/workspaces/lib2"
    with pytest.raises(UsageError, match="copies one directory, not 2"):
        DockerRuntime(workspace=[first, lib], copy=True)


def swap(path: Path, target: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


def test_a_source_that_became_a_link_since_it_was_looked_at_is_not_bound(here: Path) -> None:
    (here / "secret/deep").mkdir(parents=True)
    options = DockerOptions(mounts=(Mount(source=str(here / "data/deep"), target="/d", read_only=True),))
    swap(here / "data", here / "secret")
    with pytest.raises(UsageError, match="'data' is a link now"):
        provision.binds_now(options)


def test_each_name_has_its_inode_compared() -> None:
    bound = [
        bind_mounts.Bind("/a", "/x", inode=7),
        bind_mounts.Bind("/b", "/y", inode=0),
        bind_mounts.Bind("/c", "/z", inode=9),
    ]
    bind_mounts.verify_identity(bound, " 7 /x\n8 /y\n9 /z\n")
    for listed in ("8 /x\n8 /y\n9 /z\n", "7 /x\n8 /y\n", "7 /x\n8 /y\n10 /z\n"):
        with pytest.raises(SandboxRefused, match="as it was looked at"):
            bind_mounts.verify_identity(bound, listed)


@pytest.mark.docker
@pytest.mark.one_engine
def test_what_is_swapped_just_before_the_engine_binds_it_is_refused(
    here: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine follows a link that another sandbox put there meanwhile; from inside that is seen."""
    (here / "secret/deep").mkdir(parents=True)
    before: Callable[..., object] = containers.create

    def late(*given: object, **how: object) -> object:
        if not (here / "moved").exists():
            swap(here / "data", here / "secret")
        return before(*given, **how)

    monkeypatch.setattr(containers, "create", late)
    with pytest.raises(SandboxUnavailable, match="/d in the sandbox is not"):
        DockerRuntime(IMAGE, mounts=[f"{here / 'data/deep'}:/d:ro"]).start()
    assert engine.has_our_kernel()


LOOK = """
grep CapBnd /proc/self/status
for n in /workspace /workspaces/lib /data /etc/app/t.csv; do (echo x >>$n/new) 2>/dev/null && echo "wrote $n"; done
cat /etc/app/t.csv; rm -f /etc/app/t.csv 2>/dev/null || echo kept
cp /bin/true /workspace/t && chmod u+s /workspace/t 2>/dev/null && echo setuid
echo x 2>/dev/null >/workspaces/rw/.git/hooks/pre-commit && echo hooked
mount -o remount,rw /data 2>/dev/null && echo remounted
"""


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_what_is_bound_is_as_strict_as_it_was_asked_for_and_stays_so(here: Path) -> None:
    """Read-only is read-only, FIFOs are refused, repositories are guarded in each place, and a resume keeps it."""
    data = here / "data"
    os.mkfifo(data / "fifo")
    for part in ("HEAD", "objects", "refs", "hooks"):
        (here / "rw/.git" / part).mkdir(parents=True)
    asked = {
        "workspace": [here / "first", f"{here / 'lib'}:ro", here / "rw"],
        "mounts": [f"{data}:/data:ro", Mount(source=str(data / "table.csv"), target="/etc/app/t.csv", read_only=True)],
    }
    with pytest.raises(UsageError, match="one lies in the other"):
        DockerRuntime(IMAGE, **asked)  # type: ignore[arg-type] # of a dict
    (here / "table.csv").write_text("1\n")
    asked["mounts"][1] = f"{here / 'table.csv'}:/etc/app/t.csv:ro"
    with pytest.raises(UsageError, match="/data/fifo' is a FIFO"):
        DockerRuntime(IMAGE, **asked).start()  # type: ignore[arg-type] # as above
    (data / "fifo").unlink()
    talk = f"talk-{here.name[-12:]}"
    runtime = DockerRuntime(IMAGE, conversation=talk, **asked).start()  # type: ignore[arg-type] # as above
    said = runtime.execute(LOOK).output
    assert said.split() == ["CapBnd:", "0000000000000000", "wrote", "/workspace", "1", "kept"]
    told = runtime.describe()
    assert told["more workspaces"] == "/workspaces/lib (read-only), /workspaces/rw"
    assert "which no undo covers" in told["mounts"]
    (here / "rw/conftest.py").write_text("")
    assert [one.path for one in runtime.workspace_changes().changes] == ["t", str(here / "rw/conftest.py")][::-1]
    runtime.leave()
    again = DockerRuntime(IMAGE, conversation=talk, **asked)  # type: ignore[arg-type] # as above
    try:
        assert [note for note in again.resume().notes if "was asked for" in note] == []
        assert again.execute(LOOK).output == said
        assert set(again.host_workspaces) == {"/workspace", "/workspaces/rw"}
    finally:
        again.close(keep=False)
    assert not (here / "rw/.git/config.lock").exists()


@pytest.mark.docker
@pytest.mark.one_engine
@pytest.mark.usefixtures("engine")
def test_a_mount_that_is_only_read_leaves_the_sandbox_its_root(here: Path) -> None:
    inner = here / "data" / "deep"
    is_mounted = subprocess.run(["mount", "-t", "tmpfs", "none", inner], check=False).returncode == 0  # for root
    try:
        with DockerRuntime(IMAGE, mounts=[f"{here / 'data'}:/data:ro"]) as runtime:
            said = runtime.execute(
                "grep CapBnd /proc/self/status; cat /data/table.csv; touch /data/deep/x; touch /data/x; cd; pwd"
            ).output
        assert [*inner.iterdir()] == []
    finally:
        if is_mounted:
            subprocess.run(["umount", inner], check=True)
    assert said.split()[:3] == ["CapBnd:", "00000000000000eb", "1"]
    assert said.count("Read-only file system") == 2
    assert said.endswith("/root\n")
