"""Secrets of a run, and what keeps them from the terminal: every line that is printed passes through `masked`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ohsandbox.secrets import Masker, MaskingFilter, Secrets, host_keys

if TYPE_CHECKING:
    from ohsandbox.cli.rendering.view import View
    from ohsandbox.settings import Settings

_maskers: list[Masker] = []
"""Of this process, which is one command: the only place that knows what must not be printed after a run has failed."""


def open_secrets(settings: Settings, view: View) -> Secrets:
    """Look up the secrets that the settings name, say which commands get, and mask them from now on.

    Raises:
        UsageError: one has no value.
    """
    secrets = Secrets.load(settings.secrets)
    key = settings.resolved_api_key()
    hide(secrets.hiding(host_keys() | ({"api_key": key} if key else {})).masker)
    for warning in secrets.warnings:
        view.warn(warning)
    if secrets.names:
        view.info(f"Secrets in the environment of commands: {', '.join(secrets.names)}")
    return secrets


def hide(masker: Masker) -> None:
    """Mask what is printed and logged from now on."""
    _maskers[:] = [masker]
    if logging.lastResort is not None:
        for old in [*logging.lastResort.filters]:
            logging.lastResort.removeFilter(old)
        logging.lastResort.addFilter(MaskingFilter(masker))


def current_masker() -> Masker:
    """What must not be printed now."""
    return _maskers[0] if _maskers else Masker()


def masked(text: str) -> str:
    """The text as it may be printed."""
    for masker in _maskers:
        text = masker.mask_cut(text)
    return text
