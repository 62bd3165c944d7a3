"""The sandbox: a backend implements `open_channel`, and everything else is implemented once, on top of that."""

from typing import TYPE_CHECKING

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


def __getattr__(name: str) -> object:
    """Import the port classes when they are first used."""
    if name in {"ExposedPort", "Forward"}:
        from ohsandbox.network.tunnel import ports  # noqa: PLC0415

        return getattr(ports, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
