"""The sandbox's side of `browser`: the files of SOURCES, joined and given to driver_inside.py.

Python 3.10 or newer, with Playwright. On the host they are only checked, never run.
"""

from __future__ import annotations

import re
from importlib.resources import files

SOURCES = ("basics.py", "tabs.py", "actions.py", "browser.py")
"""In the order of their imports, which are dropped: in the sandbox they are one program."""

_START = "become_nobody()\nready({})\nasyncio.run(serve(receive, send))\n"
_OUR_IMPORT = re.compile(r"^from (?:ohsandbox|__future__)\b[^\n(]*(?:\([^)]*\))?$", re.MULTILINE)


def source() -> str:
    """The program."""
    parts = [files("ohsandbox.tools.browser.inside").joinpath(name).read_text("utf-8") for name in SOURCES]
    return _OUR_IMPORT.sub("", "\n".join(parts)) + _START
