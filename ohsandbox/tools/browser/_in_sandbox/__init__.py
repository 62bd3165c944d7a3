"""The browser's program: for the sandbox's Python 3.10 or newer with Playwright. On the host it is read, never run."""
