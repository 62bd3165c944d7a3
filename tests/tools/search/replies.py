"""A runtime whose searches are answered by the test, in the form of the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.results import ExecResult
from ohsandbox.tools.search.lines import Line
from ohsandbox.tools.search.script import SearchEngine, use_engine
from tests.fakes import RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Sequence


class Answers(RecordingRuntime):
    """Each search gets the next answer; `@` stands for the call's token, which begins each record."""

    def __init__(self, *answers: ExecResult, engine: str = "posix") -> None:
        super().__init__()
        self._answers = list(answers)
        self.arguments: list[list[str]] = []
        """Of each search: what follows the script and its first three words."""
        use_engine(self, SearchEngine(has_rg=engine == "rg"))

    def run(self, argv: Sequence[str], **_: Any) -> ExecResult:
        token, arguments = argv[4], list(argv[7:])
        self.arguments.append(arguments)
        answer = self._answers.pop(0)
        return answer._replace(
            stdout=answer.stdout.replace(b"@", token.encode()), stderr=answer.stderr.replace(b"@", token.encode())
        )


def said(stdout: str = "", stderr: str = "", *, code: int | None = 0, truncated: bool = False) -> ExecResult:
    """An answer."""
    out, complaint = (text.encode("utf-8", "surrogateescape") for text in (stdout, stderr))
    return ExecResult(code, out, complaint, timed_out=code is None, truncated=truncated)


def hit(number: int, text: str) -> Line:
    """A line that matches."""
    return Line(number, text, matches=True)


def near(number: int, text: str) -> Line:
    """A line of context."""
    return Line(number, text, matches=False)
