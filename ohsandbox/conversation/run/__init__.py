"""One run of a conversation.

`run_thread` has one run at a time in a thread, `runner` prepares it, `loop` repeats the agent's steps, `condensation`
shortens the model's input between them, `limits` ends it when too much is used, `stuck` when the model repeats itself,
and `result` is the caller's result.
"""
