"""Errors of a request to a model.

    ModelError                        (ohsandbox.errors; exit code 5)
    ├── ModelAuthenticationError      the key is missing, wrong, not allowed, or not paid for
    ├── ModelNotFoundError            no such model, provider or address
    ├── ModelRequestError             the provider refuses the request as it is
    │   └── ContextWindowError        the conversation is too long for the model; condense and ask again
    ├── ModelRateLimitedError         still limited after all retries
    ├── ModelUnavailableError         not reached, failing, silent or cut off after all retries
    ├── ModelAnswerError              what came back cannot be read, is too large, or points elsewhere
    ├── ModelCanceledError            `cancel` was called
    └── ScriptError                   a scripted or replayed conversation does not fit, or is over

A message is one line: what failed, with which value, and the setting to look at. No message holds a key.
"""

from __future__ import annotations

from ohsandbox.errors import ModelError


class ModelAuthenticationError(ModelError):
    """The key is missing, wrong, not allowed, or its account has no credit."""


class ModelNotFoundError(ModelError):
    """Unknown model, address or provider."""


class ModelRequestError(ModelError):
    """The provider refuses the request; sending it again would not help."""


class ContextWindowError(ModelRequestError):
    """The conversation is longer than the model can read."""


class ModelRateLimitedError(ModelError):
    """The provider limits the rate, and still did after the last retry."""


class ModelUnavailableError(ModelError):
    """The provider could not be reached, failed, or cut its answer, and still did after the last retry."""


class ModelAnswerError(ModelError):
    """The answer is unreadable, too large, or a redirect."""


class ModelCanceledError(ModelError):
    """`cancel` ended the request."""


class ScriptError(ModelError):
    """A scripted or replayed conversation deviates from its file, or has ended."""
