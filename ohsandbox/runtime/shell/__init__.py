"""A persistent shell: the terminal it prints on, the watch over its command, and the ways it ends."""

from ohsandbox.runtime.shell.shell import SessionOptions, Shell, in_subshell

__all__ = ["SessionOptions", "Shell", "in_subshell"]
