"""A persistent shell: its terminal, the wait for its command, and the ways a command ends."""

from ohsandbox.runtime.shell.shell import SessionOptions, Shell, in_subshell

__all__ = ["SessionOptions", "Shell", "in_subshell"]
