"""`web_read`: a web page as Markdown, fetched from inside the sandbox."""

from ohsandbox.tools.web_read.definition import WebReadAction, WebReadTool

__all__ = ["WebReadAction", "WebReadTool"]
