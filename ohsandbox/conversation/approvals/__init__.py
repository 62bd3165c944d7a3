"""Asking a person before the agent acts: which calls, what is known of their risk, and the answer."""
