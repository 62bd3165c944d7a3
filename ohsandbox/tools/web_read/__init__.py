"""`web_read`: a web page as Markdown, fetched from inside the sandbox."""

from ohsandbox.tools.web_read.definition import BUILT_IN, WebReadAction, make_web_read_tool

__all__ = ["BUILT_IN", "WebReadAction", "make_web_read_tool"]
