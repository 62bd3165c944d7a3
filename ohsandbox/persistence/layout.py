"""The layout of a conversation's directory, and the ids that name one.

```
conversations/.written    their order, see `recency`
conversations/ID/
    sdk_events.jsonl  metadata.json  container.json
    agents/           one directory a sub-agent, laid out like this one
    tools/            what the tools keep, each in a directory of its own
    tools-then/       snapshots of tools/, one a checkpoint
    workspace/        snapshots of a bound workspace, one a checkpoint
    images/           images of results, for a person to open
```
"""

from __future__ import annotations

import re

from ohsandbox.errors import UsageError

METADATA_NAME = "metadata.json"
CONTAINER_NOTE_NAME = "container.json"
AGENTS_NAME = "agents"
TOOLS_NAME = "tools"
TOOL_SNAPSHOTS_NAME = "tools-then"
SNAPSHOTS_NAME = "workspace"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_id(name: str) -> bool:
    """Whether a conversation may have this id."""
    return _ID.fullmatch(name) is not None


def check_id(conversation_id: str) -> str:
    """Return the id, which names a directory.

    Raises:
        UsageError: it is not a str, is longer than 128 characters, or holds a character that an id may not hold.
    """
    if not isinstance(conversation_id, str) or not is_id(conversation_id):
        raise UsageError(
            f"Conversation id {conversation_id!r:.200} is not allowed. "
            "Use letters, digits, '.', '_' and '-', at most 128, the first a letter or digit."
        )
    return conversation_id
