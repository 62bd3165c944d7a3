"""Processes without an exec each: shells that are held open and run one call after another."""
