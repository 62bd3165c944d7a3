"""A checkpoint of the files, and the way back to it.

before: first
after the change: second
restored: first
"""

import os

from ohsandbox import DockerRuntime

with DockerRuntime(image=os.environ.get("IMAGE", "python:3.12")) as sandbox:
    sandbox.execute("echo first > /tmp/state")
    print("before:", sandbox.execute("cat /tmp/state").output, end="")
    saved = sandbox.checkpoint("before the change")

    sandbox.execute("echo second > /tmp/state")
    print("after the change:", sandbox.execute("cat /tmp/state").output, end="")

    sandbox.restore(saved)
    print("restored:", sandbox.execute("cat /tmp/state").output, end="")
