"""The sandbox's own tools for any MCP client: one sandbox a session, over stdio or HTTP."""

from ohsandbox.serving.hands import Hands, Place
from ohsandbox.serving.server import make_server

__all__ = ["Hands", "Place", "make_server"]
