"""`.gitignore` files, without a sandbox."""

from __future__ import annotations

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.tools.search.globs import MatchBudget
from ohsandbox.tools.search.ignore import IgnoreTree, parse, prunes


def kept(texts: dict[str, bytes], *paths: str, root: str = "/w") -> list[str]:
    tree = IgnoreTree(root, texts, MatchBudget())
    return [path for _, path in tree.kept([("", path) for path in paths])]


@pytest.mark.parametrize(
    ("rules", "path", "is_kept"),
    [
        (b"*.log\n", "a/b.log", False), (b"*.log\n!keep.log\n", "a/keep.log", True), (b"/build\n", "build/x", False),
        (b"/build\n", "src/build/x", True), (b"out/\n", "out", True), (b"out/\n", "a/out/x", False),
        (b"a/*/c\n", "a/b/c", False), (b"a/*/c\n", "a/b/x/c", True), (b"a/**/c\n", "a/b/x/c", False),
        (b"x/**\n", "x/y/z", False), (b"x/**\n!x/keep\n", "x/keep", True), (b"x\n!x/keep\n", "x/keep", False),
        (b"*\n!*/\n!*.py\n", "a/b.py", True), (b"*\n!*/\n!*.py\n", "a/b.c", False), (b"**/x\n", "a/b/x", False),
        (b"# a\n\\#b\n", "#b", False), (b"\\!n\n", "!n", False), (b"a \n", "a", False), (b"a\\ \n", "a ", False),
        (b"[z-a]\n[a\nb\n", "b", False), (b"\xef\xbb\xbfa\r\n", "a", False), (b"?", "\u00e9", True),
        (b"??\n", "\u00e9", False), ("\u00e9\n".encode(), "d/\u00e9", False), (b"\xff\nb\n", "b", False),
    ],
)  # fmt: skip
def test_rules_mean_what_git_says(rules: bytes, path: str, *, is_kept: bool) -> None:
    assert (kept({"/w/.gitignore": rules}, path) == [path]) is is_kept


def test_the_nearest_ignore_file_decides_and_those_above_the_root_count() -> None:
    texts = {"/.gitignore": b"*.tmp\n", "/w/.gitignore": b"*.log\n/sub/c\n", "/w/sub/.gitignore": b"!b.log\n"}
    paths = ("a.log", "b.log", "sub/a.log", "sub/b.log", "sub/c", "x.tmp", "sub/d")
    assert kept(texts, *paths) == ["sub/b.log", "sub/d"]
    assert kept(texts, "b.log", "c", "x.tmp", root="/w/sub") == ["b.log"]
    assert kept({"/.gitignore": b"/w\n"}, "w/a", "v/w", root="/") == ["v/w"]


def test_rules_and_names_cannot_keep_the_host_busy() -> None:
    tree = IgnoreTree("/r", {"/r/.gitignore": b"*a*a*a*a*a*a*a*a*b\n**/a/**/a/**/a/**/a/**/b\n"}, MatchBudget(0.05))
    with pytest.raises(ToolError, match="took too long"):
        tree.kept([("", "/".join(["a"] * 1500)), ("", "a" * 255)])


@pytest.mark.slow
def test_more_rules_than_can_be_compiled_in_time_are_told() -> None:
    rules = b"".join(b"a%d?b*\n" % number for number in range(3000))
    with pytest.raises(ToolError, match="took too long"):
        IgnoreTree("/r", {f"/r/{number}/.gitignore": rules for number in range(50)}, MatchBudget(0.05))


@pytest.mark.parametrize(
    ("lines", "tests"),
    [
        (b"node_modules/\n.venv\n", [("-name", "node_modules"), ("-name", ".venv")]),
        (b"/build\nsrc/gen/\n", [("-path", "./build"), ("-path", "./src/gen")]),
        (b"a[bc]\nx/*/y\n*.egg-info\n", []),
        (b"*\n!keep\n", []),
        (b"out\n!out\n", []),
        (b"out\n!*.txt\n", []),
        (b"out\n!kept\n", [("-name", "out")]),
    ],
)
def test_only_what_is_certainly_ignored_is_not_entered(lines: bytes, tests: list[tuple[str, ...]]) -> None:
    assert prunes({"/w": parse(lines)}, "/w") == tests


def test_rules_of_a_directory_below_prune_only_there() -> None:
    assert prunes({"/w/a": parse(b"out\n/gen\n")}, "/w") == [("-path", "./a/*", "-name", "out"), ("-path", "./a/gen")]
