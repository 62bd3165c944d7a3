from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxFileError, SandboxFileNotFoundError, ToolArgumentsError, ToolError
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.state import ConversationState
from ohsandbox.tools.grep import GrepAction, GrepExecutor, make_grep_tool
from ohsandbox.tools.search.lines import read_matches
from tests.tools.searching import ENGINES, choose, send, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

TREE: dict[str, str | bytes] = {
    "a.py": "import os\n\ndef main():\n    return os.name\n\n\nif True:\n    main()\n",
    "web/b.ts": "function main() {\n  return 1\n}\n",
    "web/c.tsx": "const Main = 1",
    "crlf.txt": b"\xef\xbb\xbfmain one\r\ntwo main\r\n",
    "latin.txt": b"caf\xe9 main \xff\n",
    "colour.log": "\x1b[31mmain\x1b[0m\n",
    "data.bin": b"main\0\1\2\nmain\nmain\0",
    "node_modules/x.js": "main\n", ".env": "main\n", ".git/HEAD": "main\n", ".gitignore": "node_modules\n",
    "odd:1:name": "main 1\n", "line\nbreak": "main 2\n", "line": "main 3\n", "-e": "main 4\n", "$(id) 'q'": "main 5\n",
    "wide.js": "x" * 5000 + "main" + "\u00e9" * 5000 + "\n",
}  # fmt: skip


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


@pytest.fixture
def cli(started: Callable[[str], Runtime]) -> Runtime:
    return started("cli")


def test_every_engine_shows_the_same_lines_newest_file_first(engine: Runtime, tree: str) -> None:
    shown = tool("grep", engine)(pattern="main", path=tree)
    assert shown.text == "\n".join(
        [
            "16 matching lines in 12 files, newest file first:",
            f"{tree}/a.py",
            "3: def main():",
            "8:     main()",
            f"{tree}/web/b.ts",
            "1: function main() {",
            f"{tree}/crlf.txt",
            "1: main one",
            "2: two main",
            f"{tree}/latin.txt",
            "1: caf\ufffd main \ufffd",
            f"{tree}/colour.log",
            "1: \\x1b[31mmain\\x1b[0m",
            f"{tree}/data.bin: binary file, 3 matching lines not shown",
            f"{tree}/odd:1:name",
            "1: main 1",
            f"$'{tree}/line\\nbreak'",
            "1: main 2",
            f"{tree}/line",
            "1: main 3",
            f"{tree}/-e",
            "1: main 4",
            f"{tree}/$(id) 'q'",
            "1: main 5",
            f"{tree}/wide.js",
            f"1: {'x' * 500} [... line cut]",
        ]
    )


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"pattern": "main", "include": "*.{ts,tsx}"}, ["web/b.ts", "1: function main() {"]),
    (
        {"pattern": "main", "include": "*.{ts,tsx}", "ignore_case": True},
        ["web/b.ts", "1: function main() {", "web/c.tsx", "1: const Main = 1"],
    ),
    ({"pattern": "main", "include": "web/*.ts"}, ["web/b.ts", "1: function main() {"]),
    ({"pattern": "main", "include": "/*.ts"}, []),
    ({"pattern": "main", "include": "x.js", "ignored": True}, ["node_modules/x.js", "1: main"]),
    ({"pattern": "^main$", "include": ".env"}, [".env", "1: main"]),
    ({"pattern": "^main$", "include": "[.e]*", "hidden": True}, [".env", "1: main"]),
    ({"pattern": "^main$", "include": "HEAD", "hidden": True, "ignored": True}, []),
    (
        {"pattern": "os", "include": "*.py", "context": 1},
        ["a.py", "1: import os", "2- ", "3- def main():", "4:     return os.name", "5- "],
    ),
    (
        {"pattern": "import|True", "include": "*.py", "context": 1},
        ["a.py", "1: import os", "2- ", "--", "6- ", "7: if True:", "8-     main()"],
    ),
    ({"pattern": r"main\(\) \{$"}, ["web/b.ts", "1: function main() {"]),
    ({"pattern": "-e", "path": "a.py"}, []),
    ({"pattern": "return", "path": "a.py"}, ["a.py", "4:     return os.name"]),
    ({"pattern": "main", "path": "node_modules/x.js"}, ["node_modules/x.js", "1: main"]),
    ({"pattern": "main", "path": "line\nbreak"}, ["line\nbreak", "1: main 2"]),
    ({"pattern": "main", "mode": "counts", "include": "*.py"}, ["a.py: 2"]),
    ({"pattern": "main", "mode": "counts", "path": "data.bin"}, ["data.bin: 3"]),
    ({"pattern": "main", "mode": "files", "include": "*.[tp]*"}, ["a.py", "web/b.ts", "crlf.txt", "latin.txt"]),
    ({"pattern": "main", "mode": "files", "path": "a.py"}, ["a.py"]),
]


def test_every_engine_gives_the_same_answers(engine: Runtime, tree: str) -> None:
    grep = tool("grep", engine)
    for arguments, expected in CASES:
        shown = grep(**{**arguments, "path": f"{tree}/{arguments.get('path', '')}"}).text.split("\n")[1:]
        names = [line.replace(f"{tree}/", "").replace("$'line\\nbreak'", "line\nbreak") for line in shown]
        assert (arguments, names) == (arguments, expected)


def test_matches_are_data_too(engine: Runtime, tree: str) -> None:
    found = tool("grep", engine)(pattern="main", path=tree, context=1)
    by_file: dict[str, list[tuple[int, str]]] = {}
    for match in found.matches:
        by_file.setdefault(match.path.removeprefix(f"{tree}/"), []).append((match.line, match.text))
    assert by_file["a.py"] == [(3, "def main():"), (8, "    main()")]
    assert by_file["crlf.txt"] == [(1, "main one"), (2, "two main")]
    assert by_file["latin.txt"] == [(1, "caf\ufffd main \ufffd")]
    assert by_file["colour.log"] == [(1, "\x1b[31mmain\x1b[0m")]
    assert by_file["line\nbreak"] == [(1, "main 2")]
    assert "data.bin" not in by_file
    assert f"{tree}/data.bin" in found.files
    assert (len(found.files), found.truncated) == (found.total_files, False)
    assert "matches" not in found.model_dump()


def test_the_other_modes_have_files_and_no_matches(engine: Runtime, tree: str) -> None:
    for mode in ("files", "counts"):
        found = tool("grep", engine)(pattern="main", path=f"{tree}/web", mode=mode)
        assert found.files == (f"{tree}/web/b.ts",)
        assert (found.matches, found.truncated) == ((), False)


def test_a_path_that_cannot_be_searched_is_an_error_and_no_match_is_an_answer(engine: Runtime, tree: str) -> None:
    grep = tool("grep", engine)
    with pytest.raises(SandboxFileNotFoundError, match="No such file or directory"):
        grep(pattern="x", path=f"{tree}/missing")
    with pytest.raises(SandboxFileError, match="neither a directory nor a regular file"):
        grep(pattern="x", path="/dev/null")
    answer = grep(pattern="no such line", path=f"{tree}/a.py")
    assert (answer.text, answer.total_files) == (f"No line matches 'no such line' in {tree}/a.py.", 0)
    assert grep(pattern="zz", path=tree, include="*.py", hidden=True).text == (
        f"No line matches 'zz' in {tree}, files '*.py'. "
        "Not looked at: files that .gitignore excludes (`ignored`: true)."
    )


def test_what_is_left_out_is_counted(engine: Runtime, tmp_path: Path) -> None:
    grep, folder = tool("grep", engine), f"{engine.workdir.rstrip('/')}/{tmp_path.name}"
    send(engine, tmp_path / "many", {f"f{n:03}": "hit one\nmiss\nhit two\n" for n in range(250)}, folder)
    send(engine, tmp_path / "long", {"long": "".join(f"hit {n:04}\n" for n in range(9000))}, f"{folder}/sub")
    many = grep(pattern="hit", path=folder, include="f*")
    assert many.text.startswith("250 files match; the newest 100 hold 200 matching lines:\n")
    assert many.text.endswith("[Narrow `pattern`, `path` or `include`, or use `mode`: files.]")
    assert (many.total_files, many.total_lines) == (250, 200)
    assert (len(many.files), len(many.matches), many.truncated) == (100, 200, True)
    long = grep(pattern="hit", path=f"{folder}/sub/long")
    shown = long.text.count(": hit ")
    assert (len(long.matches), long.matches[-1].text, long.truncated) == (9000, "hit 8999", False)
    assert 1500 < shown < 2500
    assert long.text.endswith(
        f"[{shown:,} of 9,000 matching lines and 1 of 1 files shown. "
        "Narrow `pattern`, `path` or `include`, or use `mode`: files.]"
    )
    assert len(long.text) < 30_300
    both = grep(pattern="hit", path=folder, max_files=120)
    assert both.total_files == 251
    engine.run(["rm", "-rf", folder])


@pytest.mark.slow
def test_a_file_that_is_one_endless_line_stops_no_search_or_is_named_as_the_reason(engine: Runtime) -> None:
    folder = f"{engine.workdir.rstrip('/')}/sparse"
    make = 'mkdir "$1" && cd "$1" && echo needle >a && dd if=/dev/zero of=b bs=1 count=0 seek=5G'
    assert engine.run(["sh", "-c", make, "sh", folder]).exit_code == 0
    try:
        search = GrepExecutor(engine, limit_s=90)  # 5 GB take longer than its own 30 s on a busy machine
        told = search(GrepAction(pattern="needle", path=folder)).text
    except ToolError as error:  # busybox holds every line
        told = str(error)
    engine.run(["rm", "-rf", folder])
    assert told.endswith(f"{folder}/a\n1: needle") or "ran out of the sandbox's memory" in told


@pytest.mark.slow
def test_files_of_processes_can_be_searched(engine: Runtime) -> None:
    grep, process = tool("grep", engine), f"/proc/{os.getpid() if isinstance(engine, CLIRuntime) else 1}"
    assert f"{process}/status\n1: Name:" in grep(pattern="^Name:", path=process, include="status").text
    everywhere = grep(pattern="no such text", path=process)
    assert (everywhere.complete, everywhere.total_files) == (True, 0)


def test_files_that_change_between_the_two_readings_are_counted(cli: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write_bytes("gone/a", b"needle\n")
    cli.write_bytes("gone/b", b"needle\n")

    def late(*arguments: Any, **options: Any) -> Any:
        cli.run(["rm", "gone/b"])
        return read_matches(*arguments, **options)

    monkeypatch.setattr("ohsandbox.tools.grep.read_matches", late)
    told = tool("grep", cli)(pattern="needle", path="gone").text
    assert told.startswith("1 matching line in 1 file, ")
    assert "\n[1 file matched at first, but no line did then: changed, removed, or binary.]" in told


@pytest.mark.parametrize(
    "arguments",
    [{"pattern": ""}, {"pattern": "a\0"}, {"pattern": "a", "mode": "all"}, {"pattern": "a", "context": -1}],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], cli: Runtime) -> None:
    with pytest.raises(ToolArgumentsError):
        tool("grep", cli)(**arguments)


def test_a_pattern_that_is_none_is_told_though_no_file_is_searched(engine: Runtime) -> None:
    engine.run(["mkdir", "-p", "/tmp/nothing-to-search"])
    with pytest.raises(ToolError, match="The search did not run"):
        tool("grep", engine)(pattern="(", path="/tmp/nothing-to-search")


def test_grep_says_that_it_only_reads(cli: Runtime) -> None:
    made = make_grep_tool(conv_state=ConversationState(conversation_id="c", runtime=cli))
    notes = made.annotations
    assert notes is not None
    assert (notes.readOnlyHint, notes.destructiveHint, notes.idempotentHint, notes.openWorldHint) == (
        True, False, True, False,
    )  # fmt: skip
