"""The methods of `Conversation` by subject, a mixin class in each module.

`aio` has the async forms, `observable` events, cost and callbacks, `model_control` the model and its context, and
`time_travel` fork, undo, redo and diff.
"""
