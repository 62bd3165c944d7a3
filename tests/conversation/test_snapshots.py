from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.conversation.snapshots import Snapshots, changes_between, git, look, merge, patch_of, put_back, tree
from ohsandbox.conversation.snapshots import store as stores
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.conversation.snapshots import Merge

HOSTILE = ["a b", "q\"uo'te", "new\nline", "-rf", "$(id)", os.fsdecode(b"\xff\xfe"), "é", "tab\t", "back\\slash"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def store(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "store")


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
    return {path: entry[:3] for path, entry in look(root, Snapshots(root.parent / "check").keep).entries.items()}


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


def test_a_directory_is_put_back_whole_whatever_its_names(root: Path, store: Snapshots) -> None:
    _fill(root)
    before, name = _what(root), store.take(root)
    _wreck(root)
    now = store.load(store.take(root))
    assert put_back(root, changes_between(now, store.load(name)), store.content) == []
    assert _what(root) == before


def test_the_persons_git_is_neither_read_nor_written(root: Path, store: Snapshots) -> None:
    for place in (root, root / "sub"):
        (place / ".git").mkdir(parents=True)
        (place / ".git" / "HEAD").write_text("mine")
    name = store.take(root)
    (root / "sub" / "file").write_text("x")
    (root / ".git" / "HEAD").write_text("mine, later")
    now = store.load(store.take(root))
    assert not [path for path in now.entries if ".git" in path]
    put_back(root, changes_between(now, store.load(name)), store.content)
    assert (root / ".git" / "HEAD").read_text() == "mine, later"
    assert not (root / "sub" / "file").exists()


def test_nothing_is_written_through_a_symlink_that_was_put_in_the_way(root: Path, store: Snapshots) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "d").mkdir()
    (root / "d" / "f").write_text("kept")
    name = store.take(root)
    (root / "d" / "f").unlink()
    changes = changes_between(store.load(store.take(root)), store.load(name))
    (root / "d").rmdir()
    (root / "d").symlink_to(outside)
    assert [refused.path for refused in put_back(root, changes, store.content)] == ["d/f"]
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ".git/hooks/post-checkout", "sub/.git/config", ""])
def test_a_path_that_leads_out_or_into_git_is_refused(root: Path, store: Snapshots, path: str) -> None:
    (root / "f").write_text("x")
    entry = store.load(store.take(root)).entries["f"]
    change = changes_between(tree.Tree(0, {}, {}), tree.Tree(0, {path: entry}, {}))
    assert [refused.path for refused in put_back(root, change, store.content)] == [path]
    assert sorted(path.name for path in root.parent.iterdir()) == ["root", "store"]


def test_a_file_changed_without_its_times_is_noticed_by_its_change_time(root: Path, store: Snapshots) -> None:
    file = root / "f"
    file.write_text("one")
    os.utime(file, ns=(0, 0))
    first = store.take(root)
    file.write_text("two")
    os.utime(file, ns=(0, 0))
    assert store.take(root) != first


def test_what_has_not_changed_is_the_same_snapshot(root: Path, store: Snapshots) -> None:
    (root / "f").write_text("one")
    first = store.take(root)
    os.utime(root / "f")
    assert store.take(root) == first
    assert Snapshots(store.directory).take(root) == first


def test_what_is_too_large_or_no_file_is_left_out_and_left_alone(
    root: Path, store: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_FILE_BYTES", 10)
    name = store.take(root)
    (root / "big").write_bytes(b"x" * 11)
    os.mkfifo(root / "fifo")
    (root / "new").mkdir()
    (root / "new" / "big").write_bytes(b"x" * 11)
    now = store.load(store.take(root))
    assert sorted(now.left_out) == ["big", "fifo", "new/big"]
    put_back(root, changes_between(now, store.load(name)), store.content)
    assert sorted(path.name for path in root.iterdir()) == ["big", "fifo", "new"]


def test_a_directory_over_the_bounds_is_refused_whole(
    root: Path, store: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_ENTRIES", 3)
    for number in range(4):
        (root / str(number)).touch()
    with pytest.raises(UsageError, match="over 3 names"):
        store.take(root)


def test_a_tree_too_deep_to_follow_is_left_out(root: Path, store: Snapshots) -> None:
    deep = root
    for _ in range(tree.MAX_DEPTH + 5):
        deep /= "d"
    deep.mkdir(parents=True)
    assert len(store.load(store.take(root)).left_out) == 1


def test_a_content_that_was_changed_on_disk_is_not_put_back(root: Path, store: Snapshots) -> None:
    (root / "f").write_text("one")
    name = store.take(root)
    (kept,) = (store.directory / "objects").glob("??/*")
    kept.write_text("two")
    (root / "f").unlink()
    (refused,) = put_back(root, changes_between(look(root, store.keep), store.load(name)), store.content)
    assert "was changed or cut" in refused.why
    assert list(root.iterdir()) == []


def test_old_snapshots_go_but_never_the_first(root: Path, store: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_SNAPSHOTS", 3)
    for number in range(6):
        (root / "f").write_text(str(number))
        store.take(root)
    assert store.names() == ["000001", "000005", "000006"]
    assert sorted(path.read_text() for path in (store.directory / "objects").glob("??/*")) == ["0", "4", "5"]


def test_a_patch_is_what_git_apply_takes(root: Path, store: Snapshots, tmp_path: Path) -> None:
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


def _merge(root: Path, there: Path, store: Snapshots) -> Merge:
    """What the agent did to `f`, `gone` and `new`, brought to there."""
    (root / "f").write_text("1\n2\n3\n4\n5\n")
    (root / "gone").write_text("g")
    old = store.load(store.take(root))
    (root / "f").write_text("1\n2\n3\n4\nfive\n")
    (root / "gone").unlink()
    (root / "new").write_text("n")
    changes = changes_between(old, store.load(store.take(root)))
    now = look(there, store.keep, only=[change.path for change in changes])
    found = merge(changes, now, store, owner=(os.getuid(), os.getgid()))
    if not found.conflicts:
        assert put_back(there, found.changes, store.content) == []
    return found


def test_changes_of_both_sides_are_merged_line_by_line(root: Path, there: Path, store: Snapshots) -> None:
    (there / "f").write_text("one\n2\n3\n4\n5\n")
    (there / "gone").write_text("g")
    (there / "own").write_text("mine")
    _merge(root, there, store)
    assert {path.name: path.read_text() for path in there.iterdir()} == {
        "f": "one\n2\n3\n4\nfive\n", "new": "n", "own": "mine",
    }  # fmt: skip


def test_what_is_there_already_is_no_change(root: Path, there: Path, store: Snapshots) -> None:
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
    (conflict,) = _merge(tmp_path / "root", there, Snapshots(tmp_path / "store")).conflicts
    assert conflict.path == path
    assert expected in conflict.why
    assert {path.name: path.read_text() for path in there.iterdir()} == before


@pytest.mark.parametrize(("is_old", "expected"), [(False, ["d"]), (True, ["d/passwd"])])
def test_a_symlink_where_a_directory_should_be_is_a_conflict(
    root: Path, there: Path, store: Snapshots, *, is_old: bool, expected: list[str]
) -> None:
    (there / "d").symlink_to("/etc")
    if is_old:
        (root / "d").mkdir()
    old = store.load(store.take(root))
    (root / "d").mkdir(exist_ok=True)
    (root / "d" / "passwd").write_text("x")
    changes = changes_between(old, store.load(store.take(root)))
    now = look(there, store.keep, only=[change.path for change in changes])
    assert [one.path for one in merge(changes, now, store, owner=(0, 0)).conflicts] == expected


def test_without_git_a_patch_is_refused_clearly(root: Path, store: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "f").write_text("x")
    changes = changes_between(tree.Tree(0, {}, {}), store.load(store.take(root)))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not git.is_here()
    with pytest.raises(UsageError, match="Install git"):
        patch_of(changes, store.content)
