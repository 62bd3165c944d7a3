"""The options of commands: those that several share, those of one command, and how typer gets them from dataclasses.

`ohsandbox --help` imports all of it, so nothing here is slow to import.
"""
