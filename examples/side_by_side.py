"""Ten commands in one sandbox and four sandboxes, all at once.

10 commands: 45
4 sandboxes: 4 containers
"""

import asyncio
import os

from ohsandbox import DockerRuntime

IMAGE = os.environ.get("IMAGE", "python:3.12")


async def name_of_one() -> str:
    """The id of a container of its own."""
    async with DockerRuntime(image=IMAGE) as sandbox:
        await sandbox.aexecute("true")
        return sandbox.id


async def main() -> None:
    """Run both."""
    async with DockerRuntime(image=IMAGE) as sandbox:
        ended = await asyncio.gather(*(sandbox.arun(["sh", "-c", f"echo {number}"]) for number in range(10)))
        print("10 commands:", sum(int(one.stdout) for one in ended))
    names = await asyncio.gather(*(name_of_one() for _ in range(4)))
    print("4 sandboxes:", len(set(names)), "containers")


asyncio.run(main())
