"""A tool of your own: a Python function that the model may call, and what it saw of it.

Sunny in Lisbon.
It is sunny in Lisbon.
"""

from ohsandbox import Agent, Conversation, ScriptedLLM
from ohsandbox.events import ToolResultEvent
from ohsandbox.testing import FakeRuntime


def weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


model = ScriptedLLM(
    [
        {"tool_calls": [{"name": "weather", "arguments": {"city": "Lisbon"}}]},
        {"content": "It is sunny in Lisbon.", "expect": "Sunny in Lisbon."},
    ]
)
with FakeRuntime() as runtime, Conversation(Agent(model, [weather]), runtime) as conversation:
    result = conversation.run("How is the weather in Lisbon?")
    for event in result.events:
        if isinstance(event, ToolResultEvent):
            print(event.data.result.output)
    print(result.answer)
