"""The sandbox of a command: its start, its setup commands, ports, network and terminal, and the report after a run."""
