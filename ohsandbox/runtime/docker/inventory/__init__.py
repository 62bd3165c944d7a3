"""What is ours in an engine: sandboxes, images, caches, networks; listed and removed."""
