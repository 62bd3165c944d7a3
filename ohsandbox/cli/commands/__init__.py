"""What each command does: one module for each command or family of commands, named after it.

`app` and `app_groups` declare the commands and import one of these modules when its command runs.
"""
