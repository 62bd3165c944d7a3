"""Stored conversations: their metadata, the catalog of a directory, and deletion."""
