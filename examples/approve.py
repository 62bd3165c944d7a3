"""Calls that could do harm wait for a decision: this program allows one and rejects the other.

asked: rm -rf build
asked: git push --force
The build directory is gone; nothing was pushed.
"""

from ohsandbox import Agent, Conversation, ConversationStatus, ScriptedLLM
from ohsandbox.testing import FakeRuntime

model = ScriptedLLM(
    [
        {"tool_calls": [{"name": "execute_bash", "arguments": {"command": "rm -rf build"}}]},
        {"tool_calls": [{"name": "execute_bash", "arguments": {"command": "git push --force"}}]},
        {"content": "The build directory is gone; nothing was pushed."},
    ]
)
with FakeRuntime() as runtime, Conversation(Agent(model), runtime, confirmation="always") as conversation:
    result = conversation.run("Clean up and publish.")
    while result.status == ConversationStatus.WAITING_FOR_CONFIRMATION:
        [call] = conversation.pending
        command = call.arguments["command"]
        print("asked:", command)
        if "push" in command:
            conversation.reject("Nothing is published from here.")
        else:
            conversation.confirm()
        result = conversation.wait()
    print(result.answer)
