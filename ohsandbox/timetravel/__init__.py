"""Going back in a conversation: checkpoints of its files, forks, undo, and the changes between two events."""
