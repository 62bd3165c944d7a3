"""The accessibility tree for the model: one line per element, ids in brackets, elements in view first.

Playwright in the sandbox writes the input, from pages that may be hostile: unknown lines are shown as text, and
nothing is trusted but its length.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ohsandbox.runtime.shell.terminal import sanitize_for_terminal

MAX_NAME_CHARS = 500
MAX_VALUE_CHARS = 8000
"""Limit of one element's text: a file shown as text is one element. A cut is stated."""
MAX_LINES = 200_000
"""More lines than any tree from the program; parsed in 2 s."""
MAX_DEPTH = 200
"""Deeper elements become siblings; Chromium itself nests to 512."""
VIEW_WIDTH, VIEW_HEIGHT = 1280, 720

INTERACTIVE = frozenset({
    "button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio",
    "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem",
})  # fmt: skip
_KEY = re.compile(r'(?P<role>[\w-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<marks>(?: \[[^\[\]]*\])*)(?P<rest>:.*)?')
_MARK = re.compile(r"\[([^\[\]=]+)(?:=([^\[\]]*))?\]")
_QUOTED_KEY = re.compile(r"'((?:[^']|'')*)'(:.*)?")
_REF = re.compile(r"(?:f\d{1,9})?e\d{1,9}")
_HIDDEN_MARKS = frozenset({"ref", "box", "cursor", "active"})


@dataclass
class Node:
    """A line of the tree."""

    depth: int
    text: str
    ref: str = ""
    bare: bool = False
    """A container without content of its own."""
    interactive: bool = False
    in_view: bool = True
    focused: bool = False
    origin: tuple[float, float] = (0.0, 0.0)
    """The origin of its children's boxes: differs in a frame."""
    parents: list[Node] = field(default_factory=list)


def render(snapshot: str, *, limit_chars: int) -> tuple[str, str]:
    """The tree as text, and the line of the focused element or an empty text.

    Over limit_chars, elements out of view go first, except fields, links and buttons; a last line states how much.
    """
    nodes = _nodes(snapshot)
    focused = next((node.text for node in reversed(nodes) if node.focused and not node.bare), "")
    shown = [node for node in nodes if not node.bare]
    if not shown:
        return "", focused
    lines = [_line(node) for node in shown]
    if sum(map(len, lines)) + len(lines) <= limit_chars:
        return "\n".join(lines), focused
    return _shortened(shown, lines, limit_chars), focused


def _shortened(nodes: list[Node], lines: list[str], limit_chars: int) -> str:
    place = {id(node): number for number, node in enumerate(nodes)}
    kept: set[int] = set()
    spent = 0
    last_in_view = max((number for number, node in enumerate(nodes) if node.in_view), default=0)
    onwards = [*range(last_in_view, len(nodes)), *range(last_in_view)]
    in_view = [number for number, node in enumerate(nodes) if node.in_view]
    operable = [number for number in onwards if _operable(nodes[number])]
    # half of what the view leaves is for what can be operated elsewhere, the rest for reading on
    for numbers, share in ((in_view, 1.0), (operable, 0.5), (onwards, 1.0)):
        limit = spent + (limit_chars - spent) * share
        for number in numbers:
            parents = (place[id(one)] for one in nodes[number].parents if id(one) in place)
            needed = {*parents, number} - kept
            cost = sum(len(lines[one]) + 1 for one in needed)
            if spent + cost <= limit:
                spent += cost
                kept |= needed
    lost = [node for number, node in enumerate(nodes) if number not in kept]
    said = (
        f"[... {len(lost)} of {len(nodes)} lines left out, those in view last; "
        f"{sum(map(_operable, lost))} of them can be operated. "
        "scroll(0, 600) shows the next part ...]"
    )
    return "\n".join([*(lines[number] for number in sorted(kept)), said])


def _operable(node: Node) -> bool:
    return node.interactive and bool(node.ref)


def _line(node: Node) -> str:
    depth = sum(1 for parent in node.parents if not parent.bare)
    label = f"[{node.ref}] " if node.ref else ""
    return f"{'  ' * min(depth, 20)}{label}{node.text}"


# --- reading -----------------------------------------------------------------------------------


def _nodes(snapshot: str) -> list[Node]:
    nodes: list[Node] = []
    path: list[Node] = []
    for raw in snapshot.split("\n", MAX_LINES)[:MAX_LINES]:
        content = raw.lstrip(" ")
        if not content.startswith("- "):
            continue
        depth = (len(raw) - len(content)) // 2
        while path and path[-1].depth >= depth:
            path.pop()
        if content.startswith("- /"):  # a property of the element above: /url, /placeholder
            if path:
                name, _, value = content[3:].partition(": ")
                path[-1].text += f" {name}={clean_line(_plain(value))}"
            continue
        node = _node(content[2:], depth, path)
        nodes.append(node)
        path.append(node)
    return nodes


def _node(content: str, depth: int, path: list[Node]) -> Node:
    origin = path[-1].origin if path else (0.0, 0.0)
    in_view = path[-1].in_view if path else True
    key = _QUOTED_KEY.fullmatch(content)
    plain = key[1].replace("''", "'") + (key[2] or "") if key else content
    found = _KEY.fullmatch(plain)
    if found is None or (found["role"] == "text" and not found["marks"]):
        text = plain.partition(": ")[2] if found else plain
        return Node(
            depth, f"text: {clean_line(_plain(text))}", in_view=in_view, origin=origin, parents=path[:MAX_DEPTH]
        )
    marks: dict[str, str] = {name: value or "" for name, value in _MARK.findall(found["marks"])}
    ref = marks.get("ref", "") if _REF.fullmatch(marks.get("ref", "")) else ""
    in_view, corner = _seen(marks.get("box", ""), origin, otherwise=in_view)
    role, clickable = found["role"], "cursor" in marks
    name = clean_line(json_text(found["name"] or ""), limit_chars=MAX_NAME_CHARS)
    value = clean_line(_plain((found["rest"] or "").removeprefix(":").strip()))
    states = [key if not value else f"{key}={value}" for key, value in marks.items() if key not in _HIDDEN_MARKS]
    focused = "active" in marks and role != "generic"
    bare = role in ("generic", "rowgroup") and not (name or value or clickable or states)
    shown = "clickable" if role == "generic" and clickable else role
    parts = [shown, f'"{name}"' if name else "", f"({clean_line(', '.join(states))})" if states else ""]
    text = " ".join(filter(None, parts)) + (f": {value}" if value else "") + (" (focused)" if focused else "")
    return Node(
        depth, text, ref, bare=bare, interactive=role in INTERACTIVE or clickable, in_view=in_view, focused=focused,
        origin=corner if role == "iframe" else origin, parents=path[:MAX_DEPTH],
    )  # fmt: skip


def _seen(box: str, origin: tuple[float, float], *, otherwise: bool) -> tuple[bool, tuple[float, float]]:
    """Whether the box is in the viewport, and its corner."""
    try:
        x, y, width, height = (float(number) for number in box.split(","))
    except ValueError:
        return otherwise, origin
    x, y = x + origin[0], y + origin[1]
    return x < VIEW_WIDTH and x + width > 0 and y < VIEW_HEIGHT and y + height > 0, (x, y)


def json_text(quoted: str) -> str:
    """Decode a double-quoted text; return other text unchanged."""
    if quoted.startswith('"'):
        try:
            value = json.loads(quoted, strict=False)
        except ValueError:
            return quoted
        return value if isinstance(value, str) else quoted
    return quoted


def _plain(value: str) -> str:
    """A YAML scalar's text: plain, or in either kind of quotes."""
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return json_text(value)


def clean_line(text: str, *, limit_chars: int = MAX_VALUE_CHARS) -> str:
    """One line without control and invisible characters, bounded."""
    line = " ".join(sanitize_for_terminal(text.encode("utf-8", "replace").decode()).split())
    return line if len(line) <= limit_chars else f"{line[:limit_chars]}... ({len(line)} characters)"
