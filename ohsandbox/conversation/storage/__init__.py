"""Conversations on disk.

`catalog` finds, lists, reads and deletes them without opening them, `metadata` is the summary that is kept beside each
log, and `autoresume` reopens one by its id, or the newest.
"""

from ohsandbox.conversation.storage.catalog import (
    LAST,
    MALFORMED,
    ConversationDeleter,
    StoredConversation,
    delete_stored,
    find_conversation,
    find_stored,
    list_stored,
    nearest_first,
    note_container,
    noted_container,
    read_stored,
    size_of,
    stored_before,
)

__all__ = [
    "LAST",
    "MALFORMED",
    "ConversationDeleter",
    "StoredConversation",
    "delete_stored",
    "find_conversation",
    "find_stored",
    "list_stored",
    "nearest_first",
    "note_container",
    "noted_container",
    "read_stored",
    "size_of",
    "stored_before",
]
