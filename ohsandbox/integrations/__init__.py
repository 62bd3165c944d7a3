"""Plug-ins for other projects, one module each; a module imports its host project and nothing else does."""
