"""Asking a model: `LLM` through litellm, and two that need no key, `ScriptedLLM` and `ReplayLLM`."""

from ohsandbox.llm.client import LLM
from ohsandbox.llm.config import LLMConfig, ReasoningEffort
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
from ohsandbox.llm.events import DeltaEvent, LLMEvent, OnEvent, RetryEvent, WarningEvent
from ohsandbox.llm.model import ChatModel
from ohsandbox.llm.opening import open_model
from ohsandbox.llm.replay import ReplayLLM
from ohsandbox.llm.response import ChatMessage, ChatResponse, Choice, FunctionCall, ToolCall, Usage
from ohsandbox.llm.scripted import ScriptedLLM

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
    "ReasoningEffort",
    "ReplayLLM",
    "RetryEvent",
    "ScriptError",
    "ScriptedLLM",
    "ToolCall",
    "Usage",
    "WarningEvent",
    "open_model",
]
