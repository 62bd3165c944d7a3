r"""A shell that keeps its directory and variables, and a process whose streams are bytes.

hello, world, from /tmp
exit code 3, b'\x00\xff' on stdout, b'oops\n' on stderr
"""

import os

from ohsandbox import DockerRuntime

with DockerRuntime(image=os.environ.get("IMAGE", "python:3.12")) as sandbox:
    sandbox.execute("cd /tmp && export NAME=world")
    print(sandbox.execute("echo hello, $NAME, from $PWD").output, end="")

    ended = sandbox.run(["sh", "-c", "cat; echo oops >&2; exit 3"], stdin=b"\x00\xff")
    print(f"exit code {ended.exit_code}, {ended.stdout!r} on stdout, {ended.stderr!r} on stderr")
