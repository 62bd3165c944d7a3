"""Snapshots of a directory of this machine: scan, store, compare, merge and restore."""
