"""`python docs/generate_sources.py SITE`: pages for the source files that pages of the built site link to.

In the repository `../ohsandbox/settings.py` leads to that file; on the site it would lead nowhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).parents[1]
FOLDER = "source"
"""Where they stand in the site."""
OUTSIDE = re.compile(r'href="\.\./\.\./(?P<path>[\w./-]+)(?=["#])', re.ASCII)
"""A page is DIRECTORY/index.html, so a link out of docs/ goes up twice."""


def _show(source: Path, page: Path) -> None:
    try:
        lexer = get_lexer_for_filename(source.name)
    except ClassNotFound:
        lexer = TextLexer()
    title = source.relative_to(ROOT).as_posix()
    page.parent.mkdir(parents=True, exist_ok=True)
    formatter = HtmlFormatter(full=True, linenos="inline", lineanchors="L", title=title)
    page.write_text(highlight(source.read_text(encoding="utf-8"), lexer, formatter), encoding="utf-8")


def main(site: Path) -> None:
    """Write the pages, and lead the links to them; raises FileNotFoundError where one names no file."""
    for page in sorted(site.glob("*/index.html")):
        text = page.read_text(encoding="utf-8")
        for path in {found["path"] for found in OUTSIDE.finditer(text)}:
            _show(ROOT / path, site / FOLDER / f"{path}.html")
        page.write_text(OUTSIDE.sub(rf'href="../{FOLDER}/\g<path>.html', text), encoding="utf-8")
    for script in site.glob("*.py"):  # of docs/, no pages
        script.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
