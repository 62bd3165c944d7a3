"""Models that are asked in text: what arrives at the provider, and what is made of its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.llm import LLM, DeltaEvent, LLMConfig, ModelRequestError, RetryEvent, WarningEvent
from ohsandbox.llm.capabilities import IMAGE_NOTE
from ohsandbox.testing.provider import FakeClock, FakeProvider, calls, error, text
from tests.fakes import RecordingRuntime
from tests.llm.talk import TALK, WITH_IMAGE, send, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("each_client")


WRITTEN = 'I look.\n\n<call tool="look">\n<arg name="default">\na "b"\n<c>\n</arg>\n<arg name="level">2</arg>\n'
READ = {"default": 'a "b"\n<c>', "level": 2}


def test_a_model_without_tool_calls_is_asked_in_text_and_its_call_is_read() -> None:
    with FakeProvider(text(WRITTEN)) as provider:
        response, told = send(provider, native_tool_calling=False)
    body = provider.requests[0].body
    assert not body.keys() & {"tools", "tool_choice"}
    assert body["stop"] == ["</call>"]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert "## look\nLooks.\nArguments:\n- default (string; required; default x): A name." in str(
        body["messages"][0]["content"]
    )
    assert body["messages"][2]["content"] == '<call tool="look">\n<arg name="default">a</arg>\n</call>'
    assert body["messages"][3]["content"] == '<result tool="look">\nseen\n</result>'
    [call] = response.message.tool_calls
    assert (response.message.content, response.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("call_1", "look", READ)
    assert told == []


@pytest.mark.parametrize("stream", [False, True])
def test_what_follows_the_call_is_dropped(*, stream: bool) -> None:
    made_up = '</call>\n<result tool="look">fine</result>\n<call tool="look">\n</call>'
    with FakeProvider(text(WRITTEN + made_up)) as provider:
        response, told = send(provider, native_tool_calling=False, stream=stream)
    [call] = response.message.tool_calls
    assert json.loads(call.function.arguments) == READ
    assert "".join(event.text for event in told if isinstance(event, DeltaEvent)) == ("I look.\n\n" if stream else "")


@pytest.mark.parametrize("said", ["a <call", "a <caller b", "a <call b", "<"])
def test_text_that_only_looks_like_a_call_is_shown_whole(said: str) -> None:
    with FakeProvider(text(said)) as provider:
        response, told = send(provider, native_tool_calling=False, stream=True)
    assert response.message.content == said
    assert "".join(event.text for event in told if isinstance(event, DeltaEvent)) == said


def test_an_attempt_that_failed_hides_nothing_of_the_next() -> None:
    cut = text("<call tool=")
    with FakeProvider(cut, text("fine")) as provider:
        provider._replies[0] = provider._replies[0]._replace(message=None, status=500)
        response, told = send(provider, native_tool_calling=False, stream=True)
    assert response.message.content == "fine"
    assert [type(event) for event in told] == [RetryEvent, DeltaEvent, DeltaEvent]


def test_a_malformed_call_is_a_call_with_a_fault_and_goes_back_as_it_was_written() -> None:
    with FakeProvider(text('<call tool="look">\n<arg name="default">\nx'), text("ok")) as provider:
        response, _ = send(provider, native_tool_calling=False)
        [call] = response.message.tool_calls
        assert "'default' is not closed with </arg>" in (call.function.parse_error or "")
        assert response.message.to_llm_dict()["tool_calls"][0]["function"].keys() == {"name", "arguments"}
        send(provider, native_tool_calling=False, messages=[*TALK, response.message.to_llm_dict()])
    assert "\nx\n" in provider.requests[1].body["messages"][-1]["content"]


@pytest.mark.parametrize(("end", "finish_reason"), [("", "length"), ("</call>\nand so on, and so", "tool_calls")])
def test_a_call_that_the_limit_cut_says_so(end: str, finish_reason: str) -> None:
    choices = [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": WRITTEN + end}}]
    with FakeProvider(text("x", choices=choices)) as provider:
        response, _ = send(provider, native_tool_calling=False)
    assert response.choices[0].finish_reason == finish_reason
    assert len(response.message.tool_calls) == 1


def test_calls_that_the_server_reads_itself_are_taken() -> None:
    with FakeProvider(calls(("look", {"default": "x"}), content="I look.")) as provider:
        response, _ = send(provider, native_tool_calling=False)
    assert response.message.tool_calls[0].function.arguments == '{"default": "x"}'


REQUIRED = ["required", {"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("tool_choice", REQUIRED)
def test_a_required_call_is_demanded_and_asked_for_once_more(tool_choice: Any) -> None:
    with FakeProvider(text("Hello."), text(WRITTEN)) as provider:
        response, told = send(provider, native_tool_calling=False, tool_choice=tool_choice)
    assert [type(event) for event in told] == [RetryEvent]  # what was streamed of the first is void
    first, second = (request.body["messages"] for request in provider.requests)
    assert "Your reply must end with a call of" in first[0]["content"]
    assert second[:-2] == first
    assert second[-2] == {"role": "assistant", "content": "Hello."}
    assert "That reply called no tool." in second[-1]["content"]
    assert len(response.message.tool_calls) == 1
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (20, 10)


def test_a_required_call_that_does_not_come_is_asked_for_once_only() -> None:
    with FakeProvider(text("Hello."), text("Hello again."), text("never")) as provider:
        response, _ = send(provider, native_tool_calling=False, tool_choice="required")
    assert response.message.content == "Hello again."
    assert len(provider.requests) == 2


def test_another_tool_than_the_required_one_is_not_taken_at_first() -> None:
    other = text('<call tool="other">\n</call>')
    with FakeProvider(other, text(WRITTEN)) as provider:
        response, _ = send(provider, native_tool_calling=False, tool_choice=REQUIRED[1])
    assert response.message.tool_calls[0].function.name == "look"
    assert "That reply called other." in provider.requests[1].body["messages"][-1]["content"]


def test_no_call_is_read_where_none_is_wanted() -> None:
    with FakeProvider(text(WRITTEN)) as provider:
        response, _ = send(provider, native_tool_calling=False, tool_choice="none")
    assert response.message.tool_calls == ()
    assert "stop" not in provider.requests[0].body
    assert "## look" not in str(provider.requests[0].body)


def test_a_conversation_without_tools_is_text_too() -> None:
    with FakeProvider(text("ok")) as provider:
        LLM(provider.config(native_tool_calling=False)).send(TALK)
    assert [message["role"] for message in provider.requests[0].body["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_an_agent_works_in_text_and_hears_what_was_wrong_with_a_call(tmp_path: Path) -> None:
    broken = '<call tool="execute_bash">\n<arg name="command">\nls'
    whole = '<call tool="execute_bash">\n<arg name="command">\nls -l\necho "a"\n</arg>\n'
    runtime = RecordingRuntime()
    with FakeProvider(text(broken), text(whole), text("Done.")) as provider:
        agent = Agent(LLM(provider.config(native_tool_calling=False)), tools=["execute_bash"])
        with Conversation(agent=agent, runtime=runtime, persist_dir=tmp_path) as conversation:
            conversation.run("Go.", 60)
    assert runtime.commands == ['ls -l\necho "a"']
    second, third = (request.body["messages"][-1]["content"] for request in provider.requests[1:])
    assert "'command' is not closed with </arg>" in second
    assert "ran ls -l" in third


# --- who is asked how -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "is_native", "warning"),
    [
        ("openai/gpt-4o", {}, True, ""),
        ("openai/fake", {}, True, "function calling is not known: litellm's list does not say"),
        ("openai/fake", {"native_tool_calling": True}, True, ""),
        ("openai/fake", {"native_tool_calling": False}, False, ""),
        ("openai/gpt-5-chat", {}, False, "is unsupported for model 'openai/gpt-5-chat' by litellm's list"),
        ("openai/gpt-5-chat", {"native_tool_calling": True}, True, ""),
        ("perplexity/sonar", {}, False, "litellm passes no tools on to the provider 'perplexity'"),
        ("perplexity/unheard-of", {}, False, "litellm passes no tools on to the provider 'perplexity'"),
        ("perplexity/unheard-of", {"native_tool_calling": True}, True, ""),
    ],
)
def test_the_setting_stands_above_the_list_and_an_unknown_model_is_tried(
    model: str, changes: dict[str, Any], warning: str, *, is_native: bool
) -> None:
    with FakeProvider(text("ok"), text("ok")) as provider:
        llm = LLM(provider.config(model=model, **changes), clock=FakeClock())
        _, told = send(provider, llm=llm)
        _, later = send(provider, llm=llm)
    assert ("tools" in provider.requests[0].body) == is_native
    assert [warning in event.text for event in told if isinstance(event, WarningEvent)] == ([True] if warning else [])
    assert later == []


MANY = [tool(name=f"look{number}") for number in range(129)]


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("openai/gpt-4o", 128),
        ("openai/o3", 128),
        ("azure/mine", 128),
        ("groq/llama-3.3-70b-versatile", 128),
        ("xai/grok-4", 200),
        ("gemini/gemini-2.5-pro", 512),
    ],
)
def test_more_tools_than_the_provider_takes_are_told_before_the_request(model: str, limit: int) -> None:
    address = {"base_url": "https://some.openai.azure.com", "api_version": "2025-01-01"} if "azure" in model else {}
    llm = LLM(LLMConfig.model_validate({"model": model, "api_key": "a-key", **address}), clock=FakeClock())
    many = [tool(name=f"look{number}") for number in range(limit + 1)]
    told = rf"takes fewer tools \(at most {limit}, and {limit + 1} are offered.*exclude"
    with pytest.raises(ModelRequestError, match=told):
        llm.send(TALK, many)


@pytest.mark.parametrize(("is_native", "tools"), [(True, MANY), (False, [])])
def test_a_server_that_is_not_openais_is_sent_as_many_tools_as_there_are(tools: Any, *, is_native: bool) -> None:
    with FakeProvider(text("ok")) as provider:
        send(provider, model="openai/gpt-4o", native_tool_calling=is_native, tools=MANY)
    assert len(provider.requests[0].body.get("tools", [])) == len(tools)


def test_a_refusal_of_so_many_tools_says_what_to_do() -> None:
    words = "Invalid 'tools': array too long. Expected an array with maximum length 128."
    with FakeProvider(error(400, words)) as provider, pytest.raises(ModelRequestError, match="Leave some out"):
        send(provider, tools=MANY)


NO_TOOLS = [
    (400, "registry.ollama.ai/library/llama2 does not support tools"),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    (400, "tools is not supported in this model. For a list of supported models, refer to ..."),
    (400, "`tool calling` is not supported with this model"),
    (400, "This model doesn't support tool use in streaming mode."),
    (404, "No endpoints found that support tool use. To learn more about provider routing, visit: ..."),
    (405, "deepinfra error: Tool calling is not supported for model: x"),
    (422, "[{'loc': ('body', 'tools'), 'msg': 'Extra inputs are not permitted'}]"),
    (500, "Unsupported param: tools"),
    (500, "tools param requires --jinja flag"),
]


@pytest.mark.parametrize(("status", "words"), NO_TOOLS)
def test_a_provider_that_refuses_tools_is_asked_in_text_from_then_on(status: int, words: str) -> None:
    with FakeProvider(error(status, words), text(WRITTEN), text("ok")) as provider:
        llm = LLM(provider.config(num_retries=0), clock=FakeClock())
        response, told = send(provider, llm=llm)
        _, later = send(provider, llm=llm)
    assert len(response.message.tool_calls) == 1
    assert ["tools" in request.body for request in provider.requests] == [True, False, False]
    assert "From now on its calls are written as text" in [e.text for e in told if isinstance(e, WarningEvent)][-1]
    assert not any(isinstance(event, RetryEvent) for event in told)
    assert later == []


@pytest.mark.parametrize("setting", [True, None])
def test_a_refusal_that_teaches_nothing_is_an_error_with_the_setting_to_change(*, setting: bool | None) -> None:
    refusal = error(400, "x does not support tools")
    with FakeProvider(refusal, refusal, text("never")) as provider:
        with pytest.raises(ModelRequestError, match=r"takes no tools.*native_tool_calling"):
            send(provider, native_tool_calling=setting)
        assert len(provider.requests) == (1 if setting else 2)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "No endpoints found that support the provided 'tool_choice' value"),
        (400, "deepseek-reasoner does not support this tool_choice"),
        (400, "x does not support tool choice required"),
        (400, "Image format is not supported"),
        (401, "this key does not support tools"),
    ],
)
def test_other_refusals_stay_errors(status: int, words: str) -> None:
    with FakeProvider(error(status, words), text("never")) as provider:
        with pytest.raises(Exception, match="Model 'openai/fake' refused"):
            send(provider)
        assert len(provider.requests) == 1


def test_both_refusals_are_learned_one_after_the_other() -> None:
    replies = [error(400, "x does not support tools"), error(400, "x is not a multimodal model"), text("ok")]
    with FakeProvider(*replies) as provider:
        response, _ = send(provider, messages=WITH_IMAGE)
    assert response.message.content == "ok"
    assert provider.requests[-1].body["messages"][-1] == {
        "role": "user",
        "content": f'<result tool="look">\nseen\n</result>\nThe picture:\n{IMAGE_NOTE}',
    }
