"""Common parts of `glob` and `grep`: patterns, ignore files, and the script that runs in the sandbox."""
