"""A conversation: an agent, a runtime, and the log of what happened."""

from ohsandbox.conversation.config import Limits
from ohsandbox.conversation.conversation import Conversation
from ohsandbox.conversation.storage.metadata import ConversationMetadata, ConversationStore, FileConversationStore

__all__ = ["Conversation", "ConversationMetadata", "ConversationStore", "FileConversationStore", "Limits"]
