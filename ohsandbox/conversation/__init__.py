"""A conversation: an agent, a runtime, and the log of what happened.

`conversation` has the class, `methods/` more of its methods by subject. `config` is what the caller asked for, `log`
the events. `environment/` is the sandbox with its tools and servers, `run/` one run from start to result, `approvals/`
what a call may do and who is asked, `storage/` the conversations on disk. `subagents` delegates work, `live_output`
shows what running calls print, `cost` adds up what was spent.
"""

from ohsandbox.conversation.conversation import Conversation
from ohsandbox.conversation.run.limits import Limits, RunLimits
from ohsandbox.conversation.run.result import RunResult
from ohsandbox.conversation.storage.metadata import ConversationMetadata, ConversationStore, FileConversationStore

__all__ = [
    "Conversation",
    "ConversationMetadata",
    "ConversationStore",
    "FileConversationStore",
    "Limits",
    "RunLimits",
    "RunResult",
]
