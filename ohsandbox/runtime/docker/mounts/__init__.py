"""Host directories, files and package caches in a container: what may be bound, and what is protected inside."""
