"""Images of results as files that a person can open."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING

from ohsandbox.content import image_type
from ohsandbox.errors import UsageError
from ohsandbox.private_files import make_private_dir, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

IMAGES_NAME = "images"
"""In a conversation's directory."""


def save_image(url: str, directory: Path) -> Path | None:
    """Put the image of a data URL into the directory, under a name that its bytes give it: the same one is put once.

    Returns: the file; None where the URL has no image of a kind that models read, or it cannot be written.
    """
    kind, _, data = url.partition(";base64,")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    if kind != f"data:{image_type(raw)}":
        return None
    path = directory / f"{hashlib.sha256(raw).hexdigest()[:16]}.{kind.rpartition('/')[2]}"
    try:
        if not path.exists():
            make_private_dir(directory)
            write_atomically(path, raw, durable=False)
    except (OSError, UsageError):
        return None
    return path
