"""Going back in a conversation: checkpoints of its files, forks, undo, and the difference between two events."""
