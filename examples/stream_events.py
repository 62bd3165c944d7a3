"""What an agent does, event by event, in an asyncio program.

execute_bash
file_write
file_read
finish
"""

import asyncio
import os

from ohsandbox import Conversation, DockerRuntime, Settings
from ohsandbox.events import ToolCallEvent


async def main() -> None:
    """Print the names of the tools that are called, each once."""
    seen: list[str] = []
    async with (
        DockerRuntime(image=os.environ.get("IMAGE", "python:3.12")) as sandbox,
        Conversation(runtime=sandbox, settings=Settings(model="scripted:demo")) as conversation,
    ):
        async for event in conversation.stream("Write a module that merges intervals, and test it."):
            if isinstance(event, ToolCallEvent) and event.data.name not in seen:
                seen.append(event.data.name)
    print("\n".join(seen))


asyncio.run(main())
