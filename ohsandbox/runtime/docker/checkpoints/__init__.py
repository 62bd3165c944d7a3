"""Checkpoints of a container's file system: made, listed, reused after a setup, and removed."""
