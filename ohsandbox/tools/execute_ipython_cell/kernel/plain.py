"""The shell for sandboxes without IPython: the standard library alone. Runs in the sandbox."""
# ruff: noqa: S307, PLC0415 - cells evaluate anything, and what few cells need loads late

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import io
import linecache
import sys
import tokenize
import types
from typing import Any

from ohsandbox.tools.execute_ipython_cell.kernel.commands import CALL, run_magic, without_magics
from ohsandbox.tools.execute_ipython_cell.kernel.showing import (
    AWAITED_IN,
    CELL,
    bundle_of,
    display,
    gallery,
    print_error,
)

AWAITS = 0x80
"""CO_COROUTINE, of code with `await` at its top level."""


class PlainShell:
    """Runs cells in a `__main__` of their own."""

    def __init__(self) -> None:
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self._names = module.__dict__
        setattr(builtins, "display", display)  # noqa: B010 - no attribute of it that a type checker knows
        setattr(builtins, CALL, lambda kind, text: run_magic(kind, text, self._names))
        self._flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._count = 0

    def run(self, code: str) -> BaseException | None:
        """Run a cell; the exception that ended it, which is printed already."""
        self._count += 1
        try:
            body, last = self._compile(code, f"{CELL}{self._count}>")
            self._execute(body)
            value = self._execute(last)
            if value is not None:
                setattr(builtins, "_", value)  # noqa: B010 - as `sys.displayhook` does
                gallery.show(bundle_of(value), f"Out[{self._count}]: ")
        except BaseException as error:  # noqa: BLE001 - a cell may raise anything, and the kernel stays
            print_error(error)
            return error
        return None

    def _compile(self, code: str, name: str) -> tuple[types.CodeType, types.CodeType]:
        """The cell without its last expression, and that expression."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            tree = self._parse(code, name)
        except SyntaxError:
            plain = without_magics(code)
            if plain == code:
                raise
            tree = self._parse(plain, name)
        value: ast.expr = ast.Constant(None, lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not _is_silenced(code):
            value = last.value
            tree.body.pop()
        body = compile(tree, name, "exec", self._flags, True)  # noqa: FBT003 - takes no keyword in 3.8
        for feature in __future__.all_feature_names:  # `from __future__` holds for later cells too
            self._flags |= body.co_flags & getattr(__future__, feature).compiler_flag
        return body, compile(ast.Expression(value), name, "eval", self._flags, True)  # noqa: FBT003

    def _parse(self, code: str, name: str) -> ast.Module:
        tree: ast.Module = compile(code, name, "exec", self._flags | ast.PyCF_ONLY_AST, True)  # noqa: FBT003
        return tree

    def _execute(self, code: types.CodeType) -> Any:
        value = eval(code, self._names)
        return run_coroutine(value) if code.co_flags & AWAITS else value


def _is_silenced(code: str) -> bool:
    """Whether a semicolon ends the cell, which hides its value as in IPython."""
    if ";" not in code:
        return False
    trailing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        tokens = tokenize.generate_tokens(io.StringIO(code).readline)
        return [token.string for token in tokens if token.type not in trailing][-1:] == [";"]
    return False


_loops: list[Any] = []


def run_coroutine(coroutine: Any) -> Any:
    """Run it to its end on the kernel's own event loop; an interrupted one does not go on in a later cell."""
    import asyncio

    if not _loops or _loops[-1].is_closed():
        _loops[:] = [asyncio.new_event_loop()]
    loop = _loops[-1]
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException as interrupt:
        if not task.done():
            setattr(interrupt, AWAITED_IN, _frames(coroutine))  # its own traceback has the loop's frames only
            task.cancel()
            with contextlib.suppress(BaseException):
                loop.run_until_complete(task)
        raise


def _frames(coroutine: Any) -> list[tuple[types.FrameType, int]]:
    """Where a suspended coroutine stands, from the outside in."""
    found = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.append((frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return found
