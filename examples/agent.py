"""An agent at work. Without MODEL it follows a script, so that no key is needed.

FINISHED
/workspace/ohsandbox-demo/intervals.py
OK
"""

import os

from ohsandbox import Conversation, DockerRuntime, Settings

settings = Settings(model=os.environ.get("MODEL", "scripted:demo"))
with DockerRuntime(image=os.environ.get("IMAGE", "python:3.12")) as sandbox:
    with Conversation(runtime=sandbox, settings=settings) as conversation:
        result = conversation.run("Write a module that merges intervals, and test it.")
    print(result.status.name)
    print(result.changed_files[0])
    print(sandbox.execute("cd /workspace/ohsandbox-demo && python3 -m unittest 2>&1 | tail -n 1").output, end="")
