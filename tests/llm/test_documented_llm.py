"""What the documents show of `LLM.send` works exactly as it stands there."""

from __future__ import annotations

import json
import logging

import pytest

from ohsandbox.llm import LLM
from ohsandbox.testing.provider import FakeProvider, calls, text
from tests.llm.talk import TALK, tool

pytestmark = pytest.mark.usefixtures("each_client")


def test_response_can_be_read_as_the_dict_of_the_documents() -> None:
    with FakeProvider(calls(("look", {"default": "a"}))) as provider:
        response = LLM(provider.config()).send(TALK, [tool()])
    message = response["choices"][0]["message"]
    assert message is response.message
    assert message["tool_calls"][0]["function"]["name"] == "look"
    assert json.loads(message.get("tool_calls")[0]["function"]["arguments"]) == {"default": "a"}
    assert "content" in message
    assert "audio" not in message
    assert message.get("audio", 7) == 7
    with pytest.raises(KeyError):
        _ = message["audio"]


def test_warning_about_function_calling_is_logged_without_a_callback_and_the_request_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeProvider(text("Done."), text("Again.")) as provider, caplog.at_level(logging.WARNING):
        llm = LLM(provider.config(native_tool_calling=None, model="openai/no-such-model"))
        assert llm.send(TALK, [tool()]).message.content == "Done."
        assert llm.send(TALK, [tool()]).message.content == "Again."
    warned = [record.getMessage() for record in caplog.records if record.name == "ohsandbox.llm"]
    assert len(warned) == 1
    assert "Whether model 'openai/no-such-model' supports function calling is not known" in warned[0]


@pytest.mark.parametrize("native", [True, False])
def test_extra_body_of_a_request_reaches_the_provider_beside_that_of_the_settings(native: bool) -> None:  # noqa: FBT001
    with FakeProvider(text("a"), text("b")) as provider:
        llm = LLM(provider.config(extra_body={"user_tag": "u", "metadata": {"t": 1}}, native_tool_calling=native))
        llm.send(TALK, [tool()], extra_body={"metadata": {"trace_id": "x"}})
        llm.send(TALK, [tool()])
    first, second = (request.body for request in provider.requests)
    assert (first["metadata"], first["user_tag"]) == ({"trace_id": "x"}, "u")
    assert second["metadata"] == {"t": 1}
