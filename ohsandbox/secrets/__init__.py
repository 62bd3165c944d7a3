"""Secrets: where their values come from, and what takes them out of everything that is shown, stored or sent.

Masking is there for accidents: a token in a log, a key in an error message. It is not a security boundary: who can run
commands with a secret can also print it reversed. What must not be taken must not be given.
"""

from ohsandbox.secrets.masker import Masker, MaskingFilter, StreamMasker
from ohsandbox.secrets.vault import HiddenValues, Secrets, check_name, check_reference, host_keys, parse_flags

__all__ = [
    "HiddenValues",
    "Masker",
    "MaskingFilter",
    "Secrets",
    "StreamMasker",
    "check_name",
    "check_reference",
    "host_keys",
    "parse_flags",
]
