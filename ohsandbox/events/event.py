"""What the kinds of events are made of: `SDKEvent`, `EventData`, and values that stand in several.

JSON by key, typed as attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast, get_type_hints

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

from ohsandbox.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler

_REQUIRED = object()
_MAX_DETAIL_CHARS = 256
"""Longest text of an observation that is kept as a detail."""

_RESULT_FIELDS = frozenset({"text", "message", "output", "background_output", "command"})
"""Fields that the result or the call already contains."""

_MAX_DEPTH = 200
"""Deepest nesting that is kept as JSON, deeper values are written as text; `json.dumps` gives up near 1000."""


class ConversationStatus(Enum):
    """The status of a conversation."""

    RUNNING = "RUNNING"
    IDLE = "IDLE"
    """The model answered in text; it is the user's turn."""
    FINISHED = "FINISHED"
    """The model called `finish`."""
    ERROR = "ERROR"
    CANCELED = "CANCELED"
    """Stopped by the user."""
    WAITING_FOR_CONFIRMATION = "WAITING_FOR_CONFIRMATION"
    """Calls are stored that a person must allow before they run."""

    @classmethod
    def _missing_(cls, value: object) -> ConversationStatus | None:
        """One that a newer version wrote: the person has the next word."""
        return cls.IDLE if isinstance(value, str) else None


class ToolResult(BaseModel):
    """The outcome of a tool call, as the log and the model see it."""

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


class SDKEvent(BaseModel):
    """One record of the log. Created or read here, it is an instance of the class of its kind, if that is known.

    So `SDKEvent.model_validate_json(line)` of a tool call is a `ToolCallEvent`, whose `data` is checked and typed. One
    of a type that a newer version wrote stays an `SDKEvent`. A line's version, checksum and places of long texts are
    not fields of the event: what stands in a file of its own is empty here, and whole by `read_events`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str
    """One of `KNOWN_TYPES`; or another, which a newer version wrote into the log: it is kept, without effect."""
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


KINDS: dict[str, type[SDKEvent]] = {}
"""The class of each type of event."""

DATA: dict[str, type[EventData]] = {}
"""The class of each one's data."""


def register_kinds() -> None:
    """Fill `KINDS` and `DATA` from the classes that are declared so far."""
    for kind in SDKEvent.__subclasses__():
        name = str(kind.model_fields["type"].default)
        KINDS[name] = kind
        DATA[name] = cast("type[EventData]", kind.model_fields["data"].annotation)


def unchecked(kind: str, *, ts: datetime, conversation_id: str, seq: int, data: dict[str, Any]) -> SDKEvent:
    """The event of that kind without a check of its fields: they are ours, or a checksum vouches for them.

    To check them would take two thirds of the time of loading a log.
    """
    return KINDS.get(kind, SDKEvent).model_construct(
        type=kind, ts=ts, conversation_id=conversation_id, seq=seq, data=DATA.get(kind, dict)(data)
    )


class EventBody(NamedTuple):
    """What happened, before the log stamps it."""

    type: str
    data: dict[str, Any]


def event_body(event_type: str, **data: Any) -> EventBody:
    """The body of an event of that type; data is made plain JSON."""
    return EventBody(event_type, json_safe(data))


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


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
        return len(value) <= _MAX_DETAIL_CHARS
    return value is None or isinstance(value, bool | int | float)
