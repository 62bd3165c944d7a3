"""Asking a user before the agent acts: which calls need approval, their risk, and the decisions."""
