"""The fallback on this host."""

from ohsandbox.runtime.local.runtime import CLIRuntime

__all__ = ["CLIRuntime"]
