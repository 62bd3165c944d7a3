"""One run of a conversation.

`runner` runs it in a thread, `loop` repeats the agent's steps, `limits` ends it when too much is used or the agent is
stuck, and `result` is the caller's result.
"""
