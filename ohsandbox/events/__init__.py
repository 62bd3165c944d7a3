"""`SDKEvent`: everything that happens in a conversation. Each kind has two classes, data and event, and a constructor.

A constructor makes an `EventBody` (type and data); the log stamps it with time, conversation and sequence number and so
makes the `SDKEvent`. Everything in `data` is plain JSON: no NaN, no lone surrogate, no foreign object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - read at run time, of the annotations of data
from typing import Any, Literal

from ohsandbox.events.event import (
    KINDS,
    ConversationStatus,
    EventData,
    SDKEvent,
    ToolResult,
    event_body,
    present,
    register_kinds,
)
from ohsandbox.events.event import EventBody as EventBody

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

AGENT_STARTED = "AgentStarted"
"""The code of the notice that a sub-agent begins. Its `trail` is the path of the sub-agent's log."""

_MAX_RAW_ARGUMENTS_CHARS = 20_000
"""Longest part of arguments that are not valid JSON kept beside the call: enough to see the mistake."""


class SystemMessageData(EventData):
    """The exact prompt and the tools offered."""

    content: str
    tools: Sequence[dict[str, Any]] = ()


class SystemMessageEvent(SDKEvent):
    """The exact prompt and the tools offered."""

    type: Literal["system_message"] = "system_message"
    data: SystemMessageData


def system_message(content: str, *, tools: Sequence[Mapping[str, Any]]) -> EventBody:
    """The exact prompt and the tools offered: {content, tools}."""
    return event_body("system_message", content=content, tools=list(tools))


class UserMessageData(EventData):
    """What the user said."""

    content: str
    images: tuple[str, ...] | None = None
    """The images of the message, as data URLs."""


class UserMessageEvent(SDKEvent):
    """A message of the user."""

    type: Literal["user_message"] = "user_message"
    data: UserMessageData


def user_message(content: str, images: Sequence[str] = ()) -> EventBody:
    """What the person said, and the images shown with it, as data URLs: {content, images}."""
    return event_body("user_message", content=content, **present(images=[*images] or None))


class _ResponseData(EventData):
    """Fields about a response of the model; set only on its first event."""

    usage: dict[str, Any] | None = None
    """{prompt_tokens, completion_tokens, ...}."""
    cost_usd: float | None = None


class AssistantMessageData(_ResponseData):
    """An answer in text."""

    content: str
    response_id: str = ""
    finish_reason: str | None = None


class AssistantMessageEvent(SDKEvent):
    """An answer of the model in text."""

    type: Literal["assistant_message"] = "assistant_message"
    data: AssistantMessageData


def assistant_message(
    content: str,
    *,
    response_id: str,
    finish_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    cost_usd: float | None = None,
) -> EventBody:
    """An answer in words: {content, response_id, finish_reason, usage, cost_usd}."""
    return event_body(
        "assistant_message",
        content=content,
        response_id=response_id,
        finish_reason=finish_reason,
        usage=usage,
        cost_usd=cost_usd,
    )


class ToolCallData(_ResponseData):
    """One call of a response, stored before it runs."""

    tool_call_id: str
    name: str
    arguments: str = "{}"
    """A JSON object."""
    response_id: str = ""
    call_index: int = 0
    total_calls: int = 1
    thought: str | None = None
    security_risk: str | None = None
    raw_arguments: str | None = None
    """The arguments as the model sent them, where they were not a JSON object."""
    raw_name: str | None = None
    approval: int | None = None
    """The number of the standing approval without which a person would be asked."""
    hint: dict[str, Any] | None = None
    """The fields of a `tool.CallHint`."""
    held: dict[str, Any] | None = None
    """{asks, risk, why, only_reads, fault} of a call that runs only after a person has answered."""


class ToolCallEvent(SDKEvent):
    """A call of a tool, stored before it runs."""

    type: Literal["tool_call"] = "tool_call"
    data: ToolCallData


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
    of_some = present(
        thought=thought,
        security_risk=security_risk,
        raw_arguments=raw_arguments and raw_arguments[:_MAX_RAW_ARGUMENTS_CHARS],
        raw_name=raw_name,
        approval=approval,
        hint=hint,
        usage=usage,
        cost_usd=cost_usd,
    )
    return event_body(
        "tool_call", tool_call_id=tool_call_id, name=name, arguments=arguments, response_id=response_id,
        call_index=call_index, total_calls=total_calls, **of_some,
    )  # fmt: skip


def held(
    call: EventBody, *, asks: bool, risk: str, why: Sequence[str], only_reads: bool, fault: str | None = None
) -> EventBody:
    """A tool_call that runs only after a person has answered for its response: with {held: {asks, risk, why, ...}}.

    `asks` is whether it is this call that needs the person's word; `fault` is why it would not run anyway.
    """
    facts = present(asks=asks, risk=risk, why=list(why), only_reads=only_reads, fault=fault)
    return event_body(call.type, **call.data, held=facts)


class ToolResultData(EventData):
    """The one result of a call."""

    tool_call_id: str
    name: str
    result: ToolResult
    details: dict[str, Any] | None = None
    """Short fields of the observation: exit_code, cwd, running, ..."""
    images: Sequence[str] = ()
    """Data URLs."""


class ToolResultEvent(SDKEvent):
    """The outcome of a call."""

    type: Literal["tool_result"] = "tool_result"
    data: ToolResultData


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
    found = present(result=result.model_dump(), details=dict(details or {}), images=[*images] or None)
    return event_body("tool_result", tool_call_id=tool_call_id, name=name, **found)


class StatusUpdateData(EventData):
    """A change of the conversation's status."""

    status: ConversationStatus
    model: str | None = None
    user_id: str | None = None
    directory: str | None = None
    """The working directory of the process, where a run begins."""
    workspace: str | None = None
    """The directory of this machine that the sandbox has, or has a copy of."""
    secrets: list[str] | None = None
    """Names of the secrets that commands have."""


class StatusUpdateEvent(SDKEvent):
    """A change of the conversation's status."""

    type: Literal["status_update"] = "status_update"
    data: StatusUpdateData


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
    facts = present(model=model, user_id=user_id, directory=directory, workspace=workspace, secrets=[*secrets] or None)
    return event_body("status_update", status=status.value, **facts)


class ErrorData(EventData):
    """The error that ended the run."""

    code: str
    message: str
    exit_code: int = 1


class ErrorEvent(SDKEvent):
    """The run ended by an error."""

    type: Literal["error"] = "error"
    data: ErrorData


def error(*, code: str, message: str, exit_code: int = 1) -> EventBody:
    """The run ended: {code, message, exit_code}; message is one line."""
    return event_body("error", code=code, message=" ".join(message.split()), exit_code=exit_code)


class NoticeData(_ResponseData):
    """Something a person should know; the run goes on. Other keys are facts that go with its code."""

    code: str
    message: str
    to_model: bool = False
    """Whether the model is told as well."""
    for_person: bool = True
    """Whether someone who watches the run is told, too; False if that is of no use to them. It is in the log."""


class NoticeEvent(SDKEvent):
    """Something a person should know."""

    type: Literal["notice"] = "notice"
    data: NoticeData


def notice(*, code: str, message: str, **facts: Any) -> EventBody:
    """Something a person should know; the run goes on: {code, message, ...facts}."""
    return event_body("notice", code=code, message=message, **facts)


class RetryData(NoticeData):
    """A request to the model that is repeated."""


class ModelRetryEvent(SDKEvent):
    """A request to the model that is repeated."""

    type: Literal["retry"] = "retry"
    data: RetryData


def retry(*, code: str, message: str, **facts: Any) -> EventBody:
    """The model is asked again: {code, message, ...facts}."""
    return event_body("retry", code=code, message=message, **facts)


EXIT = "/exit"
"""The user message that ends the conversation's task; no request to the model follows it."""

CondensationReason = Literal["requested", "by the user", "near the limit", "over the limit"]
"""Who requested the condensation: the model (`request_condensation`), a person, or the length of the conversation."""


class CondensationData(EventData):
    """From now on the model is shown the summary for so many messages."""

    keep_first: int
    dropped: int
    summary: str
    reason: str = "requested"


class CondensationEvent(SDKEvent):
    """A summary that replaces messages from now on."""

    type: Literal["condensation"] = "condensation"
    data: CondensationData


def condensation(*, keep_first: int, dropped: int, summary: str, reason: CondensationReason) -> EventBody:
    """From now on the model is shown summary for so many messages: {keep_first, dropped, summary, reason}."""
    return event_body("condensation", keep_first=keep_first, dropped=dropped, summary=summary, reason=reason)


class ConfirmationData(EventData):
    """A person's decision on calls that wait for it."""

    tool_call_ids: list[str]
    approved: bool
    reason: str = ""
    by: str = ""
    approval: int | None = None
    """The number of the standing approval that was given with it."""


class ConfirmationEvent(SDKEvent):
    """A person's decision on calls that wait for it."""

    type: Literal["confirmation"] = "confirmation"
    data: ConfirmationData


def confirmation(
    *, tool_call_ids: Sequence[str], approved: bool, reason: str, by: str, approval: int | None = None
) -> EventBody:
    """A person's word on held calls: {tool_call_ids, approved, reason, by}; by says who, or through what.

    `approval` is the number of the standing approval that was given with it.
    """
    said = present(tool_call_ids=list(tool_call_ids), approved=approved, reason=reason, by=by, approval=approval)
    return event_body("confirmation", **said)


class ApprovalData(EventData):
    """A standing approval that a person gave."""

    number: int
    scope: dict[str, Any]
    text: str = ""
    by: str = ""


class ApprovalEvent(SDKEvent):
    """A standing approval that a person gave."""

    type: Literal["approval"] = "approval"
    data: ApprovalData


def approval(*, number: int, scope: Mapping[str, Any], text: str, by: str) -> EventBody:
    """What a person allowed from now on: {number, scope, text, by}; text says it as they were shown it."""
    return event_body("approval", number=number, scope=dict(scope), text=text, by=by)


class ApprovalRevokedData(EventData):
    """The end of a standing approval."""

    number: int
    by: str = ""


class ApprovalRevokedEvent(SDKEvent):
    """A standing approval was taken back."""

    type: Literal["approval_revoked"] = "approval_revoked"
    data: ApprovalRevokedData


def approval_revoked(*, number: int, by: str) -> EventBody:
    """An approval lets nothing pass any more: {number, by}."""
    return event_body("approval_revoked", number=number, by=by)


class CheckpointData(EventData):
    """A checkpoint of the files at this point of the conversation."""

    id: str | None
    label: str = ""
    workspace: dict[str, Any] | None = None
    """{path, snapshot} of a bound directory."""
    size_bytes: int = 0
    image: str | None = None


class CheckpointEvent(SDKEvent):
    """A checkpoint of the files."""

    type: Literal["checkpoint"] = "checkpoint"
    data: CheckpointData


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
    return event_body("checkpoint", **kept, **facts)


register_kinds()
KNOWN_TYPES = frozenset(KINDS)
