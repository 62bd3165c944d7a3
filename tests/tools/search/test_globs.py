"""Glob patterns, without a sandbox."""

from __future__ import annotations

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.tools.search.globs import MatchBudget, compile_glob, expand_braces


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**", "a/b", True), ("**/*", ".a/b", False), ("**/a/**/b", "a/b", True), ("**/a/**/b", "x/a/y/z/b", True),
        ("**/a/**/b", "b/a", False), ("*a*b*c", "xaxbxc", True), ("*a*b*c", "xbxaxc", False), ("a**b", "axxb", True),
        ("a**b", "a/b", False), ("[^a]", "b", True), ("[^a]", "a", False), ("[]]", "]", True), ("{a", "{a", True),
        ("{a}", "{a}", True), ("{a,b{c,d}}", "bd", True), ("\\*", "*", True), ("\\*", "x", False), ("a ", "a ", True),
        (".*", ".a", True), ("?a", ".a", False), ("[.]a", ".a", False), ("**/.a*/*", "x/.ab/c", True),
        ("**/.a*/*", "x/.ab/.c", False), ("!a", "!a", True), ("#a", "#a", True),
    ],
)  # fmt: skip
def test_patterns_mean_what_a_shell_means(pattern: str, path: str, *, matches: bool) -> None:
    assert compile_glob(pattern, hidden=False).matches(path, MatchBudget()) is matches


def test_braces_are_expanded_from_the_innermost() -> None:
    assert expand_braces("{a,b{c,d}}.{x,y}") == ["a.x", "a.y", "bc.x", "bc.y", "bd.x", "bd.y"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.py", ("*.py",)), ("*.{ts,tsx}", ("*.ts", "*.tsx")), ("**", ()), ("caf\u00e9?.txt", ("caf*.txt",)),
        ("[!]a]b", ("*b",)), ("a\\[x\\]", ("a*",)), ("[a-c]d[e]", ()),
    ],
)  # fmt: skip
def test_the_walk_is_told_names_that_lose_no_wanted_file(pattern: str, names: tuple[str, ...]) -> None:
    assert compile_glob(pattern, hidden=False).names == names


def test_the_directories_without_a_wildcard_are_where_the_search_begins() -> None:
    glob = compile_glob("src/app/{a,b}/*.py", hidden=False)
    assert (glob.prefix, glob.depth, glob.dotted) == ("src/app", 2, False)
    assert compile_glob(".git/*", hidden=False).prefix == ""


@pytest.mark.parametrize("pattern", ["[a", "[z-a]", "a/[", "*/../x", "/", "{a,b}" * 20])
def test_a_malformed_pattern_is_one_line_with_a_remedy(pattern: str) -> None:
    with pytest.raises(ToolError) as told:
        compile_glob(pattern, hidden=False)
    assert repr(pattern) in str(told.value)
    assert "\n" not in str(told.value)


def test_a_pattern_and_a_name_cannot_keep_the_host_busy() -> None:
    glob, budget = compile_glob("**/a/**/a/**/a/**/*a*a*a*a*a*a*a*b", hidden=False), MatchBudget(0.05)
    with pytest.raises(ToolError, match="took too long"):
        glob.matches("/".join([*["a"] * 1500, "a" * 255]), budget)
    with pytest.raises(ToolError, match="took too long"):
        budget.check()
