"""What `glob` and `grep` share: patterns, ignore files, and the one script that looks into the sandbox."""
