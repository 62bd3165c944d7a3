"""Write docs/images/question.png: a real run in a terminal (tmux, chromium). `generate_recording.py` uses its terminal.

`make pictures` does it. The model follows a script, so that the picture is the same but for times and names.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from ohsandbox import list_sandboxes, remove_sandbox

if TYPE_CHECKING:
    from types import TracebackType

IMAGES = Path(__file__).parent / "images"
COMMAND = str(Path(sys.executable).parent / "ohsandbox")
IMAGE = os.environ.get("OHSANDBOX_IMAGE", "python:3.12")
TASK = "Write a module that merges intervals, and test it."
COLUMNS, ROWS = 100, 40
TIMEOUT_S = 60.0
LOOK_EVERY_S, QUIET_S = 0.2, 1.0
QUESTION = r"\? helps\]$"
"""It has no answer yet: it is the end of what the screen shows."""
CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip


def main() -> None:
    """Write it."""
    IMAGES.mkdir(exist_ok=True)
    run = [COMMAND, "run", "--model", "scripted:demo", "--image", IMAGE]
    with tempfile.TemporaryDirectory() as home:
        with Terminal([*run, "--confirm", "always", TASK], home=home) as terminal:
            while " -| " not in terminal.wait_for(QUESTION):
                terminal.type("y")
            draw(terminal.screen(), IMAGES / "question.png")
        remove_sandboxes(home)


def remove_sandboxes(home: str) -> None:
    """A terminal that closes ends nothing that a person could go on with."""
    conversations = {path.name for path in (Path(home) / "conversations").glob("[!.]*")}
    os.environ["OHSANDBOX_HOME"] = home  # each state directory removes its own
    for sandbox in list_sandboxes():
        if sandbox.conversation in conversations:
            remove_sandbox(sandbox.name)


class Terminal:
    """A program in a terminal of its own, which ends with the block."""

    def __init__(self, argv: list[str], *, home: str, columns: int = COLUMNS, rows: int = ROWS) -> None:
        self._tmux = ["tmux", "-L", f"ohsandbox-pictures-{os.getpid()}-{id(self)}", "-f", "/dev/null"]
        command = f"OHSANDBOX_HOME={shlex.quote(home)} TERM=xterm-256color {shlex.join(argv)}"
        self._argv = [
            "new-session",
            "-d",
            "-c",
            home,
            "-x",
            str(columns),
            "-y",
            str(rows),
            command,
        ]

    def __enter__(self) -> Self:
        self._call(*self._argv)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._call("kill-server")

    def screen(self, *, scrollback: bool = False) -> str:
        """What it shows, with its colours; with the scrollback, what it showed before, too."""
        return self._call("capture-pane", "-e", "-p", *(["-S", "-"] if scrollback else []))

    def type(self, line: str) -> None:
        """A line, once the terminal has been quiet for as long as a question wants it."""
        time.sleep(QUIET_S)
        self._call("send-keys", "-l", line)
        self.press("Enter")
        time.sleep(QUIET_S)

    def press(self, key: str) -> None:
        """A key, by tmux's name of it."""
        self._call("send-keys", key)

    def wait_for(self, words: str, *, scrollback: bool = False) -> str:
        """The screen as soon as a part of its text matches words."""
        until = time.monotonic() + TIMEOUT_S
        while not re.search(words, self._call("capture-pane", "-p").rstrip()):
            if time.monotonic() > until:
                raise SystemExit(f"{words!r} did not appear within {TIMEOUT_S:.0f} s:\n{self.screen()}")
            time.sleep(LOOK_EVERY_S)
        return self.screen(scrollback=scrollback)

    def _call(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True).stdout


def draw(screen: str, target: Path) -> None:
    """Make a picture of a terminal's rows."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(screen.rstrip("\n"), no_wrap=True, overflow="crop"), crop=True)
    drawn = console.export_svg(title="ohsandbox")
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # nothing is loaded from elsewhere
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    if size is None:
        raise SystemExit("rich's SVG has another form by now: no viewBox.")
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "screen.svg"
        page.write_text(drawn, encoding="utf-8")
        window = f"--window-size={int(float(size[1])) + 1},{int(float(size[2])) + 1}"
        command = [*CHROMIUM, window, f"--screenshot={target}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)


if __name__ == "__main__":
    main()
