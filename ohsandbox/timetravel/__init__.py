"""Going back in a conversation: checkpoints of its files, forks, undo, and the changes between two events."""

FORKED = "Forked"
"""Code of the notice in a fork that says from which conversation it was made."""
REDONE = "Redone"
"""Code of the notice in the undone conversation that its files were restored."""
