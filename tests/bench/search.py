"""`glob` and `grep` over 20,000 files against the bare programs in the same container."""

from __future__ import annotations

import io
import statistics
import tarfile
from typing import TYPE_CHECKING, Any

from ohsandbox.state import ConversationState
from ohsandbox.tools.glob import make_glob_tool
from ohsandbox.tools.grep import make_grep_tool
from ohsandbox.tools.search.script import engine_of
from tests.bench.rows import Row, median_s

if TYPE_CHECKING:
    from ohsandbox.runtime import Runtime

FILES = 20_000
ROOT = "/tmp/bench-tree"
TIMES = 1.5
"""How much longer than the bare program a tool may take."""
ROUNDS = 15

_SUFFIXES = ("py", "ts", "md", "txt")
_IGNORED = "node_modules/\n*.pyc\n/dist\nbuild/\n.venv\n!keep.txt\n"


def search_rows(runtime: Runtime) -> list[Row]:
    """Medians; leaves nothing behind."""
    _make_tree(runtime)
    state = ConversationState(conversation_id="bench", runtime=runtime)
    glob, grep = make_glob_tool(conv_state=state), make_grep_tool(conv_state=state)
    rg = engine_of(runtime).has_rg
    every = f"find {ROOT} -type f"
    bare = {
        "files": f"rg --files --sortr modified -g '*.py' {ROOT}"
        if rg
        else f"{every} -name '*.py' -exec stat -c '%y %n' {{}} +",
        "lines": f"rg -n 'needle_[a-z]+' {ROOT}" if rg else f"grep -rnE 'needle_[a-z]+' {ROOT}",
        "case": f"rg -ni NEEDLE {ROOT}" if rg else f"grep -rni NEEDLE {ROOT}",
        "names": f"rg -n -g '*.{{py,ts}}' needle {ROOT}"
        if rg
        else f"{every} -name '*.[pt][ys]' -exec grep -n needle {{}} +",
    }
    try:
        return [
            _row(runtime, glob, {"pattern": "**/*.py"}, bare["files"]),
            _row(runtime, grep, {"pattern": "needle_[a-z]+"}, bare["lines"]),
            _row(runtime, grep, {"pattern": "NEEDLE", "ignore_case": True}, bare["case"]),
            _row(runtime, grep, {"pattern": "needle", "include": "*.{py,ts}"}, bare["names"]),
        ]
    finally:
        runtime.run(["rm", "-rf", ROOT])


def _row(runtime: Runtime, tool: Any, arguments: dict[str, Any], bare: str) -> Row:
    action = tool.action_from_arguments({**arguments, "path": ROOT})
    pairs = [
        (median_s(lambda: tool(action), rounds=1), median_s(lambda: runtime.run(["sh", "-c", bare]), rounds=1))
        for _ in range(ROUNDS)  # by turns, so that a busy machine slows both
    ]
    ours, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = ours / other
    words = " ".join(f"{key}={value}" for key, value in arguments.items())
    return Row(
        f"{tool.name} {words}, {FILES} files",
        f"{ours * 1000:.1f} ms",
        f"{other * 1000:.1f} ms ({bare.split(maxsplit=1)[0]})",
        f"{ratio:.2f}x",
        f"<= {TIMES}x",
        ratio <= TIMES,
    )


def _make_tree(runtime: Runtime) -> None:
    """400 directories of 50 files of 2 KB; one file in 1,000 holds the needle."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(FILES):
            name = f"package{number % 20}/module{number // 20 % 20}/file{number}.{_SUFFIXES[number % 4]}"
            text = "".join(f"line {line} of file {number} is here to be read\n" for line in range(50))
            _add(archive, name, text + ("needle_here = 1\n" if number % 1000 == 1 else ""), number)
        _add(archive, ".gitignore", _IGNORED, 0)
    runtime.run(["mkdir", "-p", ROOT])
    runtime.run(["tar", "-xf", "-", "-C", ROOT], stdin=packed.getvalue())


def _add(archive: tarfile.TarFile, name: str, text: str, age: int) -> None:
    member = tarfile.TarInfo(name)
    data = text.encode()
    member.size, member.mtime = len(data), 1_700_000_000 + age
    archive.addfile(member, io.BytesIO(data))
