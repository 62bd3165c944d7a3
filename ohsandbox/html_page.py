"""HTML pages that load nothing: a template, and one style sheet and one script that the page allows by their hashes.

Text that came through as markup would do nothing: the page's content policy allows no other source of anything.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import jinja2


def open_templates(directory: Path, *, scripts: Sequence[str] = ("script.js",)) -> jinja2.Environment:
    """Return the templates of a directory, in which all values are escaped and an unknown one is an error.

    They have `style`, the text of `style.css`, and `script`, that of all scripts in their order; `style_hash` and
    `script_hash` are what a content policy (CSP level 3, 2.3.1) allows them by.
    """
    import jinja2  # noqa: PLC0415 - takes 30 ms, and only who makes a page needs it

    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(directory), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    for kind, names in (("style", ["style.css"]), ("script", scripts)):
        text = "".join((directory / name).read_text(encoding="utf-8") for name in names)
        environment.globals |= {kind: text, f"{kind}_hash": _source_hash(text)}
    return environment


def _source_hash(text: str) -> str:
    """The hash by which a content policy allows an inline style sheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
