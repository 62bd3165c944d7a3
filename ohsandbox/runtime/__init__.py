"""The sandbox: one seam, `open_channel`, and everything else written once on it."""

from ohsandbox.network.ports import ExposedPort, Forward
from ohsandbox.runtime.aio import to_thread
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.channel import Channel, Chunk, Stream
from ohsandbox.runtime.results import CommandObservation, DirEntry, ExecResult, LeftOut

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
