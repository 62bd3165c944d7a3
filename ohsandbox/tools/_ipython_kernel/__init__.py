"""The kernel: one program for the sandbox's Python 3.8 or newer. On the host its modules are read, never run."""
