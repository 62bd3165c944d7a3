"""The command `ohsandbox`."""

from ohsandbox.cli.app import main

__all__ = ["main"]
