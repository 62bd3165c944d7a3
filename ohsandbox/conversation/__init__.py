"""A conversation: an agent, a runtime, and the log of what happened."""

from ohsandbox.conversation.conversation import Conversation
from ohsandbox.conversation.limits import Limits, RunLimits
from ohsandbox.conversation.metadata import ConversationMetadata, ConversationStore, FileConversationStore
from ohsandbox.conversation.result import RunResult

__all__ = [
    "Conversation",
    "ConversationMetadata",
    "ConversationStore",
    "FileConversationStore",
    "Limits",
    "RunLimits",
    "RunResult",
]
