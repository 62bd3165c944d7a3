"""The sandbox: a backend implements `open_channel`, and everything else is implemented once, on top of that."""

from typing import TYPE_CHECKING

from ohsandbox.lazy_names import lazy_names
from ohsandbox.runtime.aio import to_thread
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.channel import Channel, Chunk, Stream
from ohsandbox.runtime.results import CommandObservation, DirEntry, ExecResult, LeftOut

if TYPE_CHECKING:
    from ohsandbox.network.tunnel.ports import ExposedPort, Forward

__all__ = [
    "Channel",
    "Chunk",
    "CommandObservation",
    "DirEntry",
    "ExecResult",
    "ExposedPort",
    "Forward",
    "LeftOut",
    "Runtime",
    "Stream",
    "to_thread",
]

if not TYPE_CHECKING:  # a runtime without ports needs no tunnel
    __getattr__, __dir__ = lazy_names(__name__, {"ohsandbox.network.tunnel.ports": "ExposedPort Forward"})
