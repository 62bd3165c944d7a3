"""The conversation that `ohsandbox run` has open: its sandbox, its slash commands, resuming it and replacing it."""
