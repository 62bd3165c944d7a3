"""`ConversationMetadata`, its projection from the events of a log, and the stores that keep it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from ohsandbox.arguments import expect_path
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.events import EXIT, KNOWN_TYPES, ConversationStatus
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence.layout import METADATA_NAME, check_id
from ohsandbox.private_files import make_private_dir, read_regular, write_atomically
from ohsandbox.text import encodable

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent

_log = logging.getLogger(__name__)

_TITLE_CHARS = 80
"""Maximum length of a title: one line of a list."""

MODEL_CHANGED = "ModelChanged"
"""Code of the notice that the conversation continues with another model, named in its field `model`."""

_MAX_METADATA_BYTES = 64 * 1024


class ConversationMetadata(BaseModel):
    """The summary of a conversation for lists."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    conversation_id: str
    title: str | None = None
    """The first characters of the first message."""
    created_at: AwareDatetime
    updated_at: AwareDatetime = Field(default_factory=lambda data: data["created_at"])
    """Time of the last event."""
    user_id: str | None = None
    model: str | None = None
    """Name of the model of the last request, or of the one that was chosen later."""
    directory: str | None = None
    """Working directory of the process that ran it last."""
    workspace: str | None = None
    """The directory of this machine that is in its sandbox, or whose copy is."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that its commands had."""
    status: ConversationStatus = ConversationStatus.IDLE
    steps: int = Field(default=0, ge=0)
    """Number of the model's answers."""
    calls: int = Field(default=0, ge=0)
    """Number of tool calls."""
    events: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    """Tokens of all prompts, including those of sub-agents; so do completion_tokens and cost_usd."""
    completion_tokens: int = Field(default=0, ge=0)
    cost_usd: float | None = Field(default=None, allow_inf_nan=False)
    """Cost in US dollars; None if no answer had a price."""
    log_bytes: int = Field(default=0, ge=0)
    """Length of the log in bytes to which this belongs; if the log has another length, it must be read again."""

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a message of the user nor an answer of the model."""
        return self.title is None and not self.steps

    def is_of(self, directory: str) -> bool:
        """Whether it was run in this directory, or works on it."""
        return directory in {self.directory, self.workspace}


class MetadataProjection:
    """The fields of `ConversationMetadata`, updated by each event."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.created_at: datetime | None = None
        self.updated_at: datetime | None = None
        self.model: str | None = None
        self.user_id: str | None = None
        self.directory: str | None = None
        self.workspace: str | None = None
        self.secrets: tuple[str, ...] = ()
        self.status = ConversationStatus.IDLE
        self._response: str | None = None
        self.events = self.calls = self.steps = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.cost_usd: float | None = None

    def add(self, event: SDKEvent) -> None:
        """Update the fields with the next event."""
        data = event.data
        self.created_at = self.created_at or event.ts
        self.updated_at = event.ts
        self.events += 1
        self.calls += event.type == "tool_call"
        if event.type == "user_message":
            content = data["content"]
            self.title = self.title or (None if content.strip() == EXIT else title_of_message(content))
        elif event.type == "status_update":
            self.status = ConversationStatus(data["status"])
            self.model = data.get("model", self.model)
            self.user_id = data.get("user_id", self.user_id)
            self.directory = data.get("directory", self.directory)
            self.workspace = data.get("workspace", self.workspace)
            self.secrets = (*(data.get("secrets") or self.secrets),)
        elif event.type == "notice" and data.get("code") == MODEL_CHANGED:
            self.model = data.get("model", self.model)
        if event.type not in KNOWN_TYPES:
            return
        response = data.get("response_id")
        if response is not None and response != self._response:  # a response's calls follow each other
            self._response = response
            self.steps += 1
        usage = data.get("usage") or {}
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        if data.get("cost_usd") is not None:
            self.cost_usd = (self.cost_usd or 0.0) + data["cost_usd"]

    def metadata(self, conversation_id: str, *, log_bytes: int) -> ConversationMetadata:
        """Return the metadata after the events so far; log_bytes is the length of the log in bytes."""
        now = datetime.now(UTC)
        times = {"created_at": self.created_at or now, "updated_at": self.updated_at or now}
        fields = vars(self) | times | {"conversation_id": conversation_id, "log_bytes": log_bytes}
        return ConversationMetadata.model_validate(fields)


class ConversationStore(Protocol):
    """Stores metadata."""

    def save(self, metadata: ConversationMetadata) -> None:
        """Store the metadata, replacing what was stored for the conversation."""

    def load(self, conversation_id: str) -> ConversationMetadata | None:
        """Return the stored metadata; None if there is none, or it cannot be read."""


def root_of(name: str, given: Path | str | None) -> Path:
    """Return the directory of all conversations, given by the argument of that name; None is the default one.

    Raises:
        UsageError: it is not a path, or it is None and there is no state directory.
    """
    expect_path(name, given)
    return conversations_dir() if given is None else Path(given)


class FileConversationStore:
    """One `metadata.json` in each conversation's directory, replaced atomically."""

    def __init__(self, root: Path | str | None = None) -> None:
        """Create nothing yet. root None is `paths.conversations_dir()`.

        Raises:
            UsageError: root is not a path; or it is None and there is no state directory.
        """
        self.root = root_of("root", root)

    def save(self, metadata: ConversationMetadata) -> None:
        """Write the metadata.

        Raises:
            UsageError: the directory cannot be used.
        """
        directory = self.root / check_id(metadata.conversation_id)
        make_private_dir(directory)
        try:
            write_metadata(directory, metadata)
        except OSError as error:
            raise UsageError(
                f"Directory {str(directory)!r} cannot be written: {error.strerror}. Free space, or name another place."
            ) from error

    def load(self, conversation_id: str) -> ConversationMetadata | None:
        """Read the metadata; None if it is missing, damaged or another conversation's: it can be read from the log."""
        path = self.root / check_id(conversation_id) / METADATA_NAME
        try:
            data = read_regular(path, limit_bytes=_MAX_METADATA_BYTES)
            metadata = ConversationMetadata.model_validate_json(data)
        except (OSError, ValidationError):
            return None
        return metadata if metadata.conversation_id == conversation_id else None


def write_metadata(directory: Path, metadata: ConversationMetadata) -> None:
    """Write the metadata into an existing directory.

    Raises:
        OSError: the directory does not exist or cannot be written.
    """
    write_atomically(directory / METADATA_NAME, metadata.model_dump_json(indent=2).encode() + b"\n")


def keep_metadata(store: ConversationStore, metadata: ConversationMetadata) -> None:
    """Save the metadata; a failure is only logged, since the log has everything."""
    try:
        store.save(metadata)
    except OhsandboxError as error:
        _log.warning("The metadata of conversation %r could not be saved: %s", metadata.conversation_id, error)
    except Exception:  # noqa: BLE001 - the caller's store may raise anything
        _log.warning("The metadata of conversation %r could not be saved.", metadata.conversation_id, exc_info=True)


def title_of_message(text: str) -> str | None:
    """Return the beginning of a message as one line, with an ellipsis if it was cut; None if nothing is visible."""
    line = " ".join(encodable(text[: 4 * _TITLE_CHARS]).split())
    return (line if len(line) <= _TITLE_CHARS else f"{line[: _TITLE_CHARS - 1]}…") or None
