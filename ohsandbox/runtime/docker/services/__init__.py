"""Services that run beside a sandbox: their Compose files, images, containers, inventory and checkpoints."""
