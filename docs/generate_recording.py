"""Write the README's recording, docs/images/session.svg: a real session in a terminal (tmux), as an animated SVG.

`make pictures` does it. The model follows a script. What the terminal shows at the end is revealed line by line, at its
own pace; names are replaced by fixed ones, so that two recordings differ in the measured times alone. The file loads
nothing and runs no script: the animation is CSS, and a reader who prefers no motion is shown the end.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import tempfile
from html import escape
from pathlib import Path
from typing import NamedTuple

from generate_terminal_pictures import COMMAND, IMAGE, IMAGES, Terminal, remove_sandboxes
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

COLUMNS, ROWS = 84, 27
CELL, LINE, FONT = 9.0, 19.0, 15.0
PADDING, BAR = 12.0, 34.0
"""Pixels: a character, a row, the letters; around the text, and above it."""
TYPED_S, AFTER_TYPED_S = 0.045, 0.5
BLOCK_S, LINE_S = 1.0, 0.08
END_S = 6.0
"""How long a character is typed, a line stays alone, a block is read, and the end is shown."""
PROMPT = re.compile(r"> |\$ (?=ohsandbox)")
STARTS_A_BLOCK = re.compile(r"[●$+<~>] |Finished|Answered|Container |  [✓✗] ")
TASK = "Why does the test fail? Fix it."
FILES = {
    "cart.py": "def total(prices, discount=0):\n    return sum(prices) - discount\n",
    "test_cart.py": (
        "import unittest\n\nfrom cart import total\n\n\nclass CartTest(unittest.TestCase):\n"
        "    def test_ten_percent_off(self):\n        self.assertEqual(total([40, 60], discount=10), 90)\n"
        "        self.assertEqual(total([200], discount=10), 180)\n"
    ),
}
_TESTS = {"name": "execute_bash", "arguments": {"command": "python3 -B -m unittest"}}
_FIX = {
    "name": "file_editor",
    "arguments": {
        "command": "str_replace",
        "path": "/workspace/cart.py",
        "old_str": "return sum(prices) - discount",
        "new_str": "return sum(prices) * (100 - discount) / 100",
    },
}
_LOOK = {"name": "execute_bash", "arguments": {"command": "cat cart.py"}}
TURNS = [
    {"content": "I'll run the tests first.", "tool_calls": [_TESTS]},
    {
        "content": "190, where 180 is right. What does total do with the discount?",
        "tool_calls": [_LOOK],
        "expect": "FAILED",
    },
    {"content": "It subtracts the percentage itself.", "tool_calls": [_FIX, _TESTS]},
    {"content": "`total` took off 10 instead of 10 %. It is fixed, and the test passes.", "expect": "OK"},
]


CONSOLE = Console(color_system="truecolor", force_terminal=True, file=io.StringIO())
NAMES = (
    (r"ohsandbox-[0-9a-f]{8}\b", "ohsandbox-5f2c91ab"),
    (r"\b\d{8}-\d{6}-[0-9a-f]{8}\b", "20260102-030405-5f2c91ab"),
    (r"scripted:\S*example", "scripted:example"),
)
"""What is another one in each run, and what stands for it."""


class Step(NamedTuple):
    """A line that appears."""

    at_s: float
    typed_s: float
    """0 where it is there at once."""


def main() -> None:
    """Write it."""
    with tempfile.TemporaryDirectory() as place:
        screen = record(Path(place))
    lines = list(Text.from_ansi(screen.rstrip("\n")).split("\n", allow_blank=True))
    (IMAGES / "session.svg").write_text(animate(lines), encoding="utf-8")


def record(place: Path) -> str:
    """What a session leaves on the terminal, with its colours."""
    project, home, shell = place / "shop", place / "home", place / "shell"
    for directory in (project, home):
        directory.mkdir()
    for name, text in FILES.items():
        (project / name).write_text(text, encoding="utf-8")
    (home / "example").write_text(json.dumps(TURNS), encoding="utf-8")
    shell.write_text(
        f"PS1='$ '\nexport OHSANDBOX_MODEL=scripted:../home/example OHSANDBOX_IMAGE={shlex.quote(IMAGE)}\n"
        f"PATH={shlex.quote(str(Path(COMMAND).parent))}:$PATH\ncd {shlex.quote(str(project))}\nclear\n"
    )
    with Terminal(["bash", "--rcfile", str(shell), "-i"], home=str(home), columns=COLUMNS, rows=ROWS) as terminal:
        terminal.wait_for(r"\$$")
        terminal.type("ohsandbox run --workspace .")
        terminal.wait_for("your turn")
        terminal.type(TASK)
        terminal.wait_for("Finished|Answered")
        for command, said in (("/diff --stat", "changed, "), ("/undo", r"\[y/N\]")):
            terminal.wait_for("your turn")
            terminal.type(command)
            terminal.wait_for(said)
        terminal.type("y")
        terminal.wait_for("taken back")
        screen = terminal.wait_for("your turn", scrollback=True)
        terminal.press("C-d")
        terminal.wait_for(r"\$$")
    remove_sandboxes(str(home))
    for pattern, name in NAMES:
        screen = re.sub(pattern, name, screen.replace(str(place), "/home/ada"))
    return screen


def schedule(lines: list[str]) -> tuple[list[Step], float]:
    """When each line appears, and how long all of it takes."""
    steps, now = [], 0.6
    for number, line in enumerate(lines):
        prompt = PROMPT.match(line)
        typed_s = len(line[prompt.end() :]) * TYPED_S if prompt else 0.0
        now += BLOCK_S if number and STARTS_A_BLOCK.match(line) else 0.0
        steps.append(Step(now, typed_s))
        now += typed_s + (AFTER_TYPED_S if typed_s else LINE_S)
    return steps, now + END_S


def animate(lines: list[Text]) -> str:
    """The SVG: all lines below each other, each hidden until its time, behind a window that follows the newest."""
    steps, total_s = schedule([line.plain for line in lines])
    rules, drawn, scrolled = [], [], []
    for number, (line, step) in enumerate(zip(lines, steps, strict=True)):
        shown = 100 * step.at_s / total_s
        rules.append(f"@keyframes l{number}{{0%{{opacity:0}}{shown:.3f}%,100%{{opacity:1}}}}")
        cover = ""
        if step.typed_s:
            prompt = PROMPT.match(line.plain)
            start, length = (prompt.end() if prompt else 0), len(line.plain)
            end = shown + 100 * step.typed_s / total_s
            begin = f"0%,{shown:.3f}%{{transform:none;animation-timing-function:steps({length - start})}}"
            done = f"{end:.3f}%,100%{{transform:translateX({(length - start) * CELL:.0f}px)}}"
            rules.append(f"@keyframes t{number}{{{begin}{done}}}")
            cover = (
                f'<rect class="c" style="animation-name:t{number}" x="{start * CELL:.0f}" y="{number * LINE:.0f}" '
                f'width="{COLUMNS * CELL:.0f}" height="{LINE:.0f}"/>'
            )
        drawn.append(f'<g class="l" style="animation-name:l{number}">{_draw(line, number)}{cover}</g>')
        if number >= ROWS:
            scrolled.append(f"{shown:.3f}%{{transform:translateY({-(number - ROWS + 1) * LINE:.0f}px)}}")
    end = -(max(len(lines) - ROWS, 0)) * LINE
    rules.append(f"@keyframes s{{0%{{transform:none}}{''.join(scrolled)}100%{{transform:translateY({end:.0f}px)}}}}")
    width, height = COLUMNS * CELL + 2 * PADDING, ROWS * LINE + BAR + PADDING
    return _PAGE.format(
        width=f"{width:.0f}", height=f"{height:.0f}", total=f"{total_s:.2f}", rules="".join(rules), end=f"{end:.0f}",
        inner=f"{COLUMNS * CELL:.0f}", rows=f"{ROWS * LINE:.0f}", x=PADDING, y=BAR, font=FONT, body="\n".join(drawn),
        back=THEME.background_color.hex, fore=THEME.foreground_color.hex,
    )  # fmt: skip


def _draw(line: Text, number: int) -> str:
    """One row, each stretch of one style at its column."""
    found, column = [], 0
    for text, style, _ in line.render(CONSOLE):
        width = CELL * len(text)
        place = f'x="{column * CELL:.0f}" y="{{y:.1f}}"'
        if style and style.bgcolor:
            back = style.bgcolor.get_truecolor(THEME, foreground=False).hex
            size = f'width="{width:.0f}" height="{LINE:.0f}"'
            found.append(f'<rect {place.format(y=number * LINE)} {size} fill="{back}"/>')
        if text.strip():
            look = f' style="fill:{style.color.get_truecolor(THEME).hex}"' if style and style.color else ""
            look += ' class="b"' if style and style.bold else ""
            look += ' opacity=".65"' if style and style.dim else ""
            size = f'textLength="{width:.0f}" lengthAdjust="spacingAndGlyphs"'
            found.append(f"<text {place.format(y=number * LINE + 14.5)} {size}{look}>{escape(text)}</text>")
        column += len(text)
    return "".join(found)


_PAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>
text{{font:{font}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
text{{fill:{fore};white-space:pre}}
.b{{font-weight:bold}}.c{{fill:{back}}}
.l,.c,.s{{animation-duration:{total}s;animation-iteration-count:infinite;animation-timing-function:step-end}}
.s{{animation-name:s}}
@media (prefers-reduced-motion:reduce){{
.l,.c,.s{{animation:none}}.c{{display:none}}.s{{transform:translateY({end}px)}}
}}
{rules}
</style>
<rect width="{width}" height="{height}" rx="8" fill="{back}"/>
<circle cx="18" cy="16" r="6" fill="#ff5f57"/>
<circle cx="38" cy="16" r="6" fill="#febc2e"/>
<circle cx="58" cy="16" r="6" fill="#28c840"/>
<svg x="{x}" y="{y}" width="{inner}" height="{rows}"><g class="s">
{body}
</g></svg>
</svg>
"""

if __name__ == "__main__":
    main()
