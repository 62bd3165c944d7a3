"""`python -m ohsandbox` is `ohsandbox`."""

from ohsandbox.cli import main

if __name__ == "__main__":
    main()
