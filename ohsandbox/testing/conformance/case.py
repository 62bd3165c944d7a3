r"""`case`: how a behaviour that every `Runtime` owes becomes a function that any backend can be held to.

    @case(needs={"root"})
    def run_takes_a_user_by_uid(runtime: Runtime) -> None:
        assert runtime.run(["id", "-u"], user=65534).stdout == b"65534\n"

    @shell_case()
    def output_keeps_its_trailing_newlines(shell: Session) -> None:
        assert shell("printf 'a\n\n'").output == "a\n\n"

The modules of this package are themes: there each public function is a case, see `add_theme`.
Each case leaves the runtime as it found it. `Case.check` runs it and then asks what must hold after anything: that
the same session's next `echo ok` gives exactly that, and that `run` works.
"""

# ruff: noqa: S101 - what cases assert is their purpose

from __future__ import annotations

import contextlib
import inspect
import secrets
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ohsandbox.errors import UnknownSessionError, UnknownUserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import CommandObservation

F = TypeVar("F", bound="Callable[..., None]")

CASE_TIMEOUT_S = 60.0
"""The limit of a command that sets none: a case that hangs fails, and the next one runs."""


SHARED = "after cases without a shell"


class Session:
    """One case's own shell session: call it to run a command."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime = runtime
        self.name = name

    def __call__(self, command: str, *, timeout_s: float | None = CASE_TIMEOUT_S, **options: Any) -> CommandObservation:
        """Run command here; options as of `Runtime.execute`."""
        return self.runtime.execute(command, timeout_s=timeout_s, session=self.name, **options)

    def type(self, text: str, **options: Any) -> CommandObservation:
        """Type text, or a key, to what runs."""
        return self(text, is_input=True, **options)

    def poll(self, **options: Any) -> CommandObservation:
        """Wait on for what runs."""
        return self("", **options)


@dataclass(frozen=True)
class Case:
    """A behaviour, named by the sentence that says it."""

    name: str
    function: Callable[[Session], None]
    needs: frozenset[str]
    session: str
    """The case's own, or one that the cases without a shell share to save its start."""

    def missing(self, runtime: Runtime) -> str | None:
        """Why the case cannot be asked of this runtime, or None."""
        absent = sorted(need for need in self.needs if not _offers(runtime, need))
        return f"this sandbox lacks {', '.join(absent)}" if absent else None

    def check(self, runtime: Runtime) -> None:
        """Run the case, and then what must hold after every one.

        Raises:
            AssertionError: the runtime behaves otherwise.
        """
        session = Session(runtime, self.session)
        try:
            self.function(session)
            _still_serves(session)
        finally:
            if self.session != SHARED:
                with contextlib.suppress(UnknownSessionError):
                    runtime.close_session(self.session)


CASES: list[Case] = []
"""Every case, in the order of its module."""


def case(*, needs: Iterable[str] = ()) -> Callable[[Callable[[Runtime], None]], Callable[[Runtime], None]]:
    """Register a function of a runtime.

    needs: 'root' (the default user is root), 'users' (others can be become), 'isolated' (no process but the
    sandbox's own lives there), 'waits' (its kernel tells what a process waits for); any other word is a program on
    PATH.
    """

    def register(function: Callable[[Runtime], None]) -> Callable[[Runtime], None]:
        _add(Case(function.__name__, partial(_with_runtime, function), frozenset(needs), SHARED))
        return function

    return register


def shell_case(*, needs: Iterable[str] = ()) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
    """Register a function of a shell session; needs as of `case`."""

    def register(function: Callable[[Session], None]) -> Callable[[Session], None]:
        _add(Case(function.__name__, function, frozenset(needs), function.__name__))
        return function

    return register


_NEEDS: dict[Callable[..., None], frozenset[str]] = {}


def needs(*words: str) -> Callable[[F], F]:
    """Say what a case of a theme asks of the sandbox, in the words of `case`."""

    def note(function: F) -> F:
        _NEEDS[function] = frozenset(words)
        return function

    return note


def add_theme(theme: ModuleType) -> None:
    """Register the public functions that a module defines, in its order: each of a `runtime`, or of a `shell`."""
    for name, function in vars(theme).items():
        if name.startswith("_") or not isinstance(function, FunctionType) or function.__module__ != theme.__name__:
            continue
        asked = _NEEDS.get(function, frozenset())
        if [*inspect.signature(function).parameters] == ["shell"]:
            _add(Case(name, function, asked, name))
        else:
            _add(Case(name, partial(_with_runtime, function), asked, SHARED))


def _with_runtime(function: Callable[[Runtime], None], session: Session) -> None:
    function(session.runtime)


def _add(new: Case) -> None:
    if any(known.name == new.name for known in CASES):
        raise ValueError(f"There is a case {new.name!r} already; say what differs in the other's name")
    CASES.append(new)


def _still_serves(session: Session) -> None:
    told = session("echo ok")
    assert (told.output, told.exit_code) == ("ok\n", 0), f"the next command: {told!r}"
    assert session.runtime.run(["true"], timeout_s=CASE_TIMEOUT_S).exit_code == 0


_offered: WeakKeyDictionary[Runtime, dict[str, bool]] = WeakKeyDictionary()
"""What was found out about each runtime, once."""


def _offers(runtime: Runtime, need: str) -> bool:
    known = _offered.setdefault(runtime, {})
    if need not in known:
        known[need] = _PROBES[need](runtime) if need in _PROBES else _has_program(runtime, need)
    return known[need]


def _has_program(runtime: Runtime, name: str) -> bool:
    return runtime.run(["/bin/sh", "-c", 'command -v "$1"', "sh", name]).exit_code == 0


def _has_users(runtime: Runtime) -> bool:
    try:
        return runtime.run(["true"], user=65534, workdir="/").exit_code == 0
    except UnknownUserError:
        return False


_PROBES: dict[str, Callable[[Runtime], bool]] = {
    "root": lambda runtime: runtime.run(["id", "-u"]).stdout == b"0\n",
    "users": _has_users,
    "isolated": lambda runtime: runtime.private_processes,
    "waits": lambda runtime: runtime.run(["/bin/sh", "-c", "[ -e /proc/self/wchan ]"]).exit_code == 0,
}


def refuses(call: Callable[[], object], *kinds: type[BaseException]) -> BaseException:
    """The error that call raises, which must be of all kinds at once: one of ours and the builtin a caller expects."""
    error: BaseException | None = None
    try:
        returned = call()
    except kinds[0] as raised:
        error = raised
    else:
        raise AssertionError(f"not refused, but {str(returned)[:200]}")
    assert all(isinstance(error, kind) for kind in kinds), type(error).__mro__
    return error


PASSING = 10
"""Threads and descriptors that see others off come and go; one kept for each of a hundred calls is a leak."""


class Held(NamedTuple):
    """What this process holds of the host."""

    threads: int
    descriptors: int


def held_by_host() -> Held:
    """Counted now."""
    return Held(threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir()))


def number_nobody_sleeps() -> str:
    """Seconds for a `sleep` that it can be told from every other one by."""
    return str(100_000 + secrets.randbelow(800_000))


def is_running(runtime: Runtime, words: str, *, within_s: float = 1.0) -> bool:
    """Whether a process with these words as its command line still runs there within_s from now."""
    look = 'for f in /proc/[0-9]*/cmdline; do tr "\\000" " " <"$f"; echo; done 2>/dev/null | grep -cx "$1 "'
    deadline = time.monotonic() + within_s
    while runtime.run(["/bin/sh", "-c", look, "sh", words]).stdout.strip() != b"0":
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def set_after(seconds: float) -> threading.Event:
    """An event that another thread sets after so many seconds."""
    event = threading.Event()
    threading.Timer(seconds, event.set).start()
    return event


def already_set() -> threading.Event:
    """An event that is set."""
    event = threading.Event()
    event.set()
    return event
