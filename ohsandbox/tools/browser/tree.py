"""The accessibility tree for the model: one line per element, ids in brackets, elements in view first.

Playwright in the sandbox writes the input, from pages that may be hostile: unknown lines are shown as text, and
nothing is trusted but its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ohsandbox.runtime.shell.terminal import sanitize_for_terminal
from ohsandbox.strict_json import load_json

MAX_NAME_CHARS = 500
MAX_VALUE_CHARS = 8000
"""Limit of one element's text: a file shown as text is one element. A cut is stated."""
MAX_CHARS, MAX_LINES = 8_000_000, 200_000
"""Limits of the tree, more than any from the program has; parsed in 2 s, if it is as deep as it can be in 4 s."""
MAX_DEPTH = 200
"""Deeper elements become siblings; Chromium itself nests to 512."""
VIEW_WIDTH, VIEW_HEIGHT = 1280, 720

_INTERACTIVE = frozenset({
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
    operable: bool = False
    in_view: bool = True
    focused: bool = False
    origin: tuple[float, float] = (0.0, 0.0)
    """The origin of its children's boxes: differs in a frame."""
    parents: list[Node] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The line's text with its id, indented."""
        depth = sum(1 for parent in self.parents if not parent.bare)
        return "  " * min(depth, 20) + (f"[{self.ref}] " if self.ref else "") + self.text


def render_tree(snapshot: str, *, limit_chars: int) -> tuple[str, str]:
    """Return the tree as text, and the line of the focused element or an empty text.

    Over limit_chars, elements out of view go first, except fields, links and buttons; a last line states how many.
    """
    nodes = [node for node in _nodes(snapshot) if not node.bare]
    focused = next((node.text for node in reversed(nodes) if node.focused), "")
    lines = [node.line for node in nodes]
    if sum(map(len, lines)) + len(lines) > limit_chars:
        lines = _shortened(nodes, lines, limit_chars)
    return "\n".join(lines), focused


def _shortened(nodes: list[Node], lines: list[str], limit_chars: int) -> list[str]:
    number_of = {id(node): number for number, node in enumerate(nodes)}
    kept_numbers: set[int] = set()
    spent = 0
    in_view = [number for number, node in enumerate(nodes) if node.in_view]
    onwards = [*range(max(in_view, default=0), len(nodes)), *range(max(in_view, default=0))]
    operable = [number for number in onwards if nodes[number].operable]
    # half of what the view leaves is for what can be operated elsewhere, the rest for reading on
    for numbers, share in ((in_view, 1.0), (operable, 0.5), (onwards, 1.0)):
        limit = spent + (limit_chars - spent) * share
        for number in numbers:
            needed = {
                number,
                *(number_of[id(parent)] for parent in nodes[number].parents if id(parent) in number_of),
            } - kept_numbers
            cost = sum(len(lines[number_kept]) + 1 for number_kept in needed)
            if spent + cost <= limit:
                spent += cost
                kept_numbers |= needed
    lost = [node for number, node in enumerate(nodes) if number not in kept_numbers]
    note = (
        f"[... {len(lost)} of {len(nodes)} lines left out, those in view last; "
        f"{sum(node.operable for node in lost)} of them can be operated. scroll(0, 600) shows the next part ...]"
    )
    return [*(lines[number] for number in sorted(kept_numbers)), note]


def _nodes(snapshot: str) -> list[Node]:
    nodes: list[Node] = []
    path: list[Node] = []
    for raw in snapshot[:MAX_CHARS].split("\n", MAX_LINES)[:MAX_LINES]:
        content = raw.lstrip(" ")
        if not content.startswith("- "):
            continue
        depth = (len(raw) - len(content)) // 2
        while path and path[-1].depth >= depth:
            path.pop()
        if content.startswith("- /"):  # a property of the element above: /url, /placeholder
            if path and len(path[-1].text) < MAX_VALUE_CHARS:  # not without end: each addition copies the text
                name, _, value = content[3:].partition(": ")
                path[-1].text += f" {clean_line(name, limit_chars=MAX_NAME_CHARS)}={clean_line(_plain(value))}"
            continue
        nodes.append(_node(content[2:], depth, path))
        path.append(nodes[-1])
    return nodes


def _node(content: str, depth: int, path: list[Node]) -> Node:
    parent = path[-1] if path else Node(0, "")
    node = Node(depth, "", in_view=parent.in_view, origin=parent.origin, parents=path[:MAX_DEPTH])
    key = _QUOTED_KEY.fullmatch(content)
    plain = key[1].replace("''", "'") + (key[2] or "") if key else content
    match = _KEY.fullmatch(plain)
    if match is None or (match["role"] == "text" and not match["marks"]):
        node.text = f"text: {clean_line(_plain(plain.partition(': ')[2] if match else plain))}"
        return node
    marks: dict[str, str] = {name: value or "" for name, value in _MARK.findall(match["marks"])}
    role, clickable, ref = match["role"], "cursor" in marks, marks.get("ref", "")
    name = clean_line(_json_text(match["name"] or ""), limit_chars=MAX_NAME_CHARS)
    value = clean_line(_plain((match["rest"] or "").removeprefix(":").strip()))
    states = [f"{key}={of}" if of else key for key, of in marks.items() if key not in _HIDDEN_MARKS]
    node.ref = ref if _REF.fullmatch(ref) else ""
    node.operable = bool(node.ref) and (role in _INTERACTIVE or clickable)
    node.focused = "active" in marks and role != "generic"
    node.bare = role in ("generic", "rowgroup") and not (name or value or clickable or states)
    parts = [
        "clickable" if role == "generic" and clickable else role,
        f'"{name}"' if name else "",
        f"({clean_line(', '.join(states))})" if states else "",
    ]
    node.text = " ".join(filter(None, parts)) + (f": {value}" if value else "") + " (focused)" * node.focused
    _place(node, marks.get("box", ""), is_frame=role == "iframe")
    return node


def _place(node: Node, box: str, *, is_frame: bool) -> None:
    """Set whether the node is in the viewport, and the origin of its children's boxes."""
    try:
        x, y, width, height = (float(number) for number in box.split(","))
    except ValueError:
        return
    x, y = x + node.origin[0], y + node.origin[1]
    node.in_view = x < VIEW_WIDTH and x + width > 0 and y < VIEW_HEIGHT and y + height > 0
    if is_frame:
        node.origin = x, y


def _json_text(quoted: str) -> str:
    """Decode a double-quoted text; return other text unchanged."""
    if quoted.startswith('"'):
        try:
            value = load_json(quoted, strict=False)
        except ValueError:
            return quoted
        return value if isinstance(value, str) else quoted
    return quoted


def _plain(value: str) -> str:
    """A YAML scalar's text: plain, or in either kind of quotes."""
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return _json_text(value)


def clean_line(text: str, *, limit_chars: int = MAX_VALUE_CHARS) -> str:
    """Return one line of limited length, without control and invisible characters."""
    line = " ".join(sanitize_for_terminal(text.encode("utf-8", "replace").decode()).split())
    return line if len(line) <= limit_chars else f"{line[:limit_chars]}... ({len(line)} characters)"
