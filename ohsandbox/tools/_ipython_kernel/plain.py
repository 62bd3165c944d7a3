"""The shell for sandboxes without IPython: the standard library alone, with `!command`, `%pip` and `%cd`."""
# ruff: noqa: T201, BLE001, PLC0415, S307, PTH109, PTH111, PTH112 - cells print, raise and evaluate anything; what few
# cells need loads late; paths are text here

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import importlib
import importlib.util
import io
import linecache
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tokenize
import types
from collections.abc import Callable  # noqa: TC003 - one program in the sandbox
from typing import Any

from ohsandbox.tools._ipython_kernel.display import (
    AWAITED_IN,
    CELL,
    MagicError,
    bundle_of,
    display,
    gallery,
    print_error,
)

AWAITS = 0x80
"""The flag CO_COROUTINE, which code with `await` at its top level has."""
CALL = "__ohsandbox_magic__"
"""The builtin that runs magics."""
SIGNALLED = 128

_MAGIC = re.compile(r"(\s*)(?:([A-Za-z_][\w.]*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=\s*)?([!%])(.*)")
_FILLED_IN = re.compile(r"(?<!\$)\{([^{}]+)\}|\$([A-Za-z_]\w*)")


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
        """Run a cell; return the exception that ended it, which is printed already."""
        self._count += 1
        try:
            body, last = self._compile(code, f"{CELL}{self._count}>")
            self._execute(body)
            value = self._execute(last)
            if value is not None:
                setattr(builtins, "_", value)  # noqa: B010 - as `sys.displayhook` does
                gallery.show(bundle_of(value), f"Out[{self._count}]: ")
        except BaseException as error:
            print_error(error)
            return error
        return None

    def _compile(self, code: str, name: str) -> tuple[types.CodeType, types.CodeType]:
        """Compile the cell without its last expression, and that expression."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        flags = self._flags | ast.PyCF_ONLY_AST
        try:
            tree: ast.Module = compile(code, name, "exec", flags, True)  # noqa: FBT003 - takes no keyword in 3.8
        except SyntaxError:
            plain = without_magics(code)
            if plain == code:
                raise
            tree = compile(plain, name, "exec", flags, True)  # noqa: FBT003
        value: ast.expr = ast.Constant(None, lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not _is_silenced(code):
            value = last.value
            tree.body.pop()
        body = compile(tree, name, "exec", self._flags, True)  # noqa: FBT003
        for feature in __future__.all_feature_names:  # `from __future__` holds for later cells too
            self._flags |= body.co_flags & getattr(__future__, feature).compiler_flag
        return body, compile(ast.Expression(value), name, "eval", self._flags, True)  # noqa: FBT003

    def _execute(self, code: types.CodeType) -> Any:
        value = eval(code, self._names)
        return run_coroutine(value) if code.co_flags & AWAITS else value


def _is_silenced(code: str) -> bool:
    """Whether a semicolon ends the cell, which hides its value as in IPython."""
    if ";" not in code:
        return False
    trailing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    return [token.string for token in _tokens(code) if token.type not in trailing][-1:] == [";"]


def _tokens(code: str) -> list[tokenize.TokenInfo]:
    """Return the tokens; none if the code is incomplete."""
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        return list(tokenize.generate_tokens(io.StringIO(code).readline))
    return []


_loops: list[Any] = []


def run_coroutine(coroutine: Any) -> Any:
    """Run the coroutine to its end on the kernel's own event loop; an interrupted one does not continue later."""
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
            frames, inner = [], coroutine  # from the outside in: the interrupt's own traceback has the loop's only
            while (frame := getattr(inner, "cr_frame", None)) is not None:
                frames.append((frame, frame.f_lineno))
                inner = inner.cr_await
            setattr(interrupt, AWAITED_IN, frames)
            task.cancel()
            with contextlib.suppress(BaseException):
                loop.run_until_complete(task)
        raise


# --- magics -----------------------------------------------------------------------------------


def run_command(command: str | list[str], env: dict[str, str] | None = None) -> int:
    """Run a shell command or a program to its end and print a failure. An interrupt ends it with its children."""
    words = shell_words(command) if isinstance(command, str) else command
    program = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, env=env)
    try:
        code = program.wait()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(1)
        raise
    code = code if code >= 0 else SIGNALLED - code
    if code:
        print(f"[Exit code {code}]")
    return code


def shell_words(command: str) -> list[str]:
    """Return the argv that runs a shell command."""
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def pip(line: str) -> None:
    """`%pip`: run pip of the Python that runs the cells."""
    if importlib.util.find_spec("pip") is None:
        raise MagicError(
            f"%pip: {sys.executable} has no pip. Install it first: `!apt-get update && apt-get install -y python3-pip` "
            "on Debian."
        )
    env = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **os.environ}
    run_command([sys.executable, "-m", "pip", *shlex.split(line)], env)
    importlib.invalidate_caches()
    user_site = site.getusersitepackages()
    if site.ENABLE_USER_SITE and user_site not in sys.path and os.path.isdir(user_site):
        site.addsitedir(user_site)


def change_directory(line: str) -> None:
    """`%cd`: change the kernel's working directory; to the home directory without an argument."""
    words = shlex.split(line)
    try:
        os.chdir(os.path.expanduser(words[0] if words else "~"))
    except OSError as error:
        raise MagicError(f"%cd: {error}") from None
    print(os.getcwd())


LINE_MAGICS: dict[str, Callable[[str], None]] = {"pip": pip, "cd": change_directory, "matplotlib": lambda _: None}
"""The functions of the line magics. `%matplotlib` does nothing: figures are shown without it."""


def without_magics(code: str) -> str:
    """Return the cell as plain Python; the same text if it has no magics.

    Raises:
        MagicError: the cell has a magic that only IPython knows; nothing of the cell runs.
    """
    if code.lstrip().startswith("%%"):
        raise _missing(code.split(None, 1)[0])
    lines = code.split("\n")
    for index, line in enumerate(lines):
        match = _MAGIC.fullmatch(line)
        if match and _begins_statement("\n".join([*lines[:index], match[1] + "pass"])):
            lines[index] = _as_call(*match.groups())
    return "\n".join(lines)


def _as_call(indent: str, target: str | None, sign: str, line_rest: str) -> str:
    name, _, argument = line_rest.strip().partition(" ")
    if sign == "!":
        kind, text = ("lines" if target else "run"), line_rest.strip()
    elif target or name not in LINE_MAGICS:
        raise _missing(sign + name)
    else:
        kind, text = name, argument.strip()
    return f"{indent}{f'{target} = ' if target else ''}{CALL}({kind!r}, {text!r})"


def _missing(name: str) -> MagicError:
    return MagicError(
        f"{name} needs IPython, which is not installed here; nothing of the cell ran. Without it there are %pip, %cd, "
        "!command and x = !command. Write it in Python, or install IPython with `%pip install ipython` and run a cell "
        "with reset."
    )


def _begins_statement(source: str) -> bool:
    """Whether the last line of source, `pass`, is outside of strings, brackets and continued lines."""
    tokens = _tokens(source)
    between = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    last = max((index for index, token in enumerate(tokens) if token.type == tokenize.NAME), default=0)
    return bool(tokens) and tokens[last].string == "pass" and (last == 0 or tokens[last - 1].type in between)


def run_magic(kind: str, text: str, names: dict[str, Any]) -> list[str] | None:
    """Run a magic; `{expression}` and `$name` are replaced if the cell's names define them."""

    def value(match: re.Match[str]) -> str:
        try:
            return str(eval(match[1], names) if match[1] else names[match[2]])
        except Exception:
            return match[0]

    text = _FILLED_IN.sub(value, text)
    if kind == "lines":
        words = shell_words(text)
        result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        return result.stdout.decode(errors="replace").splitlines()
    if kind == "run":
        run_command(text)
    else:
        LINE_MAGICS[kind](text)
    return None
