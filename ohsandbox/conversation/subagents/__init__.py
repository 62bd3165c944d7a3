"""Sub-agents: conversations that work for another conversation, in its sandbox."""
