"""One run of a conversation.

`runner` carries it out in a thread, `loop` repeats the agent's steps, `limits` stops it when too much is spent or the
agent is stuck, and `result` is what the caller gets.
"""
