"""A conversation: an agent, a runtime, and the log of what happened.

`conversation` has the class, `methods/` more of its methods by subject. `config` has the caller's options, `log` the
events. `environment/` has the sandbox with its tools and servers, `run/` a run from start to result, `approvals/` the
rules on which calls a user must allow, `storage/` the conversations on disk. `subagents` delegates work, `live_output`
shows the output of running calls, `cost` adds up the cost.
"""

from ohsandbox.conversation.conversation import Conversation
from ohsandbox.conversation.run.limits import RunLimits
from ohsandbox.conversation.run.result import RunResult
from ohsandbox.conversation.storage.metadata import ConversationMetadata, ConversationStore, FileConversationStore

__all__ = [
    "Conversation",
    "ConversationMetadata",
    "ConversationStore",
    "FileConversationStore",
    "RunLimits",
    "RunResult",
]
