"""Which checkpoints are kept, for whom, and until when.

Each checkpoint image has a tag for everybody who needs it, and each tag a record in the state directory, written
before the tag is made. An image without a record here is somebody else's and is never touched: labels are inherited
and anybody may write them. The image goes with its last tag.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import OhsandboxError, SandboxGone, SandboxUnavailable
from ohsandbox.persistence_free import write_atomically
from ohsandbox.runtime.docker.failures import engine_errors
from ohsandbox.runtime.docker.lease import subdirectory

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine
