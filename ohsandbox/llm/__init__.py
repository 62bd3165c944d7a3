"""Asking a model: `LLM` through litellm, and two that need no key, `ScriptedLLM` and `ReplayLLM`."""

from typing import TYPE_CHECKING

from ohsandbox.lazy_names import lazy_names
from ohsandbox.llm.chat import (
    ChatMessage,
    ChatModel,
    ChatResponse,
    Choice,
    DeltaEvent,
    FunctionCall,
    LLMEvent,
    OnEvent,
    RetryEvent,
    ToolCall,
    Usage,
    WarningEvent,
)
from ohsandbox.llm.client import LLM, open_model
from ohsandbox.llm.config import LLMConfig
from ohsandbox.llm.errors import (
    ContextWindowError,
    ModelAnswerError,
    ModelAuthenticationError,
    ModelCanceledError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelUnavailableError,
    ScriptError,
)

if TYPE_CHECKING:
    from ohsandbox.llm.scripted import ReplayLLM, ScriptedLLM

__all__ = [
    "LLM",
    "ChatMessage",
    "ChatModel",
    "ChatResponse",
    "Choice",
    "ContextWindowError",
    "DeltaEvent",
    "FunctionCall",
    "LLMConfig",
    "LLMEvent",
    "ModelAnswerError",
    "ModelAuthenticationError",
    "ModelCanceledError",
    "ModelNotFoundError",
    "ModelRateLimitedError",
    "ModelRequestError",
    "ModelUnavailableError",
    "OnEvent",
    "ReplayLLM",
    "RetryEvent",
    "ScriptError",
    "ScriptedLLM",
    "ToolCall",
    "Usage",
    "WarningEvent",
    "open_model",
]

if not TYPE_CHECKING:  # most conversations ask a provider
    __getattr__, __dir__ = lazy_names(__name__, {".scripted": "ReplayLLM ScriptedLLM"})
