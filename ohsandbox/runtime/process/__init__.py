"""Processes of a sandbox without one exec each: a shell that stays open runs many calls, one after another."""
