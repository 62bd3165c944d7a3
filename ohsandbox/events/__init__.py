"""`SDKEvent`: everything that happens in a conversation, a class and a typed constructor a kind.

A constructor makes an `EventBody` (type and data); the log stamps it with time, conversation and sequence number and so
makes the `SDKEvent`. Everything in `data` is plain JSON: no NaN, no lone surrogate, no foreign object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from ohsandbox.events.kinds import (
    ApprovalData,
    ApprovalEvent,
    ApprovalRevokedData,
    ApprovalRevokedEvent,
    AssistantMessageData,
    AssistantMessageEvent,
    CheckpointData,
    CheckpointEvent,
    CondensationData,
    CondensationEvent,
    ConfirmationData,
    ConfirmationEvent,
    ConversationStatus,
    ErrorData,
    ErrorEvent,
    EventData,
    ModelRetryEvent,
    NoticeData,
    NoticeEvent,
    RetryData,
    SDKEvent,
    StatusUpdateData,
    StatusUpdateEvent,
    SystemMessageData,
    SystemMessageEvent,
    ToolCallData,
    ToolCallEvent,
    ToolResult,
    ToolResultData,
    ToolResultEvent,
    UserMessageData,
    UserMessageEvent,
)
from ohsandbox.text import encodable

__all__ = [
    "ApprovalData",
    "ApprovalEvent",
    "ApprovalRevokedData",
    "ApprovalRevokedEvent",
    "AssistantMessageData",
    "AssistantMessageEvent",
    "CheckpointData",
    "CheckpointEvent",
    "CondensationData",
    "CondensationEvent",
    "ConfirmationData",
    "ConfirmationEvent",
    "ConversationStatus",
    "ErrorData",
    "ErrorEvent",
    "EventData",
    "ModelRetryEvent",
    "NoticeData",
    "NoticeEvent",
    "RetryData",
    "SDKEvent",
    "StatusUpdateData",
    "StatusUpdateEvent",
    "SystemMessageData",
    "SystemMessageEvent",
    "ToolCallData",
    "ToolCallEvent",
    "ToolResult",
    "ToolResultData",
    "ToolResultEvent",
    "UserMessageData",
    "UserMessageEvent",
]

EventType = Literal[
    "system_message",
    "user_message",
    "assistant_message",
    "tool_call",
    "tool_result",
    "status_update",
    "error",
    "retry",
    "notice",
    "condensation",
    "confirmation",
    "approval",
    "approval_revoked",
    "checkpoint",
]

KNOWN_TYPES = frozenset(get_args(EventType))

AGENT_STARTED = "AgentStarted"
"""The code of the notice that a sub-agent begins. Its `trail` is the path of the sub-agent's log."""

MAX_RAW_ARGUMENTS_CHARS = 20_000
"""Longest part of arguments that are not valid JSON kept beside the call: enough to see the mistake."""

MAX_DETAIL_CHARS = 256
"""Longest text of an observation that is kept as a detail."""

_RESULT_FIELDS = frozenset({"text", "message", "output", "background_output", "command"})
"""What stands in the result or the call already."""

_MAX_DEPTH = 200
"""Nesting past this is written as text; `json.dumps` gives up near 1000."""


class EventBody(NamedTuple):
    """What happened, before the log stamps it."""

    type: EventType
    data: dict[str, Any]


# --- constructors: the one place that knows what `data` holds ---------------------------------------


def system_message(content: str, *, tools: Sequence[Mapping[str, Any]]) -> EventBody:
    """The exact prompt and the tools offered: {content, tools}."""
    return _body("system_message", content=content, tools=list(tools))


def user_message(content: str, images: Sequence[str] = ()) -> EventBody:
    """What the person said, and the images shown with it, as data URLs: {content, images}."""
    return _body("user_message", content=content, **({"images": [*images]} if images else {}))


def assistant_message(
    content: str,
    *,
    response_id: str,
    finish_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    cost_usd: float | None = None,
) -> EventBody:
    """An answer in words: {content, response_id, finish_reason, usage, cost_usd}."""
    return _body(
        "assistant_message",
        content=content,
        response_id=response_id,
        finish_reason=finish_reason,
        usage=usage,
        cost_usd=cost_usd,
    )


def tool_call(
    *,
    tool_call_id: str,
    name: str,
    arguments: str,
    response_id: str,
    call_index: int,
    total_calls: int,
    thought: str | None = None,
    security_risk: str | None = None,
    raw_arguments: str | None = None,
    raw_name: str | None = None,
    approval: int | None = None,
    hint: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
    cost_usd: float | None = None,
) -> EventBody:
    """One call of a response, stored before it runs.

    `approval` is the number of the standing approval without which a person would be asked.

    `hint` is a `tool.CallHint`, by which the call is shown and the files are kept; older logs have none, or no `kind`.
    `arguments` is always a JSON object as text: as the model sent it, or "{}" with what it sent in `raw_arguments`.
    `thought`, `usage` and `cost_usd` belong to the response and stand on its first call (call_index 0) only.
    """
    data: dict[str, Any] = {
        "tool_call_id": tool_call_id,
        "name": name,
        "arguments": arguments,
        "response_id": response_id,
        "call_index": call_index,
        "total_calls": total_calls,
    }
    extras = {
        "thought": thought,
        "security_risk": security_risk,
        "raw_arguments": raw_arguments and raw_arguments[:MAX_RAW_ARGUMENTS_CHARS],
        "raw_name": raw_name,
        "approval": approval,
        "hint": hint,
        "usage": usage,
        "cost_usd": cost_usd,
    }
    data.update({key: value for key, value in extras.items() if value is not None})
    return _body("tool_call", **data)


def tool_result(
    *,
    tool_call_id: str,
    name: str,
    result: ToolResult,
    details: Mapping[str, Any] | None = None,
    images: Sequence[str] = (),
) -> EventBody:
    """The one answer to a call: {tool_call_id, name, result, details, images}.

    `details` are the observation's short fields (exit_code, cwd, running, ...), for a person's eyes. `images` are data
    URLs, and only there where the tool returned some.
    """
    data: dict[str, Any] = {
        "tool_call_id": tool_call_id,
        "name": name,
        "result": result.model_dump(),
        "details": dict(details or {}),
    }
    if images:
        data["images"] = list(images)
    return _body("tool_result", **data)


def held(
    call: EventBody, *, asks: bool, risk: str, why: Sequence[str], only_reads: bool, fault: str | None = None
) -> EventBody:
    """A tool_call that runs only after a person has answered for its response: with {held: {asks, risk, why, ...}}.

    `asks` is whether it is this call that needs the person's word; `fault` is why it would not run anyway.
    """
    facts = {"asks": asks, "risk": risk, "why": list(why), "only_reads": only_reads, "fault": fault}
    return _body(call.type, **call.data, held={key: value for key, value in facts.items() if value is not None})


def confirmation(
    *, tool_call_ids: Sequence[str], approved: bool, reason: str, by: str, approval: int | None = None
) -> EventBody:
    """A person's word on held calls: {tool_call_ids, approved, reason, by}; by says who, or through what.

    `approval` is the number of the standing approval that was given with it.
    """
    extras = {} if approval is None else {"approval": approval}
    return _body("confirmation", tool_call_ids=list(tool_call_ids), approved=approved, reason=reason, by=by, **extras)


def approval(*, number: int, scope: Mapping[str, Any], text: str, by: str) -> EventBody:
    """What a person allowed from now on: {number, scope, text, by}; text says it as they were shown it."""
    return _body("approval", number=number, scope=dict(scope), text=text, by=by)


def approval_revoked(*, number: int, by: str) -> EventBody:
    """An approval lets nothing pass any more: {number, by}."""
    return _body("approval_revoked", number=number, by=by)


def status_update(
    status: ConversationStatus,
    *,
    model: str | None = None,
    user_id: str | None = None,
    directory: str | None = None,
    workspace: str | None = None,
    secrets: Sequence[str] = (),
) -> EventBody:
    """The conversation's status changed: {status}, and where they are known {model, user_id}.

    Where a run begins also {directory, workspace, secrets}: where the process works, what of this machine the sandbox
    has, and the names of the secrets.
    """
    facts = {"status": status.value, "model": model, "user_id": user_id, "directory": directory, "workspace": workspace}
    known = {key: value for key, value in facts.items() if value is not None}
    return _body("status_update", **known, **({"secrets": [*secrets]} if secrets else {}))


def error(*, code: str, message: str, exit_code: int = 1) -> EventBody:
    """The run ended: {code, message, exit_code}; message is one line."""
    return _body("error", code=code, message=" ".join(message.split()), exit_code=exit_code)


def retry(*, code: str, message: str, **facts: Any) -> EventBody:
    """The model is asked again: {code, message, ...facts}."""
    return _body("retry", code=code, message=message, **facts)


def notice(*, code: str, message: str, **facts: Any) -> EventBody:
    """Something a person should know; the run goes on: {code, message, ...facts}."""
    return _body("notice", code=code, message=message, **facts)


EXIT = "/exit"
"""The user message that ends the conversation's task; no request to the model follows it."""

CondensationReason = Literal["requested", "by the user", "near the limit", "over the limit"]
"""Who wanted it: the model (`request_condensation`), a person, or the length of the conversation."""


def condensation(*, keep_first: int, dropped: int, summary: str, reason: CondensationReason) -> EventBody:
    """From now on the model is shown summary for so many messages: {keep_first, dropped, summary, reason}."""
    return _body("condensation", keep_first=keep_first, dropped=dropped, summary=summary, reason=reason)


def checkpoint(
    *,
    id: str | None,  # noqa: A002 - the field's name in the log
    label: str,
    workspace: Mapping[str, Any] | None = None,
    size_bytes: int = 0,
    image: str | None = None,
    **facts: Any,
) -> EventBody:
    """The files were kept as they are here: {id, label, workspace, size_bytes, image, ...facts}.

    `id` is what `Runtime.restore` and `DockerRuntime(checkpoint=)` take, None where only the workspace was kept;
    `workspace` is {path, snapshot} of a bound directory; `image` is the name of what the sandbox was made from.
    """
    kept = {"id": id, "label": label, "workspace": workspace, "size_bytes": size_bytes, "image": image}
    return _body("checkpoint", **kept, **facts)


def _body(event_type: EventType, **data: Any) -> EventBody:
    return EventBody(event_type, json_safe(data))


# --- plain JSON -------------------------------------------------------------------------------------


def json_safe(value: Any, *, depth: int = 0) -> Any:
    """A copy that every JSON parser reads back: NaN and infinities as text, foreign objects by `str`."""
    if isinstance(value, str):
        return encodable(str(value))
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if depth >= _MAX_DEPTH:
        return encodable(f"<{type(value).__name__} nested too deep>")
    if isinstance(value, Mapping):
        return {encodable(str(key)): json_safe(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(item, depth=depth + 1) for item in value]
    return encodable(str(value))


def short_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The scalars among an observation's fields that are short and stand nowhere else in the log."""
    return {name: value for name, value in fields.items() if name not in _RESULT_FIELDS and _is_short(value)}


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_DETAIL_CHARS
    return value is None or isinstance(value, bool | int | float)
