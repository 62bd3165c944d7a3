"""Checks of the engine and of started containers: isolation, free disk space, resource usage and health."""
