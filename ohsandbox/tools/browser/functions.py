"""The functions that `code` may call: parsed here with `ast`, never executed as Python."""

from __future__ import annotations

import ast
import math
import re
import warnings
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.errors import ToolArgumentsError

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["text", "bid", "texts", "number", "wait", "index", "flag", "button", "modifiers"]

MAX_CODE_CHARS = 50_000
"""Enough for a long text in a `fill`; `upload_file` takes files."""
MAX_CALLS = 50
MAX_WAIT_MS = 30_000
MAX_SCROLL_PX = 1_000_000

BUTTONS = ("left", "middle", "right")
MODIFIERS = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")

_BID = re.compile(r"\[?((?:f\d{1,9})?e\d{1,9})\]?")
_REQUIRED: Any = object()
_QUOTED_CHARS = 80


class Parameter(NamedTuple):
    """One parameter of a function."""

    name: str
    kind: Kind
    default: Any = _REQUIRED

    def __str__(self) -> str:
        hint = {"texts": "str | list", "modifiers": "list", "flag": "bool", "index": "int"}.get(self.kind, "")
        shown = f"{self.name}: {hint}" if hint else self.name
        return shown if self.default is _REQUIRED else f"{shown}={self.default!r}"


class Function(NamedTuple):
    """A function that `code` may call."""

    name: str
    parameters: tuple[Parameter, ...]
    help: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


class Call(NamedTuple):
    """A checked call."""

    line: int
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        defaults = {parameter.name: parameter.default for parameter in FUNCTIONS[self.name].parameters}
        said = [_quoted(value) for name, value in self.arguments.items() if value != defaults[name]]
        return f"line {self.line}, {self.name}({', '.join(said)})"


_BID_OF = Parameter("bid", "bid")
_CLICKING = (_BID_OF, Parameter("button", "button", "left"), Parameter("modifiers", "modifiers", []))

FUNCTIONS = {
    function.name: function
    for function in (
        Function("goto", (Parameter("url", "text"),), "an address, or an absolute path of a file in the sandbox"),
        Function("go_back", (), "one page back in the tab's history"),
        Function("go_forward", (), "one page forward"),
        Function("noop", (Parameter("wait_ms", "wait", 1000),), f"only wait and look; at most {MAX_WAIT_MS} ms"),
        Function(
            "scroll",
            (Parameter("delta_x", "number"), Parameter("delta_y", "number")),
            "by pixels, at the mouse; positive is right and down",
        ),
        Function("fill", (_BID_OF, Parameter("value", "text")), "replace the text of a field"),
        Function("select_option", (_BID_OF, Parameter("options", "texts")), "choose by value or label"),
        Function("click", _CLICKING, "button left, middle, right; modifiers such as ['Shift']"),
        Function("dblclick", _CLICKING, "the same, twice"),
        Function("hover", (_BID_OF,), "put the mouse on it"),
        Function("press", (_BID_OF, Parameter("key_comb", "text")), "keys such as 'Enter', 'Control+a', 'ArrowDown'"),
        Function("focus", (_BID_OF,), "give it the keyboard"),
        Function("clear", (_BID_OF,), "empty a field"),
        Function("drag_and_drop", (Parameter("from_bid", "bid"), Parameter("to_bid", "bid")), "drag one onto another"),
        Function(
            "upload_file",
            (_BID_OF, Parameter("file", "texts")),
            "a file of the sandbox, for a file field or the button that opens one",
        ),
        Function("new_tab", (), "open an empty tab"),
        Function("tab_focus", (Parameter("index", "index"),), "show the tab of that number"),
        Function("tab_close", (), "close the shown tab"),
        Function(
            "on_dialog",
            (Parameter("accept", "flag"), Parameter("text", "text", "")),
            "answer the next confirm or prompt so (they are dismissed otherwise); put it before what opens the dialog",
        ),
    )
}


def parse(code: str) -> list[Call]:
    """Parse code into its calls, in order.

    Raises:
        ToolArgumentsError: it holds anything else; names the line and the allowed forms. Nothing was executed.
    """
    if len(code) > MAX_CODE_CHARS:
        raise ToolArgumentsError(
            f"code has {len(code)} characters, at most {MAX_CODE_CHARS} are taken. Put large text into a file."
        )
    calls = [_call(statement) for statement in _statements(code)]
    if not 0 < len(calls) <= MAX_CALLS:
        raise ToolArgumentsError(f"code holds {len(calls)} calls; give 1 to {MAX_CALLS}; noop() only looks.")
    return calls


def _statements(code: str) -> Sequence[ast.stmt]:
    # models like to wrap code in a Markdown fence; the line numbers stay
    plain = "\n".join("" if line.startswith("```") else line for line in dedent(code).split("\n"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' in a string is harmless here
            return ast.parse(plain).body
    except SyntaxError as error:
        raise _refused(error.lineno or 1, f"is not written as Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL; nested too deep for the parser
        raise _refused(1, f"cannot be parsed: {error}") from None


def _call(statement: ast.stmt) -> Call:
    line = statement.lineno
    if not (isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call)):
        raise _refused(line, "is no call")
    if not (isinstance(call.func, ast.Name) and call.func.id in FUNCTIONS):
        raise _refused(line, f"calls {_source(call.func)}")
    function = FUNCTIONS[call.func.id]
    return Call(line, function.name, _bind(line, function, call))


def _bind(line: int, function: Function, call: ast.Call) -> dict[str, Any]:
    """Validate the arguments; return them by name with defaults."""
    names = [parameter.name for parameter in function.parameters]
    given: dict[str, ast.expr] = dict(zip(names, call.args, strict=False))
    wrong = len(call.args) > len(names)
    for keyword in call.keywords:
        wrong = wrong or keyword.arg not in names or keyword.arg in given
        given[str(keyword.arg)] = keyword.value
    missing = [one.name for one in function.parameters if one.default is _REQUIRED and one.name not in given]
    if wrong or missing:
        raise ToolArgumentsError(f"Line {line} of code does not fit {function}. Nothing was done.")
    return {
        parameter.name: _checked(line, function, parameter, given[parameter.name])
        if parameter.name in given
        else parameter.default
        for parameter in function.parameters
    }


def _checked(line: int, function: Function, parameter: Parameter, node: ast.expr) -> Any:
    value = _literal(line, node)
    checked, wanted = _CHECKS[parameter.kind](value)
    if checked is None:
        raise ToolArgumentsError(
            f"Line {line} of code: {parameter.name} of {function} must be {wanted}, not {_quoted(value)}. "
            "Nothing was done."
        )
    return checked


def _literal(line: int, node: ast.expr) -> Any:
    """Read a number, a text, True, False, or a list of those; evaluates nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(line, item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    raise _refused(line, f"has the argument {_source(node)}, which is no literal")


# --- kinds: each returns the value to use, or None and the expected form -----------------------


def _text(value: Any) -> tuple[str | None, str]:
    return value if isinstance(value, str) and _is_encodable(value) else None, "a text"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bid(value: Any) -> tuple[str | None, str]:
    found = _BID.fullmatch(value) if isinstance(value, str) else None
    return found and found[1], "an id from the tree, such as 'e12' or 'f1e3'"


def _texts(value: Any) -> tuple[list[str] | None, str]:
    items = [value] if isinstance(value, str) else value
    ok = isinstance(items, list) and items and all(_text(item)[0] is not None for item in items)
    return items if ok else None, "a text or a list of texts"


def _number(value: Any) -> tuple[float | None, str]:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if ok and abs(value) <= MAX_SCROLL_PX else None, f"a number of at most {MAX_SCROLL_PX} either way"


def _wait(value: Any) -> tuple[float | None, str]:
    number, _ = _number(value)
    return number if number is not None and 0 <= number <= MAX_WAIT_MS else None, f"0 to {MAX_WAIT_MS} milliseconds"


def _index(value: Any) -> tuple[int | None, str]:
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if ok else None, "a tab's number, from 0"


def _flag(value: Any) -> tuple[bool | None, str]:
    return value if isinstance(value, bool) else None, "True or False"


def _button(value: Any) -> tuple[str | None, str]:
    return value if value in BUTTONS else None, f"one of {', '.join(BUTTONS)}"


def _modifiers(value: Any) -> tuple[list[str] | None, str]:
    ok = isinstance(value, list) and all(item in MODIFIERS for item in value)
    return value if ok else None, f"a list of {', '.join(MODIFIERS)}"


_CHECKS: dict[Kind, Any] = {
    "text": _text,
    "bid": _bid,
    "texts": _texts,
    "number": _number,
    "wait": _wait,
    "index": _index,
    "flag": _flag,
    "button": _button,
    "modifiers": _modifiers,
}


def _refused(line: int, what: str) -> ToolArgumentsError:
    return ToolArgumentsError(
        f"Line {line} of code {what}. Nothing was done. Allowed are calls with literal arguments, one a line, of: "
        f"{', '.join(FUNCTIONS)}."
    )


def _source(node: ast.AST) -> str:
    try:
        return _quoted(ast.unparse(node), plain=True)
    except RecursionError:
        return "something nested too deep"


def _quoted(value: Any, *, plain: bool = False) -> str:
    text = str(value) if plain else repr(value)
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}... ({len(text)} characters)"
