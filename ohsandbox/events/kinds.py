"""`SDKEvent` and a class for each kind of event, with a class for its `data`: JSON by key, typed as attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_type_hints

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler

_REQUIRED = object()


class ConversationStatus(Enum):
    """Where a conversation stands."""

    RUNNING = "RUNNING"
    IDLE = "IDLE"
    """The model answered in words; the person is asked."""
    FINISHED = "FINISHED"
    """The model called `finish`."""
    ERROR = "ERROR"
    CANCELED = "CANCELED"
    """Stopped by the person."""
    WAITING_FOR_CONFIRMATION = "WAITING_FOR_CONFIRMATION"
    """Calls are stored that a person must allow before they run."""

    @classmethod
    def _missing_(cls, value: object) -> ConversationStatus | None:
        """One that a newer version wrote: the person has the next word."""
        return cls.IDLE if isinstance(value, str) else None


class ToolResult(BaseModel):
    """What a tool call came to, as the log and the model see it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Literal["ok", "error"]
    output: Any | None = None
    error: str | None = None

    @classmethod
    def ok(cls, output: Any) -> ToolResult:
        """The tool did what it was asked."""
        return cls(status="ok", output=output)

    @classmethod
    def failed(cls, error: str) -> ToolResult:
        """The tool could not; `error` tells the model why."""
        return cls(status="error", error=error)


class _Key:
    """An attribute that reads a key of the dict it stands in, as the type that the class declares."""

    def __init__(self, name: str, default: Any) -> None:
        self._name = name
        self.default = default

    def __get__(self, data: EventData | None, owner: type[EventData]) -> Any:
        if data is None:
            return self
        if self._name in data:
            return _reader(owner, self._name)(data[self._name])
        if self.default is _REQUIRED:
            raise AttributeError(f"The data of this event has no {self._name!r}; it has {sorted(data)}.")
        return self.default

    def __set__(self, data: EventData, value: object) -> None:
        raise AttributeError(f"An event is not changed: {self._name!r} is what was stored.")


@cache
def _reader(owner: type[EventData], name: str) -> Callable[[Any], Any]:
    return TypeAdapter(get_type_hints(owner)[name]).validate_python


class EventData(dict[str, Any]):
    """The `data` of an event: a dict of plain JSON whose known keys are attributes, too, typed.

    So `event.data.name` is `event.data["name"]`, and `event.data.result.status` is `event.data["result"]["status"]`. A
    key that was left out is its default as an attribute and missing as a key; keys that a newer version wrote are kept.
    Reading an attribute raises AttributeError where a required key is missing and ValueError where it has another
    type: both only in a log that another program wrote, since `SDKEvent.model_validate` checks both.
    """

    def __init_subclass__(cls) -> None:
        """Make a reading attribute of each annotation."""
        for name in get_annotations(cls):
            setattr(cls, name, _Key(name, cls.__dict__.get(name, _REQUIRED)))

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Check the known keys, and keep all as they are."""
        fields = {
            name: core_schema.typed_dict_field(handler.generate_schema(hint), required=key.default is _REQUIRED)
            for name, hint in get_type_hints(cls).items()
            if isinstance(key := getattr(cls, name), _Key)
        }
        return core_schema.no_info_wrap_validator_function(
            cls._checked,
            core_schema.typed_dict_schema(fields, extra_behavior="allow"),
            serialization=core_schema.plain_serializer_function_ser_schema(dict),
        )

    @classmethod
    def _checked(cls, value: Any, check: Callable[[Any], Any]) -> EventData:
        check(value)
        return cls(value)

    @classmethod
    def completed(cls, data: dict[str, Any]) -> EventData:
        """The data with every key whose default says something, for a log whose writer left them out."""
        keys = {name: key for one in reversed(cls.__mro__) for name, key in vars(one).items() if isinstance(key, _Key)}
        said = {name: key.default for name, key in keys.items() if key.default not in {_REQUIRED, None}}
        return cls({name: [*value] if isinstance(value, tuple) else value for name, value in said.items()} | data)


class SystemMessageData(EventData):
    """The exact prompt and the tools offered."""

    content: str
    tools: Sequence[dict[str, Any]] = ()


class UserMessageData(EventData):
    """What the person said."""

    content: str
    images: tuple[str, ...] | None = None
    """Shown with it, as data URLs."""


class _ResponseData(EventData):
    """What belongs to a response of the model: on its first event only."""

    usage: dict[str, Any] | None = None
    """{prompt_tokens, completion_tokens, ...}."""
    cost_usd: float | None = None


class AssistantMessageData(_ResponseData):
    """An answer in words."""

    content: str
    response_id: str = ""
    finish_reason: str | None = None


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
    """What the model sent where it was no JSON object."""
    raw_name: str | None = None
    approval: int | None = None
    """The number of the standing approval without which a person would be asked."""
    hint: dict[str, Any] | None = None
    """The fields of a `tool.CallHint`."""
    held: dict[str, Any] | None = None
    """{asks, risk, why, only_reads, fault} of a call that runs only after a person has answered."""


class ToolResultData(EventData):
    """The one answer to a call."""

    tool_call_id: str
    name: str
    result: ToolResult
    details: dict[str, Any] | None = None
    """Short fields of the observation: exit_code, cwd, running, ..."""
    images: Sequence[str] = ()
    """Data URLs."""


class StatusUpdateData(EventData):
    """The conversation's status changed."""

    status: ConversationStatus
    model: str | None = None
    user_id: str | None = None
    directory: str | None = None
    """The working directory of the process, where a run begins."""
    workspace: str | None = None
    """The directory of this machine that the sandbox has, or has a copy of."""
    secrets: list[str] | None = None
    """Names of the secrets that commands have."""


class NoticeData(_ResponseData):
    """Something a person should know; the run goes on. Other keys are facts that go with its code."""

    code: str
    message: str
    to_model: bool = False
    """The model is told as well."""
    for_person: bool = True
    """Who looks on while it works is told, too; False where that is of no use to them. It is in the log."""


class RetryData(NoticeData):
    """The model is asked again."""


class ErrorData(EventData):
    """The run ended."""

    code: str
    message: str
    exit_code: int = 1


class CondensationData(EventData):
    """From now on the model is shown the summary for so many messages."""

    keep_first: int
    dropped: int
    summary: str
    reason: str = "requested"


class ConfirmationData(EventData):
    """A person's word on calls that wait."""

    tool_call_ids: list[str]
    approved: bool
    reason: str = ""
    by: str = ""
    approval: int | None = None
    """The number of the standing approval that was given with it."""


class ApprovalData(EventData):
    """What a person allowed from now on."""

    number: int
    scope: dict[str, Any]
    text: str = ""
    by: str = ""


class ApprovalRevokedData(EventData):
    """An approval lets nothing pass any more."""

    number: int
    by: str = ""


class CheckpointData(EventData):
    """The files were kept as they are here."""

    id: str | None
    label: str = ""
    workspace: dict[str, Any] | None = None
    """{path, snapshot} of a bound directory."""
    size_bytes: int = 0
    image: str | None = None


# --- the events -----------------------------------------------------------------------------------


class SDKEvent(BaseModel):
    """One record of the log. Made or read by this class, it is of the class of its kind where that is known.

    So `SDKEvent.model_validate_json(line)` of a tool call is a `ToolCallEvent`, whose `data` is checked and typed. One
    of a type that a newer version wrote stays an `SDKEvent`. A line's version, checksum and places of long texts are
    not fields of the event: what stands in a file of its own is empty here, and whole by `read_events`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str
    """An `EventType`; or another, which a newer version wrote into the log: it is kept, and nothing obeys it."""
    ts: AwareDatetime
    """UTC; informative only, since clocks jump. Order is by `seq`."""
    conversation_id: str
    seq: int = Field(default=0, ge=0)
    """Position in the log, from 0 without gaps."""
    data: dict[str, Any]

    def __new__(cls, *_: Any, **fields: Any) -> Self:
        """An instance of the class of its kind, which Python then initializes."""
        kind = KINDS.get(fields.get("type", ""), cls) if cls is SDKEvent else cls
        return super().__new__(cast("type[Self]", kind))

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, value: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        kind = value.get("type") if cls is SDKEvent and isinstance(value, Mapping) else None
        if isinstance(kind, str) and kind in KINDS:
            return cast("Self", KINDS[kind].model_validate(value))
        return check(value)

    @field_validator("ts", mode="before")
    @classmethod
    def _with_zone(cls, value: Any) -> Any:
        """A text without a zone is UTC, in a log of another program; a `datetime` without one is refused."""
        with suppress(ValueError):
            if isinstance(value, str) and (ts := datetime.fromisoformat(value)).tzinfo is None:
                return ts.replace(tzinfo=UTC)
        return value

    @field_validator("ts")
    @classmethod
    def _in_utc(cls, value: datetime) -> datetime:
        return value.astimezone(UTC)


class SystemMessageEvent(SDKEvent):
    """The exact prompt and the tools offered."""

    type: Literal["system_message"] = "system_message"
    data: SystemMessageData


class UserMessageEvent(SDKEvent):
    """What the person said."""

    type: Literal["user_message"] = "user_message"
    data: UserMessageData


class AssistantMessageEvent(SDKEvent):
    """An answer of the model in words."""

    type: Literal["assistant_message"] = "assistant_message"
    data: AssistantMessageData


class ToolCallEvent(SDKEvent):
    """A call of a tool, stored before it runs."""

    type: Literal["tool_call"] = "tool_call"
    data: ToolCallData


class ToolResultEvent(SDKEvent):
    """What a call came to."""

    type: Literal["tool_result"] = "tool_result"
    data: ToolResultData


class StatusUpdateEvent(SDKEvent):
    """The conversation's status changed."""

    type: Literal["status_update"] = "status_update"
    data: StatusUpdateData


class ErrorEvent(SDKEvent):
    """The run ended by an error."""

    type: Literal["error"] = "error"
    data: ErrorData


class ModelRetryEvent(SDKEvent):
    """The model is asked again."""

    type: Literal["retry"] = "retry"
    data: RetryData


class NoticeEvent(SDKEvent):
    """Something a person should know."""

    type: Literal["notice"] = "notice"
    data: NoticeData


class CondensationEvent(SDKEvent):
    """A summary stands for messages from now on."""

    type: Literal["condensation"] = "condensation"
    data: CondensationData


class ConfirmationEvent(SDKEvent):
    """A person's word on calls that wait."""

    type: Literal["confirmation"] = "confirmation"
    data: ConfirmationData


class ApprovalEvent(SDKEvent):
    """What a person allowed from now on."""

    type: Literal["approval"] = "approval"
    data: ApprovalData


class ApprovalRevokedEvent(SDKEvent):
    """A standing approval was taken back."""

    type: Literal["approval_revoked"] = "approval_revoked"
    data: ApprovalRevokedData


class CheckpointEvent(SDKEvent):
    """The files were kept."""

    type: Literal["checkpoint"] = "checkpoint"
    data: CheckpointData


KINDS: Mapping[str, type[SDKEvent]] = {
    str(kind.model_fields["type"].default): kind for kind in SDKEvent.__subclasses__()
}
"""The class of each `EventType`."""

DATA: Mapping[str, type[EventData]] = {
    name: cast("type[EventData]", kind.model_fields["data"].annotation) for name, kind in KINDS.items()
}
"""The class of each one's data."""


def unchecked(kind: str, *, ts: datetime, conversation_id: str, seq: int, data: dict[str, Any]) -> SDKEvent:
    """The event of that kind without a check of its fields: they are ours, or a checksum vouches for them.

    To check them would take two thirds of the time of loading a log.
    """
    return KINDS.get(kind, SDKEvent).model_construct(
        type=kind, ts=ts, conversation_id=conversation_id, seq=seq, data=DATA.get(kind, dict)(data)
    )
