"""Asking a user before the agent acts: which calls need it, what is known of their risk, and the answer."""
