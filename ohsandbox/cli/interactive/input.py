"""The input line: history that outlives the session, folded pastes, keys, completion."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import History

from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

MAX_HISTORY_ENTRIES = 1000
MAX_ENTRY_CHARS = 4000
"""Longest text in the history; a longer one is stored with its pastes folded, or not at all if it is still too long."""
FOLDED_LINES, FOLDED_CHARS = 5, 600
"""A paste with more lines or characters is shown as its number of lines."""
_MAX_COMPLETIONS = 200
_LAST_WORD = re.compile(r"(?:^|\s)(\S*)$")


class InputHistory(History):
    """The texts of all sessions, newest first, in a file that only its owner can read.

    Each line is a JSON string, since a text may have several lines. Neither a known secret is stored nor a text that
    begins with a blank, as in a shell.
    """

    def __init__(self, path: Path, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._path, self._mask = path, mask

    def load_history_strings(self) -> Iterable[str]:
        """Yield the stored texts; none if the file cannot be read."""
        return reversed(self._stored())

    def store_string(self, string: str) -> None:
        """Append a text. A failure is ignored, as it must not stop a person's work."""
        from ohsandbox.errors import OhsandboxError  # noqa: PLC0415 - nothing of ohsandbox is imported before the first paint
        from ohsandbox.private_files import open_regular, write_all, write_atomically  # noqa: PLC0415 - nothing of ohsandbox is imported before the first paint

        text = self._mask(string)
        if text.startswith(" ") or len(text) > MAX_ENTRY_CHARS:
            return
        with contextlib.suppress(OSError, OhsandboxError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stored = self._stored()
            if len(stored) >= 2 * MAX_HISTORY_ENTRIES:
                write_atomically(self._path, b"".join(map(_line, stored[-MAX_HISTORY_ENTRIES:])), durable=False)
            descriptor = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, name="The history")
            try:
                write_all(descriptor, _line(text))
            finally:
                os.close(descriptor)

    def _stored(self) -> list[str]:
        from ohsandbox.private_files import read_regular  # noqa: PLC0415 - nothing of ohsandbox is imported before the first paint

        try:
            lines = read_regular(self._path).splitlines()
        except OSError:
            return []
        texts = []
        for line in lines:
            with contextlib.suppress(ValueError):
                text = load_json(line)
                if isinstance(text, str):
                    texts.append(text)
        return texts


def _line(text: str) -> bytes:
    return json.dumps(text).encode("ascii", "replace") + b"\n"


class Pastes:
    """Long pastes: `fold` returns the mark that the input shows, `unfold` puts the text back."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, pasted: str) -> str:
        """Return what the input shows for a paste: the text itself, or `[pasted 10,000 lines]`."""
        text = pasted.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + (not text.endswith("\n"))
        if lines <= FOLDED_LINES and len(text) <= FOLDED_CHARS:
            return text
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        mark = f"[pasted {size}]"
        number = 1
        while self._texts.get(mark, text) != text:
            number += 1
            mark = f"[pasted {size}, {number}]"
        self._texts[mark] = text
        return mark

    def unfold(self, shown: str) -> str:
        """Return the text with each mark replaced by its paste, once: a mark inside a paste is left as it is."""
        if not self._texts:
            return shown
        marks = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        return marks.sub(lambda mark: self._texts[mark[0]], shown)

    def ending(self, before_cursor: str) -> str | None:
        """Return the mark at the end of the text before the cursor, which one key press deletes."""
        return next((mark for mark in self._texts if before_cursor.endswith(mark)), None)


class CommandHelp(NamedTuple):
    """A slash command that can be completed."""

    name: str
    """The name with its slash."""
    text: str


class PathCompletion(NamedTuple):
    """A file or directory that can be completed."""

    name: str
    is_directory: bool


class InputCompleter(Completer):
    """Completes commands after a `/` at the beginning, paths after an `@`, and each word of a `!` command as a path."""

    def __init__(
        self, commands: Sequence[CommandHelp] = (), list_dir: Callable[[str], list[PathCompletion]] | None = None
    ) -> None:
        self.commands = commands
        self.list_dir = list_dir
        """Lists a directory in the sandbox; a relative path is below the agent's working directory."""
        self.arguments: Callable[[str], list[str]] = lambda _: []
        """Returns the candidates for the last word of a line that begins with a command and a blank."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions of the word before the cursor."""
        typed = document.text_before_cursor
        if typed.startswith("/") and not any(character.isspace() for character in typed):
            return [
                Completion(command.name, -len(typed), display_meta=command.text)
                for command in self.commands
                if command.name.startswith(typed)
            ]
        if typed.startswith("/") and (found_words := self.arguments(typed)):
            last = typed.rpartition(" ")[2]
            return [Completion(completion, -len(last)) for completion in found_words[:_MAX_COMPLETIONS]]
        word = "" if (match := _LAST_WORD.search(typed)) is None else match[1]
        if word.startswith("@"):
            return self._paths(word[1:])
        if typed.startswith("!") or (complete_event.completion_requested and "/" in word):
            return self._paths(word.removeprefix("!"))
        return []

    def _paths(self, path: str) -> list[Completion]:
        if self.list_dir is None:
            return []
        directory, slash, beginning = path.rpartition("/")
        try:
            entries = self.list_dir(directory + slash or ".")
        except (OSError, ValueError):
            return []
        fitting = [entry for entry in entries if entry.name.startswith(beginning)]
        if not beginning:
            fitting = [entry for entry in fitting if not entry.name.startswith(".")]
        shown = sorted(fitting, key=lambda entry: (not entry.is_directory, entry.name))[:_MAX_COMPLETIONS]
        return [
            Completion(f"{entry.name}/" if entry.is_directory else entry.name, -len(beginning))
            for entry in shown
            if entry.name.isprintable()
        ]


def completes_itself(document: Document) -> bool:
    """Return whether completions are offered without Tab: for a command, and after an `@`."""
    typed = document.text_before_cursor
    if typed.startswith("/"):
        return not any(character.isspace() for character in typed)
    match = _LAST_WORD.search(typed)
    return match is not None and match[1].startswith("@")


def accept_newline(buffer: Any) -> bool:
    r"""Turn Enter after a backslash into a line break; return whether it was one."""
    if not buffer.document.text_before_cursor.endswith("\\"):
        return False
    buffer.delete_before_cursor()
    buffer.insert_text("\n")
    return True
