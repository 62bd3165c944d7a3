"""What the model is told of `execute_ipython_cell`, what it may say, and what it is shown."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic reads annotations at run time
from typing import TYPE_CHECKING

from pydantic import Field

from ohsandbox.content import Content, ImageContent, TextContent
from ohsandbox.schema import Action, Observation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, output

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState

TOOL_NAME = "execute_ipython_cell"

HINT = CallHint(sign="%", subject="code")

DEFAULT_TIMEOUT_S = 120.0
"""The shell's limit too."""

MAX_TIMEOUT_S = 3600.0
"""An hour: longer work belongs in the background, where it can be polled."""

MAX_OUTPUT_CHARS = output.MAX_CHARS

MAX_IMAGES = 8
"""Of one cell; a model pays some 1,500 tokens for each."""

DESCRIPTION = f"""\
Run a cell of Python in a persistent kernel inside the sandbox, and return what it printed, the value of its last
expression and its images.

`code` (required) is a cell as in a notebook. Variables, imports and the working directory stay for the next cell.
The value of the last expression is shown, unless `;` ends it. `await` works at the top level. An exception is an
answer, with a short traceback, not a failure of the tool.

* Commands: `!command` runs a shell command (`{{expression}}` in it is filled in), `x = !command` keeps its lines, `%cd`
  changes the directory. Install packages with `%pip install name`, which is of this very Python. Other magics work
  where IPython is installed; without it the kernel is plain Python, and says so.
* Images: open matplotlib figures are returned at the end of a cell (`plt.show()` shows them earlier), as is what
  `display(...)` or the last expression gives as PNG, JPEG, GIF or WebP; at most {MAX_IMAGES} a cell.
* Time: after `timeout` seconds ({DEFAULT_TIMEOUT_S:.0f} when left out, at most {MAX_TIMEOUT_S:.0f}) the cell is
  interrupted (KeyboardInterrupt) and the variables stay. If it ignores that, the kernel is killed and they are lost;
  you are told.
* Output beyond {MAX_OUTPUT_CHARS} characters loses its middle, and how much is stated: print less, or to a file.
* `input()` gets no answer. Long work (servers, training) belongs in a child process with its output in a file.
* `reset` true starts a new kernel first: variables, and processes that cells started, are lost; files stay. A newly
  installed IPython is used after it."""


class IPythonRunCellAction(Action):
    """A cell for the kernel."""

    code: str = Field(description="The cell's Python code; may be empty with reset.")
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description=f"Seconds after which the cell is interrupted; {DEFAULT_TIMEOUT_S:.0f} when left out.",
    )
    reset: bool = Field(default=False, description="Start a new kernel first; all variables are lost.")


class IPythonObservation(Observation):
    """What came of a cell. A Python exception is an answer, as a command's non-zero exit code is; `error` names it."""

    text: str
    """What the cell and its child processes printed, its value, its traceback; bounded."""
    images: tuple[str, ...] = ()
    """`data:` URLs, in the order of their marks in text."""
    error: str | None = None
    """The exception that ended the cell, in one line."""
    timed_out: bool = False
    """Interrupted or killed because its time was over."""
    kernel_died: bool = False
    """The cell took the kernel with it, and all variables."""
    notice: str | None = None
    """What we have to say."""

    @property
    def is_error(self) -> bool:
        """Whether the kernel died: what the model believes to be in memory is not there any more."""
        return self.kernel_died

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The text, what is to be said of it, then the images."""
        lines = [self.text.removesuffix("\n")] if self.text else []
        if self.notice:
            lines.append(f"[{self.notice}]")
        text = TextContent(text="\n".join(lines) or "[The cell printed nothing and has no value.]")
        return [text, ImageContent(image_urls=self.images)] if self.images else [text]


class ExecuteIPythonCellTool(ToolDefinition[IPythonRunCellAction, IPythonObservation]):
    """The Python tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState, python: str = "python3") -> Sequence[ExecuteIPythonCellTool]:
        """One tool, with a kernel of its own that the first cell starts. python is found by the sandbox's PATH.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.execute_ipython_cell.impl import IPythonExecutor  # noqa: PLC0415 - impl is for running only

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=IPythonRunCellAction,
                observation_type=IPythonObservation,
                hint=HINT,
                annotations=ToolAnnotations(title="Python"),
                executor=IPythonExecutor(conv_state.require_runtime(), python=python),
            )
        ]
