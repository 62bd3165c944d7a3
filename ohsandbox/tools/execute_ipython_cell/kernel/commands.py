"""What cells can do that is not Python: `!command`, `%pip`, `%cd`. Runs in the sandbox."""
# ruff: noqa: T201, BLE001, S307, PTH109, PTH111, PTH112 - it prints, cells evaluate anything, and paths are text here

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tokenize
from typing import Any

from ohsandbox.tools.execute_ipython_cell.kernel.showing import MagicError

HERE = "%pip, %cd, !command and x = !command"
CALL = "__ohsandbox_magic__"
"""The builtin that magics become a call of."""

_MAGIC = re.compile(r"(\s*)(?:([A-Za-z_][\w.]*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=\s*)?([!%])(.*)")
_FILLED_IN = re.compile(r"(?<!\$)\{([^{}]+)\}|\$([A-Za-z_]\w*)")


def run_command(words: list[str], env: dict[str, str] | None = None) -> int:
    """Run a program to its end; a failure is told. An interrupt ends it with all that it started."""
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
    code = code if code >= 0 else 128 - code
    if code:
        print(f"[Exit code {code}]")
    return code


def shell_words(command: str) -> list[str]:
    """Argv that runs a line of shell."""
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def output_lines(command: str) -> list[str]:
    """A command's standard output."""
    done = subprocess.run(shell_words(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode(errors="replace").splitlines()


def pip(line: str) -> None:
    """`%pip`: pip of the Python that runs the cells."""
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
    """`%cd`: the kernel's working directory; home without an argument."""
    words = shlex.split(line)
    try:
        os.chdir(os.path.expanduser(words[0] if words else "~"))
    except OSError as error:
        raise MagicError(f"%cd: {error}") from None
    print(os.getcwd())


def matplotlib(_: str) -> None:
    """`%matplotlib`: figures are shown anyway."""


LINE_MAGICS = {"pip": pip, "cd": change_directory, "matplotlib": matplotlib}


def without_magics(code: str) -> str:
    """The cell as plain Python; the same text where it has no magics.

    Raises:
        MagicError: it has one that only IPython knows; nothing of the cell runs.
    """
    if code.lstrip().startswith("%%"):
        raise _missing(code.split(None, 1)[0])
    lines = code.split("\n")
    for index, line in enumerate(lines):
        found = _MAGIC.fullmatch(line)
        if found and _begins_statement("\n".join([*lines[:index], found[1] + "pass"])):
            lines[index] = _as_call(*found.groups())
    return "\n".join(lines)


def _as_call(indent: str, target: str | None, sign: str, rest: str) -> str:
    name, _, argument = rest.strip().partition(" ")
    if sign == "!":
        kind, text = ("lines" if target else "run"), rest.strip()
    elif target or name not in LINE_MAGICS:
        raise _missing(sign + name)
    else:
        kind, text = name, argument.strip()
    return f"{indent}{f'{target} = ' if target else ''}{CALL}({kind!r}, {text!r})"


def _missing(name: str) -> MagicError:
    return MagicError(
        f"{name} needs IPython, which is not installed here; nothing of the cell ran. Without it there are {HERE}. "
        "Write it in Python, or install IPython with `%pip install ipython` and run a cell with reset."
    )


def _begins_statement(source: str) -> bool:
    """Whether the last line of source stands outside of strings, brackets and continued lines."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return False
    between = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    last = max((at for at, token in enumerate(tokens) if token.type == tokenize.NAME), default=0)
    return tokens[last].string == "pass" and (last == 0 or tokens[last - 1].type in between)


def run_magic(kind: str, text: str, names: dict[str, Any]) -> list[str] | None:
    """What a magic of the plain kernel does; `names` are the cell's."""
    text = _fill_in(text, names)
    if kind == "lines":
        return output_lines(text)
    if kind == "run":
        run_command(shell_words(text))
    else:
        LINE_MAGICS[kind](text)
    return None


def _fill_in(text: str, names: dict[str, Any]) -> str:
    """`{expression}` and `$name`, where they mean something in Python; the shell gets all else as it is."""

    def value(found: re.Match[str]) -> str:
        try:
            return str(eval(found[1], names) if found[1] else names[found[2]])
        except Exception:
            return found[0]

    return _FILLED_IN.sub(value, text)
