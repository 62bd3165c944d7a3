"""Small trees of texts go into a sandbox with one shell; they arrive as others do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.evaluation import sandbox_files
from ohsandbox.evaluation.sandbox_files import MAX_TEXT_BYTES, copy_from_sandbox, put, put_for_all
from ohsandbox.evaluation.task import Files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.docker
NAMES = ("run.sh", "a b/it's $(id) `id`.txt", "-n", "deep/er/data", "empty")
TEXTS = {name: f"{name}\n%s \\n -e\r\ttext of {name}\n\n" for name in NAMES[:4]} | {"empty": ""}


@pytest.fixture(scope="module", params=["debian", "busybox"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[DockerRuntime]:
    with DockerRuntime(f"ohsandbox-base:{request.param}") as runtime:
        yield runtime


def tree(directory: Path) -> Path:
    for name, text in TEXTS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(0o600)
    return directory


def mode(sandbox: DockerRuntime, path: str) -> str:
    return sandbox.run(["stat", "-c", "%a", path]).stdout.decode().strip()


def test_texts_arrive_byte_by_byte(sandbox: DockerRuntime, tmp_path: Path) -> None:
    put(sandbox, Files(target="/texts", source=tree(tmp_path), texts={"more": "#!/bin/sh\n"}), user=None)
    assert {name: sandbox.read_bytes(f"/texts/{name}").decode() for name in NAMES} == TEXTS
    assert [mode(sandbox, f"/texts/{name}") for name in ("run.sh", "more")] == ["600", "755"]


def test_texts_of_a_directory_that_is_a_link_arrive(sandbox: DockerRuntime, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tree(tmp_path / "real"))
    put(sandbox, Files(target="/linked", source=tmp_path / "link"), user=None)
    assert {name: sandbox.read_bytes(f"/linked/{name}").decode() for name in NAMES} == TEXTS


def test_what_was_there_is_replaced_and_a_link_is_not_followed(sandbox: DockerRuntime, tmp_path: Path) -> None:
    sandbox.run(["/bin/sh", "-c", "mkdir -p /links && echo kept >/victim && ln -s /victim /links/empty"])
    put(sandbox, Files(target="/links", source=tree(tmp_path)), user=None)
    assert sandbox.read_bytes("/victim") == b"kept\n"
    assert sandbox.read_bytes("/links/empty") == b""


def test_what_is_for_all_can_be_read_and_its_scripts_be_run(sandbox: DockerRuntime, tmp_path: Path) -> None:
    sandbox.run(["/bin/sh", "-c", "mkdir -m 700 /closed && echo old >/closed/old.sh && chmod 600 /closed/old.sh"])
    for target in ("/closed", "/new"):
        put_for_all(sandbox, [Files(target=target, source=tree(tmp_path))])
        modes = [mode(sandbox, f"{target}/{name}".rstrip("/")) for name in ("", "run.sh", "-n", "deep/er")]
        assert modes == ["755", "755", "644", "755"]
    assert mode(sandbox, "/closed/old.sh") == "755"


@pytest.mark.parametrize("data", [b"\0", b"\xff", b"x" * (MAX_TEXT_BYTES + 1)])
def test_what_no_argument_can_be_arrives_too(sandbox: DockerRuntime, tmp_path: Path, data: bytes) -> None:
    tree(tmp_path).joinpath("data").write_bytes(data)
    put_for_all(sandbox, [Files(target="/other", source=tmp_path)])
    assert sandbox.read_bytes("/other/data") == data
    assert mode(sandbox, "/other/run.sh") == "755"


def test_a_place_that_cannot_be_written_is_told(sandbox: DockerRuntime, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="/proc/nothing"):
        put(sandbox, Files(target="/proc/nothing", source=tree(tmp_path)), user=None)


def test_of_a_directory_with_a_sparse_file_the_rest_is_fetched(sandbox: DockerRuntime, tmp_path: Path) -> None:
    made = "mkdir -p /much/sub && cd /much && dd if=/dev/zero of=sparse bs=1 count=0 seek=10000000000 2>/dev/null"
    sandbox.run(["/bin/sh", "-c", f"{made}; echo 1 >log; echo 2 >sub/log; ln -s log link"])
    left_out = copy_from_sandbox(sandbox, "/much", tmp_path / "fetched")
    assert [line.split(":")[0] for line in left_out] == ["/much/sparse"]
    assert sorted(path.relative_to(tmp_path / "fetched").as_posix() for path in tmp_path.rglob("*log")) == [
        "log", "sub/log",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "seq 60 | (cd $i && xargs touch)",
        "mkdir $i/$i && for j in $(seq 20); do printf $j >$i/$i/$j; done",
        "for j in $(seq 10); do head -c 300000 /dev/zero >$i/$j; done",
    ],
)
def test_a_copy_in_many_steps_makes_no_more_here_than_one_step_may(
    sandbox: DockerRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    limits = sandbox_files.FETCH_LIMITS._replace(members=200, total_bytes=2 * 1024**2)
    monkeypatch.setattr(sandbox_files, "FETCH_LIMITS", limits)
    made = f"rm -rf /flood; for i in $(seq 40); do mkdir -p /flood/$i && cd /flood && {script}; done"
    assert sandbox.run(["/bin/sh", "-c", made]).exit_code == 0
    left_out = copy_from_sandbox(sandbox, "/flood", tmp_path / "results")
    fetched = [path.lstat() for path in (tmp_path / "results").rglob("*")]
    assert 0 < len(fetched) <= 200
    assert sum(found.st_blocks * 512 for found in fetched) <= 2 * 1024**2
    assert "more than" in left_out[-1] or "limited to 200 files" in left_out[-1]
