"""ohsandbox in a container: what the engine's machine calls the files that we bind into sandboxes."""

from typing import Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.engine import own_container
from ohsandbox.runtime.docker.engine.connection import Engine, EngineAddress
from ohsandbox.runtime.docker.engine.own_container import (
    as_we_name,
    for_engine,
    from_engine,
    id_in,
    mounts_in,
    to_engine,
)

ID = "5ae6f18564c553e2705e5b278ff67dea4a86bda25890169cb5e6dfed43f592b1"
FOUND = {
    "Mounts": [
        {"Type": "bind", "Source": "/home/ann/project", "Destination": "/workspace"},
        {"Type": "volume", "Source": "/var/lib/docker/volumes/v/_data", "Destination": "/home/ohsandbox"},
        {"Type": "bind", "Source": "/data", "Destination": "/workspace/data"},
        {"Type": "tmpfs", "Source": "", "Destination": "/workspace/data/scratch"},
    ],
    "HostConfig": {"Tmpfs": {"/workspace/memory": "size=1m"}},
}
MOUNTS = mounts_in(FOUND)


class Api:
    def __init__(self, found: dict[str, Any]) -> None:
        self.found, self.asked = found, 0

    def inspect_container(self, container: str) -> dict[str, Any]:
        assert container == ID
        self.asked += 1
        return self.found


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(own_container, "own_id", lambda: ID)
    return Engine(Api(FOUND), EngineAddress("unix:///var/run/docker.sock", None, "default"))


@pytest.mark.parametrize(
    "directory",
    [
        f"/var/lib/docker/containers/{ID}",
        f"/data/docker/containers/{ID}",
        f"/containers/overlay-containers/{ID}/userdata",
    ],
)
def test_our_container_is_known_by_a_file_that_the_engine_binds(directory: str) -> None:
    line = f"913 895 254:0 {directory}/hostname /etc/hostname rw,relatime - ext4 /dev/vda rw"

    assert id_in(["22 27 0:21 / /proc rw - proc proc rw", line]) == ID


def test_a_machine_that_is_no_container_has_no_id() -> None:
    assert (
        id_in(["27 1 254:0 / / rw,relatime - ext4 /dev/vda rw", "", "22 27 0:21 / /etc/hostname rw - x x rw"]) is None
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("/workspace", "/home/ann/project"),
        ("/workspace/src/.git", "/home/ann/project/src/.git"),
        ("/workspace/data/x", "/data/x"),
        ("/home/ohsandbox/.ohsandbox/nothing", "/var/lib/docker/volumes/v/_data/.ohsandbox/nothing"),
    ],
)
def test_a_path_in_a_mount_has_two_names(ours: str, theirs: str) -> None:
    assert to_engine(ours, MOUNTS) == theirs
    assert from_engine(theirs, MOUNTS) == ours


@pytest.mark.parametrize("path", ["/src", "/workspaces", "/workspace/data/scratch/x", "/workspace/memory"])
def test_a_path_of_our_container_alone_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match=r"in this container only.* Start this container with"):
        to_engine(path, MOUNTS)


def test_a_create_call_and_its_inspection_are_translated(engine: Engine) -> None:
    bind = {"Type": "bind", "Source": "/workspace/a", "Target": "/workspace"}
    volume = {"Type": "volume", "Source": "cache", "Target": "/cache"}

    sent = for_engine({"Image": "x", "HostConfig": {"Mounts": [bind, volume], "Init": False}}, engine)
    found = {"Type": "bind", "Source": "/home/ann/project/a", "Destination": "/workspace"}

    assert sent["HostConfig"] == {"Mounts": [bind | {"Source": "/home/ann/project/a"}, volume], "Init": False}
    assert as_we_name({"Mounts": [found]}, engine)["Mounts"] == [found | {"Source": "/workspace/a"}]
    assert engine.api.asked == 1


def test_what_lies_in_a_volume_is_bound_as_the_engine_wants_its_own_data_bound(engine: Engine) -> None:
    """Else: must use either propagation mode "rslave" or "rshared" when mount source is within the daemon root."""
    private = {"BindOptions": {"Propagation": "rprivate"}}
    tree = {"Type": "bind", "Source": "/home/ohsandbox/tree", "Target": "/workspace"} | private
    project = {"Type": "bind", "Source": "/workspace", "Target": "/workspaces/a"} | private

    sent = for_engine({"HostConfig": {"Mounts": [tree, project]}}, engine)["HostConfig"]["Mounts"]

    assert [one["Source"] for one in sent] == ["/var/lib/docker/volumes/v/_data/tree", "/home/ann/project"]
    assert [one["BindOptions"]["Propagation"] for one in sent] == ["rslave", "rprivate"]


def test_outside_of_a_container_nothing_is_asked_and_nothing_changes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_container, "own_id", lambda: None)
    payload = {"HostConfig": {"Mounts": [{"Type": "bind", "Source": "/a", "Target": "/b"}]}}

    assert for_engine(payload, engine) is payload
    assert engine.api.asked == 0
