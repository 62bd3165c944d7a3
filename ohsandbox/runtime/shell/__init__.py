"""Persistent shells: sessions, their output, waiting for a command, the terminal."""
