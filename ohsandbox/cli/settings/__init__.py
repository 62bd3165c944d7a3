"""Which settings, model, key and project file a command uses."""
