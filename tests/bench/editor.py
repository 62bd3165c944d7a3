"""The editor's rows: how long a model waits for a look at a file and for an edit of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.state import ConversationState
from ohsandbox.tools.file_editor import FileEditorTool

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime import Runtime
    from tests.bench.rows import Row

VIEW_TARGET_S = 0.005
REPLACE_TARGET_S = 0.015
BIG_TARGET_S = 2.0

BIG_BYTES = 20_000_000


def editor_rows(runtime: Runtime) -> list[Row]:
    """A file of 1,000 lines viewed and edited, and one of 20 MB edited, each beside the bare transfer of its bytes."""
    from tests.bench.rows import median_s  # noqa: PLC0415 - it imports this module

    [tool] = FileEditorTool.create(conv_state=ConversationState(conversation_id="bench", runtime=runtime))

    def use(**arguments: object) -> None:
        tool(tool.action_from_arguments(arguments))

    def toggle(path: str) -> Callable[[], None]:
        words = ["line 501 of", "LINE 501 of"]

        def replace() -> None:
            use(command="str_replace", path=path, old_str=words[0], new_str=words[1])
            words.reverse()

        return replace

    def move(path: str) -> None:
        runtime.write_bytes(path, runtime.read_bytes(path))

    small, big = "/tmp/bench-small", "/tmp/bench-big"
    _fill(runtime, small, lines=1_000)
    _fill(runtime, big, lines=BIG_BYTES // 20)
    rows = [
        _row(
            "view of 1,000 lines", median_s(lambda: use(command="view", path=small), rounds=100),
            median_s(lambda: runtime.read_bytes(small), rounds=100), VIEW_TARGET_S,
        ),
        _row(
            "str_replace in 1,000 lines", median_s(toggle(small), rounds=100),
            median_s(lambda: move(small), rounds=100), REPLACE_TARGET_S,
        ),
        _row(
            "str_replace in 20 MB", median_s(toggle(big), rounds=5),
            median_s(lambda: move(big), rounds=5), BIG_TARGET_S,
        ),
    ]  # fmt: skip
    runtime.run(["rm", "-f", small, big])
    return rows


def _fill(runtime: Runtime, path: str, *, lines: int) -> None:
    runtime.write_bytes(path, b"".join(b"line %d of %d\n" % (number, lines) for number in range(lines)))


def _row(work: str, ours_s: float, bare_s: float, target_s: float) -> Row:
    from tests.bench.rows import Row  # noqa: PLC0415 - it imports this module

    return Row(
        work, f"{ours_s * 1000:.2f} ms", f"{bare_s * 1000:.2f} ms bare bytes", f"{ours_s / bare_s:.1f}x",
        f"< {target_s * 1000:.0f} ms", ours_s < target_s,
    )  # fmt: skip
