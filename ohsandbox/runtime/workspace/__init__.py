"""A workspace on this machine: its git repositories, its changes, and the files selected for a copy of it."""
