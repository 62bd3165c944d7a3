from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime import disk_space
from ohsandbox.runtime.workspace import git
from ohsandbox.timetravel.snapshots import manifest
from ohsandbox.timetravel.snapshots import store as stores
from ohsandbox.timetravel.snapshots.manifest import changes_between, outside_git, scan_directory, worst_first
from ohsandbox.timetravel.snapshots.patch import patch_of
from ohsandbox.timetravel.snapshots.restore import write_changes
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.three_way_merge import merge_changes

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.timetravel.snapshots.three_way_merge import Merge

HOSTILE = ["a b", "q\"uo'te", "new\nline", "-rf", "$(id)", os.fsdecode(b"\xff\xfe"), "é", "tab\t", "back\\slash"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "store")


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout


def _fill(root: Path) -> None:
    for name in HOSTILE:
        (root / f"d {name}").mkdir()
        (root / f"d {name}" / name).write_bytes(b"text of " + os.fsencode(name) + b"\n")
    (root / "binary").write_bytes(bytes(range(256)))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "empty").touch()
    (root / "empty dir").mkdir()
    (root / "link").symlink_to("/etc/passwd")
    (root / "crlf").write_bytes(b"a\r\nb")


def _what(root: Path) -> dict[str, tuple[object, ...]]:
    return {
        path: entry[:3] for path, entry in scan_directory(root, SnapshotStore(root.parent / "check")).entries.items()
    }


def _wreck(root: Path) -> None:
    (root / "binary").unlink()
    (root / "binary").mkdir()
    (root / "binary" / "inside").write_text("x")
    (root / "run.sh").write_text("#!/bin/sh\nrm -rf /\n")
    (root / "run.sh").chmod(0o644)
    (root / "empty dir").rmdir()
    (root / "link").unlink()
    (root / "link").write_text("a file now")
    (root / "new").write_text("n")
    (root / "crlf").unlink()
    for path in (root / "d a b").iterdir():
        path.unlink()
    (root / "d a b").rmdir()
    (root / "d a b").symlink_to("/etc")


def test_a_directory_is_put_back_whole_whatever_its_names(root: Path, store: SnapshotStore) -> None:
    _fill(root)
    before, name = _what(root), store.take(root)
    _wreck(root)
    now = store.load(store.take(root))
    assert write_changes(root, changes_between(now, store.load(name)), store, git=True) == []
    assert _what(root) == before


def test_a_repository_that_was_removed_comes_back_whole_and_without_running_anything(
    root: Path, store: SnapshotStore
) -> None:
    for place in (root, root / "sub"):
        place.mkdir(exist_ok=True)
        (place / "f").write_text("x")
        _git(place, "init", "-q")
        _git(place, "add", "f")
        _git(place, "commit", "-qm", "one")
        with (place / ".git" / "config").open("a") as config:
            config.write(f'[core]\n\tfsmonitor = "touch {root.parent}/ran; false"\n')
    name = store.take(root)
    for place in (root / "sub", root):
        shutil.rmtree(place / ".git")
    now = store.load(store.take(root))
    assert write_changes(root, changes_between(now, store.load(name)), store, git=True) == []
    assert not (root.parent / "ran").exists()
    for place in (root, root / "sub"):
        assert _git(place, "-c", "core.fsmonitor=", "fsck", "--strict") == ""
        assert _git(place, "-c", "core.fsmonitor=", "log", "--format=%s") == "one\n"
        assert {path.stat().st_mode & 0o777 for path in (place / ".git" / "objects").glob("??/*")} == {0o444}


def test_git_is_restored_through_no_link(root: Path, store: SnapshotStore) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "hooks" / "post-checkout").write_text("mine")
    name = store.take(root)
    shutil.rmtree(root / ".git")
    changes = changes_between(scan_directory(root, store), store.load(name))
    (root / ".git").symlink_to(outside)
    refused = write_changes(root, changes, store, git=True)
    assert {one.path for one in refused} == {".git", ".git/hooks", ".git/hooks/post-checkout"}
    assert list(outside.iterdir()) == []


def test_objects_over_the_bound_are_left_out_and_told_and_the_rest_of_git_is_kept(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".git" / "objects" / "pack").mkdir(parents=True)
    (root / ".git" / "objects" / "pack" / "p.pack").write_bytes(b"x" * 2000)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main")
    monkeypatch.setattr(manifest, "MAX_GIT_BYTES", 2000)
    assert not store.load(store.take(root)).left_out
    monkeypatch.setattr(manifest, "MAX_GIT_BYTES", 1999)
    kept = store.load(store.take(root))
    assert kept.left_out == {".git/objects": "over 0 MiB"}
    assert sorted(kept.entries) == [".git", ".git/HEAD"]
    monkeypatch.setattr(manifest, "MAX_GIT_BYTES", 2000)
    monkeypatch.setattr(manifest, "MAX_GIT_ENTRIES", 0)
    assert store.load(store.take(root)).left_out == {".git/objects": "over 0 files"}


def test_objects_have_bounds_of_their_own_for_all_repositories_together(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (root / name / ".git" / "objects").mkdir(parents=True)
        for number in range(4):
            (root / name / ".git" / "objects" / str(number)).write_bytes(b"x" * 100)
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 6)  # the directories alone
    monkeypatch.setattr(manifest, "MAX_TOTAL_BYTES", 10)
    monkeypatch.setattr(manifest, "MAX_GIT_BYTES", 800)
    assert store.load(store.take(root)).left_out == {}
    monkeypatch.setattr(manifest, "MAX_GIT_BYTES", 799)
    kept = store.load(store.take(root))
    assert [*kept.left_out] == ["b/.git/objects"]
    assert "a/.git/objects/3" in kept.entries


def test_a_pack_is_stored_in_pieces_once_and_comes_back(root: Path, store: SnapshotStore) -> None:
    pack = root / ".git" / "objects" / "pack" / "p.pack"
    pack.parent.mkdir(parents=True)
    pack.write_bytes(data := os.urandom(3 * 1024**2 + 7))
    name = store.take(root)
    (root / "f").write_text("x")
    store.take(root)
    assert sum(path.stat().st_size for path in store.directory.rglob("objects/??/*")) == len(data) + 1
    shutil.rmtree(root / ".git")
    write_changes(root, changes_between(scan_directory(root, store), store.load(name)), store, git=True)
    assert pack.read_bytes() == data


@pytest.mark.parametrize("path", [".git/config", "a/.GIT/config", "a/.g\u200cit/hooks/x", ".Git", "sub/.git"])
def test_what_any_file_system_may_take_for_git_goes_into_no_other_directory(
    root: Path, store: SnapshotStore, path: str
) -> None:
    (root / "f").write_text("x")
    entry = store.load(store.take(root)).entries["f"]
    (change,) = changes_between(manifest.Manifest(0, {}, {}), manifest.Manifest(0, {path: entry}, {}))
    assert outside_git([change]) == []
    assert [refused.path for refused in write_changes(root, [change], store, git=False)] == [path]


def test_names_that_only_look_like_git_are_work(root: Path) -> None:
    names = [".gitignore", ".github/workflows/x", "a.git", "é/.gitattributes", "a/b.git/c"]
    assert not any(map(manifest.is_git, names))
    assert root.is_dir()


def test_special_files_are_counted_and_cost_nothing(root: Path, store: SnapshotStore) -> None:
    (root / "f").write_text("x")
    (root / "sub").mkdir()
    store.take(root)
    size = (store.directory / "000001.json").stat().st_size
    for number in range(2000):
        os.mkfifo(root / "sub" / f"{number:0200}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "s"))
        kept = store.load(store.take(root))
    assert (kept.special, sorted(kept.entries), kept.left_out) == (2001, ["f", "sub"], {})
    assert (store.directory / "000001.json").stat().st_size < size + 20
    assert scan_directory(root, store, only=["s"]).left_out == {"s": "neither file, directory nor symlink"}


def test_a_file_that_became_a_fifo_comes_back(root: Path, store: SnapshotStore) -> None:
    (root / "f").write_text("x")
    name = store.take(root)
    (root / "f").unlink()
    os.mkfifo(root / "f")
    assert write_changes(root, changes_between(scan_directory(root, store), store.load(name)), store, git=True) == []
    assert (root / "f").read_text() == "x"


@pytest.mark.parametrize("kind", ["fifos", "files", "long names", "long links", "unreadable"])
def test_a_flood_of_names_is_refused_by_one_line_and_not_kept(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(manifest, "MAX_SPECIAL", 500)
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 500)
    monkeypatch.setattr(manifest, "MAX_NAMES_CHARS", 100_000)
    monkeypatch.setattr(manifest, "MAX_FILE_BYTES", -1 if kind == "unreadable" else 100)
    for number in range(501):
        path = root / (f"{number:0250}" if kind == "long names" else str(number))
        if kind == "fifos":
            os.mkfifo(path)
        elif kind == "long links":
            path.symlink_to("x" * 4000)
        else:
            path.touch()
    with pytest.raises(UsageError, match="too many to keep"):
        store.take(root)
    assert store.names() == []


def test_nothing_is_written_through_a_symlink_that_was_put_in_the_way(root: Path, store: SnapshotStore) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "d").mkdir()
    (root / "d" / "f").write_text("kept")
    name = store.take(root)
    (root / "d" / "f").unlink()
    changes = changes_between(store.load(store.take(root)), store.load(name))
    (root / "d").rmdir()
    (root / "d").symlink_to(outside)
    assert [refused.path for refused in write_changes(root, changes, store, git=True)] == ["d/f"]
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("deed", ["saved", "replaced", "made", "removed"])
def test_what_a_person_saves_after_the_look_is_not_lost(root: Path, store: SnapshotStore, deed: str) -> None:
    """`apply` asks a question between the look and the writing: minutes."""
    for name in ("saved", "replaced", "removed"):
        (root / name).write_text("before")
    name = store.take(root)
    if deed in {"saved", "replaced"}:
        (root / deed).write_text("the agent's")
    elif deed == "made":
        then = store.load(name)
        name = store.add(then._replace(entries={**then.entries, "made": then.entries["saved"]}))
    else:
        (root / deed).unlink()
        name = store.take(root)
        (root / deed).write_text("the agent's")
    changes = changes_between(scan_directory(root, store), store.load(name))
    if deed == "replaced":
        (root / "other").write_text("the person's")
        (root / "other").replace(root / deed)
    else:
        (root / deed).write_text("the person's")
    assert [refused.path for refused in write_changes(root, changes, store, git=True)] == [deed]
    assert (root / deed).read_text() == "the person's"
    assert not list(root.glob(".ohsandbox-*"))


def test_a_root_that_was_replaced_by_a_link_is_not_written(root: Path, store: SnapshotStore) -> None:
    (root / "f").write_text("x")
    name = store.take(root)
    (root / "f").unlink()
    changes = changes_between(scan_directory(root, store), store.load(name))
    outside = root.parent / "outside"
    root.rename(outside)
    root.symlink_to(outside)
    with pytest.raises(UsageError, match="is a symlink, which is not followed"):
        write_changes(root, changes, store, git=True)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ".git/hooks/post-checkout", "sub/.git/config", ""])
def test_a_path_that_leads_out_or_into_git_is_refused(root: Path, store: SnapshotStore, path: str) -> None:
    (root / "f").write_text("x")
    entry = store.load(store.take(root)).entries["f"]
    change = changes_between(manifest.Manifest(0, {}, {}), manifest.Manifest(0, {path: entry}, {}))
    assert [refused.path for refused in write_changes(root, change, store, git=False)] == [path]
    assert sorted(path.name for path in root.parent.iterdir()) == ["root", "store"]


def test_a_file_changed_without_its_times_is_noticed_by_its_change_time(root: Path, store: SnapshotStore) -> None:
    file = root / "f"
    file.write_text("one")
    os.utime(file, ns=(0, 0))
    first = store.take(root)
    file.write_text("two")
    os.utime(file, ns=(0, 0))
    assert store.take(root) != first


def test_what_has_not_changed_is_the_same_snapshot(root: Path, store: SnapshotStore) -> None:
    (root / "f").write_text("one")
    first = store.take(root)
    os.utime(root / "f")
    assert store.take(root) == first
    assert SnapshotStore(store.directory).take(root) == first


def test_what_is_too_large_or_no_file_is_left_out_and_left_alone(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_FILE_BYTES", 10)
    name = store.take(root)
    (root / "big").write_bytes(b"x" * 11)
    os.mkfifo(root / "fifo")
    (root / "new").mkdir()
    (root / "new" / "big").write_bytes(b"x" * 11)
    now = store.load(store.take(root))
    why = "11 bytes, over the limit of 10"
    assert (now.left_out, now.special) == ({"big": why, "new/big": why}, 1)
    write_changes(root, changes_between(now, store.load(name)), store, git=True)
    assert sorted(path.name for path in root.iterdir()) == ["big", "fifo", "new"]


def test_of_what_is_left_out_the_largest_come_first() -> None:
    given = {"a": "a symlink that leads outside", "b": "9 bytes, over the limit of 1", "c": "over 1 directories deep"}
    given["d"] = "10 bytes, over the limit of 1"
    assert [*worst_first(given)] == ["d", "b", "c", "a"]


def test_on_a_disk_below_its_floor_no_snapshot_is_written(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_text("x")
    monkeypatch.setattr(disk_space, "measure", lambda _: disk_space.DiskSpace(2**30, 100 * 2**30, 0, 0))
    with pytest.raises(UsageError, match=r"has 1.00 GiB free, less than the 2.00 GiB that must stay free\. Free space"):
        store.take(root)
    assert not store.directory.exists()
    monkeypatch.setattr(disk_space, "measure", lambda _: disk_space.DiskSpace(2**30, 5 * 2**30, 0, 0))
    assert store.take(root) == "000001"  # a tenth of a small disk is enough


def test_a_directory_over_the_bounds_is_refused_whole(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 3)
    for number in range(4):
        (root / str(number)).touch()
    with pytest.raises(UsageError, match="over 3 names"):
        store.take(root)


def test_a_tree_too_deep_to_follow_is_left_out(root: Path, store: SnapshotStore) -> None:
    deep = root
    for _ in range(manifest.MAX_DEPTH + 5):
        deep /= "d"
    deep.mkdir(parents=True)
    assert len(store.load(store.take(root)).left_out) == 1


def test_a_content_that_was_changed_on_disk_is_not_put_back(root: Path, store: SnapshotStore) -> None:
    (root / "f").write_text("one")
    name = store.take(root)
    (kept,) = (store.directory / "objects").glob("??/*")
    kept.write_text("two")
    (root / "f").unlink()
    (refused,) = write_changes(root, changes_between(scan_directory(root, store), store.load(name)), store, git=True)
    assert "was changed or cut" in refused.why
    assert list(root.iterdir()) == []


def test_old_snapshots_go_but_never_the_first(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_SNAPSHOTS", 3)
    for number in range(6):
        (root / "f").write_text(str(number))
        store.take(root)
    assert store.names() == ["000001", "000005", "000006"]
    assert sorted(path.read_text() for path in (store.directory / "objects").glob("??/*")) == ["0", "4", "5"]


def test_a_patch_is_what_git_apply_takes(root: Path, store: SnapshotStore, tmp_path: Path) -> None:
    _fill(root)
    (root / ".gitattributes").write_text("* -diff -text\n")
    old = store.load(store.take(root))
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", str(root), str(other)], check=True)
    _wreck(root)
    for name in HOSTILE[1:]:
        (root / f"d {name}" / name).write_bytes(b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\nno end of line")
    new = store.load(store.take(root))
    patch = b"".join(part.text for part in patch_of(changes_between(old, new), store.content))
    code = subprocess.run(["git", "apply", "-"], input=patch, cwd=other, check=False, capture_output=True)
    assert code.stderr == b""
    files = {path: (what[0], what[2]) for path, what in _what(root).items() if what[0] != "dir"}
    assert {path: (what[0], what[2]) for path, what in _what(other).items() if what[0] != "dir"} == files
    assert b"GIT binary patch" in patch
    assert b"+rm -rf /" in patch, "the agent's .gitattributes has no say in what a person sees"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def _merge(root: Path, there: Path, store: SnapshotStore) -> Merge:
    """What the agent did to `f`, `gone` and `new`, brought to there."""
    (root / "f").write_text("1\n2\n3\n4\n5\n")
    (root / "gone").write_text("g")
    old = store.load(store.take(root))
    (root / "f").write_text("1\n2\n3\n4\nfive\n")
    (root / "gone").unlink()
    (root / "new").write_text("n")
    changes = changes_between(old, store.load(store.take(root)))
    now = scan_directory(there, store, only=[change.path for change in changes])
    found = merge_changes(changes, now, store, owner=(os.getuid(), os.getgid()))
    if not found.conflicts:
        assert write_changes(there, found.changes, store, git=True) == []
    return found


def test_changes_of_both_sides_are_merged_line_by_line(root: Path, there: Path, store: SnapshotStore) -> None:
    (there / "f").write_text("one\n2\n3\n4\n5\n")
    (there / "gone").write_text("g")
    (there / "own").write_text("mine")
    _merge(root, there, store)
    assert {path.name: path.read_text() for path in there.iterdir()} == {
        "f": "one\n2\n3\n4\nfive\n", "new": "n", "own": "mine",
    }  # fmt: skip


def test_what_is_there_already_is_no_change(root: Path, there: Path, store: SnapshotStore) -> None:
    (there / "f").write_text("1\n2\n3\n4\nfive\n")
    (there / "new").write_text("n")
    assert _merge(root, there, store).changes == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("f", "1\n2\n3\n4\nFIVE\n", "do not merge"),
        ("f", "1\n2\0\n3\n4\n5\n", "do not merge"),
        ("f", None, "is not there"),
        ("gone", "changed", "removed it, and it was changed"),
        ("new", "other", "another file is there"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_is_written(
    tmp_path: Path, there: Path, path: str, text: str | None, expected: str
) -> None:
    (tmp_path / "root").mkdir()
    (there / "f").write_text("1\n2\n3\n4\n5\n")
    (there / "gone").write_text("g")
    if text is None:
        (there / path).unlink()
    else:
        (there / path).write_text(text)
    before = {path.name: path.read_text() for path in there.iterdir()}
    (conflict,) = _merge(tmp_path / "root", there, SnapshotStore(tmp_path / "store")).conflicts
    assert conflict.path == path
    assert expected in conflict.why
    assert {path.name: path.read_text() for path in there.iterdir()} == before


@pytest.mark.parametrize(("is_old", "expected"), [(False, ["d"]), (True, ["d/passwd"])])
def test_a_symlink_where_a_directory_should_be_is_a_conflict(
    root: Path, there: Path, store: SnapshotStore, *, is_old: bool, expected: list[str]
) -> None:
    (there / "d").symlink_to("/etc")
    if is_old:
        (root / "d").mkdir()
    old = store.load(store.take(root))
    (root / "d").mkdir(exist_ok=True)
    (root / "d" / "passwd").write_text("x")
    changes = changes_between(old, store.load(store.take(root)))
    now = scan_directory(there, store, only=[change.path for change in changes])
    assert [one.path for one in merge_changes(changes, now, store, owner=(0, 0)).conflicts] == expected


def test_without_git_a_patch_is_refused_clearly(
    root: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_text("x")
    changes = changes_between(manifest.Manifest(0, {}, {}), store.load(store.take(root)))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not git.is_here()
    with pytest.raises(UsageError, match="Install git"):
        patch_of(changes, store.content)


@pytest.mark.parametrize("replaced", ["c", "c/store", "c/store/objects", "c/store/objects/2c"])
def test_a_store_that_is_replaced_by_a_link_is_not_written_through(root: Path, tmp_path: Path, replaced: str) -> None:
    (tmp_path / "c").mkdir()
    store = SnapshotStore(tmp_path / "c" / "store")
    (root / "f").write_text("old")
    store.take(root)
    (tmp_path / "c/store/objects/2c").mkdir(exist_ok=True)
    outside = tmp_path / "outside"
    shutil.copytree(tmp_path / replaced, outside)
    before = sorted(outside.rglob("*"))
    (tmp_path / replaced).rename(tmp_path / "moved")
    (tmp_path / replaced).symlink_to(outside)
    (root / "f").write_text("bar")
    assert hashlib.sha256(b"foo").hexdigest().startswith("2c")
    (root / "g").write_text("foo")
    for fresh in (store, SnapshotStore(tmp_path / "c" / "store")):
        with pytest.raises(UsageError, match="cannot be written"):
            fresh.take(root)
    assert sorted(outside.rglob("*")) == before
