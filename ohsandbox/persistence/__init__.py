"""What a conversation leaves on disk, and how it survives a kill at any byte."""

from ohsandbox.errors import LogWriteError
from ohsandbox.persistence.files import home_dir, make_private_dir, write_atomically
from ohsandbox.persistence.lock import DirectoryLock
from ohsandbox.persistence.log import LOG_NAME, EventLog, read_events
from ohsandbox.persistence.records import LOG_VERSION

__all__ = [
    "LOG_NAME",
    "LOG_VERSION",
    "DirectoryLock",
    "EventLog",
    "LogWriteError",
    "home_dir",
    "make_private_dir",
    "read_events",
    "write_atomically",
]
