"""Inventory of an engine: our sandboxes, checkpoints, images and caches, listed and removed."""
