from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox import CLIRuntime
from ohsandbox.errors import SandboxFileNotFoundError, SandboxNotADirectoryError, ToolArgumentsError, ToolError
from ohsandbox.state import ConversationState
from ohsandbox.tools.glob import GlobAction, GlobExecutor, make_glob_tool
from ohsandbox.tools.search.script import SearchEngine, use_engine
from tests.tools.searching import ENGINES, choose, plant, send, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime

TREE = {
    "src/new.py": "", "src/app.ts": "", "src/view.tsx": "", "src/deep/er/old.py": "", "top.py": "",
    "node_modules/left/index.py": "", "src/node_modules/x.py": "", "build/out.py": "", "src/build/kept.py": "",
    "debug.log": "", "keep.log": "", "web/dist/made.py": "", "web/local/fine.py": "", "src/.hidden.py": "",
    ".github/workflows/ci.yml": "", ".git/hooks/hook.py": "", "sub/.git/config.py": "",
    ".gitignore": "node_modules/\n/build\n*.log\n!keep.log\n", "web/.gitignore": "dist\n!local\n",
    "a b/it's $(x) \"q\".py": "", "-rf": "", "line\nbreak.txt": "", "[id]/page.tsx": "", "caf\u00e9.txt": "",
    "odd\udcff.bin": "",
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("**/*.py", {}, ["src/new.py", "src/deep/er/old.py", "top.py", "src/build/kept.py", "web/local/fine.py",
                     "a b/it's $(x) \"q\".py"]),
    ("*.py", {}, ["top.py"]),
    ("src/*.{ts,tsx}", {}, ["src/app.ts", "src/view.tsx"]),
    ("{src,web}/**/*.py", {}, ["src/new.py", "src/deep/er/old.py", "src/build/kept.py", "web/local/fine.py"]),
    ("./src/**/er/*", {}, ["src/deep/er/old.py"]),
    ("src/**", {"path": "web"}, []),
    ("**/*.py", {"path": "src/deep"}, ["src/deep/er/old.py"]),
    ("*.log", {}, ["keep.log"]),
    ("*.log", {"ignored": True}, ["debug.log", "keep.log"]),
    ("**/x.py", {"ignored": True}, ["src/node_modules/x.py"]),
    ("node_modules/**/*.py", {}, ["node_modules/left/index.py"]),
    ("**/*.yml", {}, []),
    ("**/*.yml", {"hidden": True}, [".github/workflows/ci.yml"]),
    (".github/**/*.yml", {}, [".github/workflows/ci.yml"]),
    ("**/.hid*", {}, ["src/.hidden.py"]),
    ("**/{.hidden,new}.py", {}, ["src/new.py", "src/.hidden.py"]),
    ("**/.gitignore", {}, [".gitignore", "web/.gitignore"]),
    (".git/**", {"hidden": True, "ignored": True}, []),
    ("**/h*.py", {"hidden": True, "ignored": True}, []),
    ("-*", {}, ["-rf"]),
    ("[[]id]/*.tsx", {}, ["[id]/page.tsx"]),
    ("\\[id\\]/*", {}, ["[id]/page.tsx"]),
    ("caf?.txt", {}, ["caf\u00e9.txt"]),
    ("[!a-z]*", {}, ["-rf"]),
    ("none", {}, []),
]  # fmt: skip


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, started: Callable[[str], Runtime]) -> Runtime:
    place, name = request.param
    runtime = started(place)
    choose(runtime, name)
    return runtime


@pytest.fixture
def tree(engine: Runtime, tmp_path: Path) -> Iterator[str]:
    folder = f"{engine.workdir.rstrip('/')}/{tmp_path.name}"
    send(engine, tmp_path / "tree", TREE, folder)
    yield folder
    engine.run(["rm", "-rf", folder])


def test_every_engine_finds_the_same_files_newest_first(engine: Runtime, tree: str) -> None:
    glob = tool("glob", engine)
    for pattern, arguments, expected in CASES:
        path = f"{tree}/{arguments.get('path', '')}"
        found = glob(**{**arguments, "pattern": pattern, "path": path})
        assert (pattern, found.files) == (pattern, tuple(f"{tree}/{name}" for name in expected))
        assert found.total == len(expected)


def test_names_that_would_break_a_line_are_shown_as_bash_reads_them(engine: Runtime, tree: str) -> None:
    glob = tool("glob", engine)
    assert glob(pattern="line*", path=tree).text.splitlines()[1:] == [f"$'{tree}/line\\nbreak.txt'"]
    assert glob(pattern="odd*", path=tree).text.splitlines()[1:] == [f"$'{tree}/odd\\xff.bin'"]


def test_the_files_are_paths_that_can_be_read(engine: Runtime, tree: str) -> None:
    found = tool("glob", engine)(pattern="line*", path=tree)
    assert found.files == (f"{tree}/line\nbreak.txt",)
    assert not found.truncated
    odd = tool("glob", engine)(pattern="odd*", path=tree)
    assert [engine.read_bytes(path) for path in (*found.files, *odd.files)] == [b"", b""]
    assert json.loads(odd.model_dump_json())["files"] == [f"{tree}/odd\ufffd.bin"]


def test_an_absolute_pattern_needs_no_path_and_a_relative_path_stands_in_the_working_directory(
    engine: Runtime, tree: str
) -> None:
    glob = tool("glob", engine)
    expected = (f"{tree}/src/new.py", f"{tree}/src/build/kept.py")
    assert glob(pattern=f"{tree}/src/**/*[wt].py", path="/nowhere").files == expected
    assert glob(pattern="src/**/*[wt].py", path=os.path.basename(tree)).files == expected  # noqa: PTH119 - not the host's


def test_links_are_neither_listed_nor_followed_but_the_path_may_be_one(engine: Runtime, tree: str) -> None:
    engine.run(["sh", "-c", "ln -s . loop; ln -s src/new.py link.py; ln -s src alias"], workdir=tree)
    glob = tool("glob", engine)
    assert glob(pattern="**/new.py", path=tree).files == (f"{tree}/src/new.py",)
    assert glob(pattern="link.py", path=tree).files == ()
    assert glob(pattern="new.py", path=f"{tree}/alias").files == (f"{tree}/src/new.py",)


def test_an_ignore_file_above_the_path_counts(engine: Runtime, tree: str) -> None:
    engine.run(["sh", "-c", "echo /src/deep >>.gitignore; echo x >src/a.log"], workdir=tree)
    assert tool("glob", engine)(pattern="**/{*.log,old.py}", path=f"{tree}/src").files == ()


def test_a_late_ignore_file_takes_back_what_an_early_one_would_prune(engine: Runtime, tree: str) -> None:
    deep = f"{tree}/a/b/c/d"
    engine.run(["sh", "-c", 'mkdir -p "$1/node_modules"; echo >"$1/node_modules/z.js"', "sh", deep])
    glob = tool("glob", engine)
    assert glob(pattern="**/z.js", path=tree).files == ()
    engine.run(["sh", "-c", 'echo "!node_modules" >"$1/.gitignore"', "sh", deep])
    assert glob(pattern="**/z.js", path=tree).files == (f"{deep}/node_modules/z.js",)


def test_a_path_that_cannot_be_searched_is_an_error_and_no_match_is_an_answer(engine: Runtime, tree: str) -> None:
    glob = tool("glob", engine)
    with pytest.raises(SandboxFileNotFoundError, match="No such file or directory"):
        glob(pattern="*", path=f"{tree}/missing")
    with pytest.raises(SandboxNotADirectoryError, match="It is a file"):
        glob(pattern="*", path=f"{tree}/top.py")
    answer = glob(pattern="old.py", path=tree)
    assert not answer.is_error
    assert answer.text == (
        f"No file matches 'old.py' in {tree}. Below it look with '**/old.py'. Not looked at: hidden files (`hidden`: "
        "true), files that .gitignore excludes (`ignored`: true)."
    )


def test_what_is_left_out_is_counted(engine: Runtime, folder_of: Callable[[int, int], str]) -> None:
    glob = tool("glob", engine)
    many = glob(pattern="*", path=folder_of(1234, 5))
    assert (len(many.files), many.truncated) == (100, True)
    assert many.text.startswith("1,234 files match '*' in ")
    assert many.text.endswith(
        "[The newest 100 of 1,234 files are listed. Narrow `pattern` or `path`, or raise `max_files`.]"
    )
    long = glob(pattern="*", path=folder_of(300, 240), max_files=300)
    shown = long.text.splitlines()[1:-1]
    assert 80 < len(shown) < 125
    assert sum(len(name) + 1 for name in shown) <= 30_000
    assert (long.files[: len(shown)], len(long.files), long.truncated) == (tuple(shown), 300, False)
    assert long.text.endswith(f"[The newest {len(shown)} of 300 files are listed. Narrow `pattern` or `path`.]")


@pytest.fixture
def folder_of(engine: Runtime, tmp_path: Path) -> Iterator[Callable[[int, int], str]]:
    made: list[str] = []

    def make(count: int, length: int) -> str:
        made.append(f"{engine.workdir.rstrip('/')}/{tmp_path.name}-{count}")
        send(engine, tmp_path / str(count), {f"{n:0{length}d}": "" for n in range(count)}, made[-1])
        return made[-1]

    yield make
    engine.run(["rm", "-rf", *made])


@pytest.mark.docker
@pytest.mark.parametrize("program", ["find", "rg"])
def test_a_search_that_takes_too_long_tells_what_it_found(
    program: str, started: Callable[[str], Runtime], tmp_path: Path
) -> None:
    runtime = started("debian")
    folder = f"{runtime.workdir.rstrip('/')}/{tmp_path.name}"
    send(runtime, tmp_path / "tree", {"seen.py": ""}, folder)
    where = folder if program == "rg" else "."
    slow = f"#!/bin/sh\nprintf '%s\\0' '{where}/seen.py'\nsleep 100\n"
    runtime.write_bytes(f"/usr/local/bin/{program}", slow.encode(), mode=0o755)
    use_engine(runtime, SearchEngine(has_rg=program == "rg"))
    try:
        told = GlobExecutor(runtime, limit_s=0.5)(GlobAction(pattern="**/*.py", path=folder))
    finally:
        runtime.run(["rm", f"/usr/local/bin/{program}"])
    assert told.files == (f"{folder}/seen.py",)
    assert not told.complete
    assert told.text.endswith("[Stopped after 0.5 s: this is what was found until then. Search a smaller `path`.]")
    assert b"sleep 100" not in runtime.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout


@pytest.mark.docker
def test_a_sandbox_without_the_programs_says_so(started: Callable[[str], Runtime]) -> None:
    runtime = started("debian")
    use_engine(runtime, SearchEngine(has_rg=True))  # it has none
    with pytest.raises(ToolError, match="lacks a program that a search needs"):
        tool("glob", runtime)(pattern="*", path="/etc")
    assert tool("glob", runtime)(pattern="hostname", path="/etc").total == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"pattern": ""}, ToolArgumentsError),
        ({"pattern": "a\0b"}, ToolArgumentsError),
        ({"pattern": "*", "path": "\0"}, ToolArgumentsError),
        ({"pattern": "*", "max_files": 0}, ToolArgumentsError),
        ({"pattern": "*/../x"}, ToolError),
        ({"pattern": "/"}, ToolError),
        ({"pattern": "{a,b}" * 20}, ToolError),
    ],
)
def test_a_wrong_argument_is_one_clear_line(arguments: dict[str, Any], error: type[ToolError], cli: Runtime) -> None:
    with pytest.raises(error) as told:
        tool("glob", cli)(**arguments)
    assert "\n" not in str(told.value)


def test_glob_says_that_it_only_reads(cli: Runtime) -> None:
    made = make_glob_tool(conv_state=ConversationState(conversation_id="c", runtime=cli))
    notes = made.annotations
    assert notes is not None
    assert (notes.readOnlyHint, notes.destructiveHint, notes.idempotentHint, notes.openWorldHint) == (
        True, False, True, False,
    )  # fmt: skip


@pytest.fixture
def cli(started: Callable[[str], Runtime]) -> Runtime:
    return started("cli")


NAMES = [
    "a",
    "b",
    "ab",
    "a.py",
    "b.ts",
    "c.log",
    "x y",
    ".h",
    "node_modules",
    "build",
    "\u00e9",
    "[x]",
    "{y}",
    "-v",
    "!n",
]
GLOBS = [
    "a", "ab", "*.py", "*.log", "*", "?", "[ab]", "[!a]", "a*", "*b", "**", "node_modules", "build", "{a,b}", "\u00e9",
    "\\[x\\]", "[[]x]", "\\!n", "a*b", "**a", "{a", "x y", "*.{py,ts}", ".*", "[A-C]", "{a,**}",
]  # fmt: skip
PATHS = st.lists(st.sampled_from(GLOBS), min_size=1, max_size=3).map("/".join)
RULE_PATHS = st.lists(st.sampled_from([*filter(lambda glob: "{" not in glob, GLOBS)]), min_size=1, max_size=3)
"""git knows no braces, and ripgrep reads them in .gitignore, too."""
RULES = st.lists(
    st.builds(lambda *parts: "".join(parts), st.sampled_from(["", "", "!"]), st.sampled_from(["", "", "/"]),
              RULE_PATHS.map("/".join),
              st.sampled_from(["", "", "/", " ", "\r"])), max_size=5,
).map("\n".join)  # fmt: skip
FOLDERS = st.lists(st.sampled_from(NAMES), max_size=3).map("/".join)


@pytest.mark.slow
@given(
    files=st.lists(st.tuples(FOLDERS, st.sampled_from(NAMES)), min_size=1, max_size=25),
    rules=st.dictionaries(FOLDERS, RULES, max_size=4),
    patterns=st.lists(st.one_of(PATHS, st.just("**/*")), min_size=1, max_size=3),
    hidden=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_rg_and_posix_tools_agree_on_any_tree(
    files: list[tuple[str, str]], rules: dict[str, str], patterns: list[str], *, hidden: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, CLIRuntime(name, bubblewrap=False, quiet=True) as runtime:
        _plant_some(Path(name), files, rules)
        glob = tool("glob", runtime)
        for pattern in patterns:
            found = []
            for engine in ("rg", "posix"):
                choose(runtime, engine)
                found.append(glob(pattern=pattern, hidden=hidden).files)
            assert found[0] == found[1]


def _plant_some(directory: Path, files: list[tuple[str, str]], rules: dict[str, str]) -> None:
    tree = {f"{folder}/{file}": "" for folder, file in files}
    tree |= {f"{folder}/.gitignore": text for folder, text in rules.items()}
    for number, (name, text) in enumerate(tree.items()):
        with contextlib.suppress(OSError):  # a file stands where a directory should, or the reverse
            plant(directory, {name.lstrip("/"): text}, age=number % 7)
