"""Services that run beside a sandbox: their options, Compose files, images, containers and checkpoints."""
