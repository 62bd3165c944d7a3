"""A workspace on this machine: git repositories in it, what changed in it, what a copy of it takes along."""
