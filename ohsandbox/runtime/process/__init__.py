"""Processes of a sandbox without one exec each: shells that stay open run one call after another."""
