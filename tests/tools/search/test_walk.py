"""How a directory is asked for and its answer is read, without a sandbox."""

from __future__ import annotations

import pytest

from ohsandbox.errors import SandboxFileError, ToolError
from ohsandbox.tools.search.globs import compile_glob
from ohsandbox.tools.search.regexes import Regex
from ohsandbox.tools.search.walk import Query, absolute, list_files
from tests.tools.search.replies import Answers, said

ALL = compile_glob("**/*", hidden=False)
NO_RULES = "/w\0@"
"""The answer to a look for ignore files: none."""


@pytest.mark.parametrize(
    ("path", "made"),
    [(".", "/w"), ("a", "/w/a"), ("./a//b/.", "/w/a/b"), ("/x/../y", "/x/../y"), ("/", "/"), ("..", "/w/..")],
)
def test_a_path_is_made_absolute_and_parents_stay(path: str, made: str) -> None:
    assert absolute("/w", path) == made


def test_the_newest_file_comes_first_and_of_one_age_the_name_decides() -> None:
    found = "/w\0@2024-01-01 ./b\n@2024-01-02 ./c\n@2024-01-01 ./a\n"
    runtime = Answers(said(NO_RULES), said(found, "@sfind 0\0"))
    assert list_files(runtime, Query("/w", ALL)).files == ["/w/c", "/w/a", "/w/b"]


def test_rg_gets_the_names_and_the_depth_and_what_is_hidden_or_ignored() -> None:
    runtime = Answers(*[said("/w\0")] * 2, engine="rg")
    list_files(runtime, Query("/w", compile_glob("*.{py,ts}", hidden=False)))
    list_files(runtime, Query("/w", ALL, hidden=True, ignored=True))
    first, second = (" ".join(words) for words in runtime.arguments)
    assert "--max-depth 1 --type-add ohsandbox:*.py --type-add ohsandbox:*.ts -t ohsandbox" in first
    assert "--hidden" not in first
    assert "--no-ignore" not in first.split()
    assert "--hidden -g !.git --no-ignore" in second


def test_find_skips_what_is_ignored_and_asks_for_rules_that_it_meets() -> None:
    look = said("/w\0/w/.gitignore\0@/w/.gitignore:build/\n")
    first = said("/w\0@1 ./a/x.log\n@1 ./a/y\n", "@sfind 0\0@i./a/.gitignore\0")
    rules = said("/w/a/.gitignore\0@/w/a/.gitignore:*.log\n")
    runtime = Answers(look, first, rules)
    assert list_files(runtime, Query("/w", ALL)).files == ["/w/a/y"]
    assert "-name build" in " ".join(runtime.arguments[1])


def test_rules_met_late_that_take_a_directory_back_repeat_the_walk() -> None:
    look = said("/w\0/w/.gitignore\0@/w/.gitignore:build/\n")
    first = said("/w\0", "@sfind 0\0@i./a/.gitignore\0")
    rules = said("/w/a/.gitignore\0@/w/a/.gitignore:!build/\n")
    second = said("/w\0@1 ./a/build/x\n", "@sfind 0\0")
    runtime = Answers(look, first, rules, second)
    assert list_files(runtime, Query("/w", ALL)).files == ["/w/a/build/x"]
    assert "-name build" not in " ".join(runtime.arguments[3])


def test_the_root_is_searched_without_what_no_user_wrote() -> None:
    runtime = Answers(said("/\0"), engine="rg")
    list_files(runtime, Query("/", ALL))
    assert "-g !/proc -g !/sys -g !/dev" in " ".join(runtime.arguments[0])


def test_endless_files_of_processes_are_left_out_of_what_is_read() -> None:
    runtime = Answers(said("/proc/1\0"), engine="rg")
    list_files(runtime, Query("/proc/1", ALL, regex=Regex("x")))
    assert "-g !pagemap" in " ".join(runtime.arguments[0])


@pytest.mark.parametrize(("code", "number"), [(101, 2), (103, 22), (104, 13)])
def test_a_path_that_cannot_be_searched_is_a_file_error(code: int, number: int) -> None:
    with pytest.raises(SandboxFileError) as caught:
        list_files(Answers(said(code=code), engine="rg"), Query("/w", ALL))
    assert caught.value.errno == number


def test_a_file_as_path_and_a_missing_prefix_list_nothing() -> None:
    assert list_files(Answers(said(code=102), engine="rg"), Query("/f", ALL)).is_file
    missing = list_files(Answers(said(code=105), engine="rg"), Query("/w", ALL))
    assert (missing.files, missing.is_file) == ([], False)


def test_what_makes_an_answer_incomplete_is_told() -> None:
    assert list_files(Answers(said("/w\0", "@srg 2\0"), engine="rg"), Query("/w", ALL)).unreadable
    assert list_files(Answers(said("/w\0", truncated=True), engine="rg"), Query("/w", ALL)).stopped
    with pytest.raises(ToolError, match="did not answer in time"):
        list_files(Answers(said(code=None), engine="rg"), Query("/w", ALL))
