"""`Screen`: the terminal during a session. Its thread draws and reads keys; the session's thread asks it for lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Self, TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.application.run_in_terminal import in_terminal
from prompt_toolkit.completion import ThreadedCompleter
from prompt_toolkit.filters import Condition, has_completions, is_searching, to_filter
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Layout
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.widgets import SearchToolbar, TextArea

from ohsandbox.cli.interactive.input import InputCompleter, Pastes, accept_newline, completes_itself
from ohsandbox.cli.interactive.region import STYLE, TICK_S, Region, SentLine, input_height
from ohsandbox.cli.interactive.renderer import AboveStream, FrameOutput, InlineRenderer, reported_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prompt_toolkit.history import History

_FRAME_S = 1 / 25
"""Shortest time, in seconds, between two frames; text printed in between is sent in one write."""
_ESCAPE_S = 0.05
"""How long, in seconds, the rest of a key's sequence may take after Esc; as long again for Alt and a key."""
_HINT_S = 2.0
"""A second Ctrl-C at an empty prompt within this many seconds leaves the session."""
_LEAVES = "Ctrl-C again, or Ctrl-D, leaves."


class Screen:
    """The input line and the rows around it, at the end of the terminal's scrollback.

    Everything printed to stdout and stderr meanwhile appears above it. Only text that is safe to print may be
    given: nothing is cleaned here. All methods are for the thread that made it, which gets Ctrl-C as KeyboardInterrupt
    unless it waits in `read`; what `region` shows may be set by any.
    """

    def __init__(self, *, history: History | None = None) -> None:
        self.completer = InputCompleter()
        """The completer; its commands and directories may be set later."""
        self.region = Region(lambda: [] if self._reading else [*self._lines])
        """The rows around the input; the bottom line may be set."""
        self.change_mode: Callable[[], str] = lambda: ""
        """Switches the confirmation mode and returns its description. It is called in the screen's thread."""
        self.read_paste: Callable[[str], str | None] = lambda _: None
        """Returns the replacement for pasted text; None folds the text if it is long."""
        self.unfold: Callable[[], bool] = lambda: False
        """Prints the newest folded block whole; returns False if there is none. It is called in a thread of its own."""
        self._lines: deque[SentLine] = deque()
        self._changed = threading.Condition()
        self._reading = self._leaving = self._interrupting = self._is_over = self._is_suspended = False
        self._error: BaseException | None = None
        self._painted = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = threading.get_ident()
        self._out: TextIO = sys.stdout
        self._pastes = Pastes()
        self._search = SearchToolbar(
            backward_search_prompt="search the history: ", forward_search_prompt="search on: ", ignore_case=True
        )
        self._input = TextArea(
            multiline=True, wrap_lines=True, history=history, prompt="> ", search_field=self._search,
            completer=ThreadedCompleter(self.completer), dont_extend_height=True, preview_search=True,
            complete_while_typing=Condition(lambda: completes_itself(self._input.document)),
        )  # fmt: skip
        self._input.window.height = input_height
        self._input.buffer.on_text_changed += lambda _: setattr(self.region, "shows_keys", False)
        self._app = self._application()

    # --- for the session's thread -------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Draw for the first time; from now on stdout and stderr are printed above the region."""
        self._stack = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._draw_until_closed, name="ohsandbox-screen", daemon=True)
        self._thread.start()
        self._stack.callback(self._close)
        self._painted.wait()
        for stream in ("stdout", "stderr"):
            self._stack.callback(setattr, sys, stream, getattr(sys, stream))
            setattr(sys, stream, AboveStream(self.print_above, lambda: not self._is_suspended, getattr(sys, stream)))
        if threading.current_thread() is threading.main_thread():
            old_handler = signal.signal(signal.SIGWINCH, lambda *_: self._app.invalidate())
            self._stack.callback(signal.signal, signal.SIGWINCH, old_handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> SentLine:
        """Return the next line that the person sends.

        Raises:
            EOFError: Ctrl-D, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C twice, or a signal from outside.
        """
        while True:
            try:
                with self._changed:
                    self._reading = True
                    self._app.invalidate()
                    self._changed.wait_for(lambda: self._lines or self._is_over or self._leaving)
                    self._reading = self._interrupting = False
                    if self._lines and not self._leaving:
                        return self._lines.popleft()
                    error = KeyboardInterrupt() if self._leaving else self._error or EOFError()
                    self._leaving = False
                    raise error
            except KeyboardInterrupt:
                self._reading = False
                if not self._interrupting:
                    raise
                self._interrupting = False  # it was for a run that had just ended

    def send(self, text: str) -> None:
        """Treat text as a line that the person sends; callable from any thread."""
        with self._changed:
            self._lines.append(SentLine(text, text))
            self._changed.notify_all()

    def poll(self) -> SentLine | None:
        """Return a line that was sent meanwhile; None if there is none."""
        with self._changed:
            return self._lines.popleft() if self._lines else None

    @property
    def has_draft(self) -> bool:
        """True if the input line is not empty, or a sent line has not been read."""
        return bool(self._input.text or self._lines)

    @property
    def is_reading(self) -> bool:
        """True if the session waits for the person's next line."""
        return self._reading

    @property
    def is_suspended(self) -> bool:
        """True if a question has the terminal."""
        return self._is_suspended

    def show_status(self, text: str, *, after_s: float = 0.0) -> None:
        """Show an activity and its duration, now or after after_s seconds; an empty text clears it."""
        self.region.show_status(text, after_s=after_s)
        self._app.invalidate()

    def show_live(self, text: str) -> None:
        """Show these coloured rows above the status."""
        self.region.live = text
        self._app.invalidate()

    def print_above(self, text: str) -> None:
        """Print coloured text above the input."""
        if self._is_suspended or self._is_over:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._out.write(text)
                self._out.flush()
        else:
            self.renderer.add(text)
            self._app.invalidate()

    def ring(self) -> None:
        """Ring the terminal's bell."""
        with contextlib.suppress(OSError):  # the terminal has gone
            self._out.write("\a")
            self._out.flush()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Give the terminal back for a question: in the block nothing is drawn and no key is read here.

        The text in the input line is kept and shown again afterwards.
        """
        if self._is_suspended or self._is_over or self._app.loop is None or self._app.context is None:
            yield
            return
        entered, over = threading.Event(), threading.Event()
        leave = asyncio.Event()
        loop = self._app.loop

        async def hold() -> None:
            try:
                async with in_terminal():
                    self._input_parser_reset()
                    entered.set()
                    await leave.wait()
            finally:
                entered.set()
                over.set()

        def begin() -> None:
            self._app.create_background_task(hold())

        with contextlib.suppress(RuntimeError):  # it has ended meanwhile
            loop.call_soon_threadsafe(begin, context=self._app.context.copy())
        while not entered.wait(TICK_S) and not self._is_over:
            pass
        self._is_suspended = True
        try:
            yield
        finally:
            self._out.write("\n")
            self._out.flush()
            with contextlib.suppress(OSError, termios.error):  # what is left of an answer is not a message
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._is_suspended = False
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(leave.set)
                while not over.wait(TICK_S) and not self._is_over:
                    pass

    # --- in the screen's thread -----------------------------------------------------------------------

    def _draw_until_closed(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.set_exception_handler(self._fail)
            loop.run_until_complete(self._app.run_async(pre_run=self._begin, set_exception_handler=False))
        except BaseException as error:  # noqa: BLE001 - it is raised where the person's next line is awaited
            self._error = error
        finally:
            loop.close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            self._painted.set()

    def _begin(self) -> None:
        self._app.create_background_task(self._turn())

    async def _turn(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.region.status or self.region.hint:
                self._app.invalidate()

    def _fail(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message"))
        if self._app.is_running and not self._app.is_done:
            self._app.exit(exception=error)

    def _close(self) -> None:
        def leave() -> None:
            if self._app.is_running and not self._app.is_done:
                self._app.exit(result=None)

        if self._app.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._app.loop.call_soon_threadsafe(leave)
        if self._thread is not None:
            self._thread.join()

    def _application(self) -> Application[None]:
        colours, term = ColorDepth.from_env(), os.environ.get("TERM")
        output = FrameOutput(self._out, reported_size, term=term, default_color_depth=colours)
        app: Application[None] = Application(
            layout=Layout(self.region.rows(self._input, self._search), focused_element=self._input),
            key_bindings=self._keys(), style=STYLE,
            output=output, input=create_input(sys.stdin), erase_when_done=True, min_redraw_interval=_FRAME_S,
            after_render=lambda _: self._painted.set(),
        )  # fmt: skip
        app.ttimeoutlen = app.timeoutlen = _ESCAPE_S
        app.renderer = self.renderer = InlineRenderer(app.renderer.style, output)
        return app

    def _keys(self) -> KeyBindings:
        at_end_of_mark = Condition(lambda: self._mark_before() is not None)
        is_empty = Condition(lambda: not self._input.text)
        has_queued = Condition(lambda: bool(self._lines) and not self._reading)
        keys = KeyBindings()
        for names, act, when in (
            (("enter",), self._enter, True),
            (("escape", "enter"), self._newline, True),
            (("c-j",), self._newline, True),
            (("tab",), self._tab, True),
            (("escape",), self._escape, True),
            (("c-c",), self._ctrl_c, True),
            (("c-d",), self._ctrl_d, is_empty),
            (("c-z",), self._ctrl_z, True),
            (("c-o",), self._ctrl_o, True),
            (("c-x", "c-e"), self._edit, True),
            (("s-tab",), self._shift_tab, True),
            (("?",), self._question_mark, is_empty),
            (("up",), self._take_back, is_empty & has_queued),
            (("backspace",), self._delete_mark, at_end_of_mark),
            ((Keys.BracketedPaste,), self._paste, True),
        ):
            keys.add(*names, filter=~is_searching & to_filter(when))(act)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None:
            buffer.apply_completion(state.current_completion)
        elif not accept_newline(buffer):
            self._send()

    def _newline(self, event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    def _tab(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is None:
            buffer.start_completion(insert_common_part=True)
        elif len(buffer.complete_state.completions) == 1:
            buffer.apply_completion(buffer.complete_state.completions[0])
        else:
            buffer.complete_next()

    def _escape(self, event: KeyPressEvent) -> None:
        if self.region.shows_keys:
            self.region.shows_keys = False
        elif has_completions():
            event.current_buffer.cancel_completion()
        elif self.region.can_stop:
            self._interrupt()

    def _ctrl_c(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if not self._reading:
            self._interrupt()
        elif buffer.text:
            buffer.append_to_history()
            buffer.reset()
        elif self.region.hint == _LEAVES:
            with self._changed:
                self._leaving = True
                self._changed.notify_all()
        else:
            self._show_hint(_LEAVES)

    def _ctrl_d(self, event: KeyPressEvent) -> None:
        if self._reading:
            event.app.exit(exception=EOFError())
        else:
            self._show_hint("Ctrl-D leaves once the agent has stopped: Ctrl-C stops it.")

    def _ctrl_z(self, event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    def _ctrl_o(self, event: KeyPressEvent) -> None:
        async def unfold() -> None:
            if not await asyncio.get_running_loop().run_in_executor(None, self.unfold):
                self._show_hint("Nothing is folded.")

        event.app.create_background_task(unfold())

    def _edit(self, event: KeyPressEvent) -> None:
        """Open the draft, with its pastes, in $VISUAL or $EDITOR; output printed meanwhile appears afterwards."""
        buffer = event.current_buffer
        buffer.text = self._pastes.unfold(buffer.text)
        buffer.cursor_position = len(buffer.text)
        buffer.open_in_editor()

    def _shift_tab(self, event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.complete_previous()
        elif hint := self.change_mode():
            self._show_hint(hint)

    def _question_mark(self, event: KeyPressEvent) -> None:
        self.region.shows_keys = not self.region.shows_keys
        event.app.invalidate()

    def _take_back(self, event: KeyPressEvent) -> None:
        """Turn the last line that has not been read into a draft again."""
        with self._changed:
            line = self._lines.pop() if self._lines else None
        if line is not None:
            event.current_buffer.text = line.shown
            event.current_buffer.cursor_position = len(line.shown)

    def _delete_mark(self, event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor(len(self._mark_before() or ""))

    def _paste(self, event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(self.read_paste(event.data) or self._pastes.fold(event.data))

    def _mark_before(self) -> str | None:
        return self._pastes.ending(self._input.document.text_before_cursor)

    def _send(self) -> None:
        shown = self._input.text
        if not shown.strip():
            return
        self.region.hint = ""
        self._input.buffer.append_to_history()
        self._input.buffer.reset()
        with self._changed:
            self._lines.append(SentLine(self._pastes.unfold(shown), shown))
            self._changed.notify_all()

    def _show_hint(self, text: str) -> None:
        self.region.hint = text
        asyncio.get_running_loop().call_later(_HINT_S, self._forget_hint)
        self._app.invalidate()

    def _forget_hint(self) -> None:
        self.region.hint = ""
        self._app.invalidate()

    def _interrupt(self) -> None:
        """Raise KeyboardInterrupt in the session's thread, whatever it waits for."""
        with self._changed:
            if not self._reading:
                self._interrupting = True
                signal.pthread_kill(self._owner, signal.SIGINT)

    def _input_parser_reset(self) -> None:
        """Reset the key parser, so that it does not wait for the end of a paste that a question consumed."""
        if (parser := getattr(self._app.input, "vt100_parser", None)) is not None:
            parser.reset()
