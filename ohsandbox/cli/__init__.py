"""The command `ohsandbox`."""

import sys


def main() -> None:
    """Run the command in sys.argv and exit with its exit code."""
    try:
        from ohsandbox.cli.app import main as run  # noqa: PLC0415 - 0.3 s, in which Ctrl-C may come
    except KeyboardInterrupt:
        sys.stderr.write("ohsandbox: Interrupted.\n")
        sys.exit(130)
    run()


__all__ = ["main"]
