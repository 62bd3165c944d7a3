"""Run the `ohsandbox` command with `python -P -m ohsandbox`; without -P, Python looks for this file here first."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current directory, where an agent that works in it could put a module that we import
    from ohsandbox.cli import main

    main()
