"""The functions that `code` may call: parsed here with `ast`, never executed as Python."""

from __future__ import annotations

import ast
import warnings
from textwrap import dedent
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from ohsandbox.errors import ToolArgumentsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_CODE_CHARS = 50_000
"""Limit of `code`: enough for a long text in a `fill`; `upload_file` takes files."""
MAX_CALLS = 50
_MAX_WAIT_MS = 30_000
_MAX_SCROLL_PX = 1_000_000
_MAX_INT_BITS = 64

_QUOTED_CHARS = 80


class _Kind(NamedTuple):
    """The type of a parameter."""

    adapter: TypeAdapter[Any]
    wanted: str
    """The type's name in messages."""
    hint: str = ""
    """Text for the description, if the parameter's name does not explain it."""


def _encodable(text: str) -> str:
    text.encode()  # a lone surrogate is a ValueError
    return text


_Text = Annotated[str, AfterValidator(_encodable)]
TEXT = _Kind(TypeAdapter(_Text), "a text")
_BID = _Kind(
    TypeAdapter(
        Annotated[str, Field(pattern=r"^\[?(f[0-9]{1,9})?e[0-9]{1,9}\]?$"), AfterValidator(lambda bid: bid.strip("[]"))]
    ),
    "an id from the tree, such as 'e12' or 'f1e3'",
)
TEXTS = _Kind(
    TypeAdapter(
        Annotated[
            _Text | Annotated[list[_Text], Field(min_length=1)],
            AfterValidator(lambda texts: [texts] if isinstance(texts, str) else texts),
        ]
    ),
    "a text or a list of texts",
    ": str | list",
)
_PIXELS = _Kind(
    TypeAdapter(Annotated[float, Field(ge=-_MAX_SCROLL_PX, le=_MAX_SCROLL_PX)]),
    f"a number of at most {_MAX_SCROLL_PX} either way",
)
_WAIT = _Kind(TypeAdapter(Annotated[float, Field(ge=0, le=_MAX_WAIT_MS)]), f"0 to {_MAX_WAIT_MS} milliseconds")
INDEX = _Kind(TypeAdapter(Annotated[int, Field(ge=0)]), "a tab's number, from 0", ": int")
FLAG = _Kind(TypeAdapter(bool), "True or False", ": bool")
_BUTTON = _Kind(TypeAdapter(Literal["left", "middle", "right"]), "one of left, middle, right")
_MODIFIERS = _Kind(
    TypeAdapter(list[Literal["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]]),
    "a list of Alt, Control, ControlOrMeta, Meta, Shift",
    ": list",
)


class Function(NamedTuple):
    """A function that `code` may call."""

    name: str
    parameters: Mapping[str, _Kind]
    help: str
    defaults: Mapping[str, Any] = {}

    def __str__(self) -> str:
        parts = [
            f"{name}{kind.hint}" + (f"={self.defaults[name]!r}" if name in self.defaults else "")
            for name, kind in self.parameters.items()
        ]
        return f"{self.name}({', '.join(parts)})"


class Call(NamedTuple):
    """A checked call."""

    line: int
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        defaults = FUNCTIONS[self.name].defaults
        arguments = [_quoted(repr(value)) for name, value in self.arguments.items() if value != defaults.get(name)]
        return f"line {self.line}, {self.name}({', '.join(arguments)})"


_CLICKING = {"bid": _BID, "button": _BUTTON, "modifiers": _MODIFIERS}
_PLAIN_CLICK = {"button": "left", "modifiers": []}
_FUNCTIONS = (
    Function("goto", {"url": TEXT}, "an address, or an absolute path of a file in the sandbox"),
    Function("go_back", {}, "one page back in the tab's history"),
    Function("go_forward", {}, "one page forward"),
    Function("noop", {"wait_ms": _WAIT}, f"only wait and look; at most {_MAX_WAIT_MS} ms", {"wait_ms": 1000}),
    Function("scroll", {"delta_x": _PIXELS, "delta_y": _PIXELS}, "by pixels, at the mouse; positive is right and down"),
    Function("fill", {"bid": _BID, "value": TEXT}, "replace the text of a field"),
    Function("select_option", {"bid": _BID, "options": TEXTS}, "choose by value or label"),
    Function("click", _CLICKING, "button left, middle, right; modifiers such as ['Shift']", _PLAIN_CLICK),
    Function("dblclick", _CLICKING, "the same, twice", _PLAIN_CLICK),
    Function("hover", {"bid": _BID}, "put the mouse on it"),
    Function("press", {"bid": _BID, "key_comb": TEXT}, "keys such as 'Enter', 'Control+a', 'ArrowDown'"),
    Function("focus", {"bid": _BID}, "give it the keyboard"),
    Function("clear", {"bid": _BID}, "empty a field"),
    Function("drag_and_drop", {"from_bid": _BID, "to_bid": _BID}, "drag one onto another"),
    Function(
        "upload_file",
        {"bid": _BID, "file": TEXTS},
        "a file of the sandbox, for a file field or the button that opens one",
    ),
    Function("new_tab", {}, "open an empty tab"),
    Function("tab_focus", {"index": INDEX}, "show the tab of that number"),
    Function("tab_close", {}, "close the shown tab"),
    Function(
        "on_dialog",
        {"accept": FLAG, "text": TEXT},
        "answer the next confirm or prompt so (they are dismissed otherwise); put it before what opens the dialog",
        {"text": ""},
    ),
)
FUNCTIONS = {function.name: function for function in _FUNCTIONS}


def parse_calls(code: str) -> list[Call]:
    """Parse code into its calls, in order.

    Raises:
        ToolArgumentsError: it holds anything else; names the line and the allowed forms. Nothing was executed.
    """
    if len(code) > _MAX_CODE_CHARS:
        raise ToolArgumentsError(
            f"code has {len(code)} characters, at most {_MAX_CODE_CHARS} are taken. Put large text into a file."
        )
    # models like to wrap code in a Markdown fence; the line numbers stay
    plain = "\n".join("" if line.startswith("```") else line for line in dedent(code).split("\n"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' in a string is harmless here
            statements = ast.parse(plain).body
    except SyntaxError as error:
        raise _refused(error.lineno or 1, f"is not written as Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL; nested too deep for the parser
        raise _refused(1, f"cannot be parsed: {error}") from None
    calls = [_call(statement) for statement in statements]
    if not 0 < len(calls) <= MAX_CALLS:
        raise ToolArgumentsError(f"code holds {len(calls)} calls; give 1 to {MAX_CALLS}; noop() only looks.")
    return calls


def _call(statement: ast.stmt) -> Call:
    line = statement.lineno
    if not (isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call)):
        raise _refused(line, "is not a call")
    if not (isinstance(call.func, ast.Name) and call.func.id in FUNCTIONS):
        raise _refused(line, f"calls {_source(call.func)}")
    function = FUNCTIONS[call.func.id]
    names = {*function.parameters}
    arguments = dict(zip(function.parameters, call.args, strict=False))
    arguments |= {str(keyword.arg): keyword.value for keyword in call.keywords}
    once = len(arguments) == len(call.args) + len(call.keywords)
    if not (once and names - {*function.defaults} <= arguments.keys() <= names):
        raise ToolArgumentsError(f"Line {line} of code does not fit {function}. Nothing was done.")
    checked = {
        name: _checked(line, function, name, arguments[name]) if name in arguments else function.defaults[name]
        for name in function.parameters
    }
    return Call(line, function.name, checked)


def _checked(line: int, function: Function, name: str, node: ast.expr) -> Any:
    value, kind = _literal(line, node), function.parameters[name]
    try:
        return kind.adapter.validate_python(value, strict=True)
    except ValidationError:
        raise ToolArgumentsError(
            f"Line {line} of code: {name} of {function} must be {kind.wanted}, not {_quoted(repr(value))}. "
            "Nothing was done."
        ) from None


def _literal(line: int, node: ast.expr) -> Any:
    """Read a number, a text, True, False, or a list of those; evaluates nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        if isinstance(node.value, int) and node.value.bit_length() > _MAX_INT_BITS:
            raise _refused(line, f"has an integer of more than {_MAX_INT_BITS} bits")
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(line, item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = _literal(line, node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    raise _refused(line, f"has the argument {_source(node)}, which is not a literal")


def _refused(line: int, problem: str) -> ToolArgumentsError:
    return ToolArgumentsError(
        f"Line {line} of code {problem}. Nothing was done. Allowed are calls with literal arguments, one a line, of: "
        f"{', '.join(FUNCTIONS)}."
    )


def _source(node: ast.AST) -> str:
    try:
        return _quoted(ast.unparse(node))
    except RecursionError:
        return "something nested too deep"
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number too long"


def _quoted(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}... ({len(text)} characters)"
