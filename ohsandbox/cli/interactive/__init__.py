"""The interactive session in a terminal: an input line that stays at the bottom while the agent works.

`screen` draws it, `input` is what a person types into, `status_bar` the bottom line, `view` shows a conversation on it,
and `loop` is the session itself.
"""
