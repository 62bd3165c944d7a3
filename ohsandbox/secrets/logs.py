"""Log records without secrets."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ohsandbox.secrets.masker import Masker


class MaskingFilter(logging.Filter):
    """Masks a record's message and traceback, for every handler after this one as well. Add it to a handler."""

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self._masker = masker

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record; always let it pass."""
        if not self._masker:
            return True
        record.msg, record.args = self._masker.mask(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        record.exc_info = None
        if record.exc_text:
            record.exc_text = self._masker.mask(record.exc_text)
        return True
