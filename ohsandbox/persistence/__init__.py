"""What a conversation leaves on disk, and how it survives a kill at any byte."""

from ohsandbox.errors import LogWriteError
from ohsandbox.persistence.lock import DirectoryLock, holder_of
from ohsandbox.persistence.log import EventLog
from ohsandbox.persistence.reading import LOG_NAME, LogFollower, read_events, stream_events
from ohsandbox.persistence.records import encode_record
from ohsandbox.persistence.repair import repair_log

__all__ = [
    "LOG_NAME",
    "DirectoryLock",
    "EventLog",
    "LogFollower",
    "LogWriteError",
    "encode_record",
    "holder_of",
    "read_events",
    "repair_log",
    "stream_events",
]
