"""Images: the facts of those in the engine, pulling missing ones, and building them from a Dockerfile."""
