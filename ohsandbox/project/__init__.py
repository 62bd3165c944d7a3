"""What a repository requests by its own files, read as data, and which of these files the user trusts.

project_file    `.ohsandbox.toml`: what only narrows the settings, and what needs trust
devcontainer    devcontainer.json: what of it a sandbox is given
features        a devcontainer's features that lie in the project
registry        those that are fetched
trust           whom a person trusts, with which content
"""
