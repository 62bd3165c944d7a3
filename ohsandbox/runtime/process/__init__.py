"""Processes of a sandbox without one exec each: shells that are held open run one call after another."""
