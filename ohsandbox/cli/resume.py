"""Going on with a conversation: which one, where it worked, and what stays of its sandbox when we leave."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.options import SandboxOptions
from ohsandbox.conversation.storage.catalog import find_conversation
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import conversations_dir
from ohsandbox.private_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.presenter import Presenter
    from ohsandbox.cli.rendering.view import View
    from ohsandbox.runtime.base import Runtime

SANDBOX_NAME = "sandbox.json"
"""Beside the log: the options that the sandbox was made with."""

_PATHS = ("workspace", "ca_bundle", "host_workdir")
_UNFINISHED = {
    ConversationStatus.RUNNING,
    ConversationStatus.ERROR,
    ConversationStatus.CANCELED,
    ConversationStatus.WAITING_FOR_CONFIRMATION,
}


@dataclass(frozen=True, kw_only=True)
class ResumedConversation:
    """A conversation that is resumed."""

    id: str
    title: str | None
    model: str | None
    """The last that it asked."""
    where: SandboxOptions
    """Where it works: as asked now, else as before."""


def find_resumed(wanted: str | None, asked: SandboxOptions) -> ResumedConversation:
    """The conversation by its id or the beginning of it; None is the one with the newest event.

    Raises:
        UsageError: there is none, several begin so, or what is asked would put it where its files are not.
    """
    root = conversations_dir()
    conversation_id = find_conversation(root, wanted)
    known = FileConversationStore(root).load(conversation_id)
    where = _merged(asked, load_options(root / conversation_id), conversation_id)
    return ResumedConversation(
        id=conversation_id, title=known.title if known else None, model=known.model if known else None, where=where
    )


def save_options(directory: Path, full: SandboxOptions, runtime: Runtime) -> None:
    """Keep the options for who resumes. A disk that is full is told by the log; this then stays as it was."""
    fields: dict[str, Any] = asdict(full) | {"runtime": full.runtime or "docker"}
    if not full.backend.isolated:
        fields["host_workdir"] = runtime.workdir
    for name in {"image", "network", "git"} - full.backend.options:
        fields[name] = None  # comes from the settings, and this backend does not support it
    if full.workspace is None or full.copies:
        fields["git"] = None  # comes from the settings, and only matters for a bound workspace
    for name in _PATHS:
        fields[name] = str(Path(fields[name]).resolve()) if fields[name] else None
    with contextlib.suppress(OSError):
        write_atomically(directory / SANDBOX_NAME, json.dumps(fields, indent=2).encode() + b"\n")


def load_options(directory: Path) -> SandboxOptions | None:
    """The options that were kept; None where there are none that can be read."""
    try:
        fields = json.loads((directory / SANDBOX_NAME).read_bytes())
        for name in _PATHS:
            fields[name] = Path(fields[name]) if fields[name] else None
        return SandboxOptions(**fields)
    except (OSError, ValueError, TypeError, LookupError):
        return None


def leave_on_exit(presenter: Presenter, runtime: Runtime, view: View, *, stays: bool) -> Callable[..., bool]:
    """For an ExitStack, before the runtime is closed: a conversation that was cut off leaves its sandbox behind.

    stays: it does in any case, kept or joined.
    """

    def leave(_kind: object, error: BaseException | None, _traceback: object) -> bool:
        unfinished = error is not None or presenter.conversation.status() in _UNFINISHED
        if stays or not unfinished or not presenter.has_worked:
            return False
        runtime.leave(at_once=presenter.hurried)
        if getattr(runtime, "name", "") and not presenter.hurried:
            with contextlib.suppress(OSError):  # nobody reads any more
                view.info("Its container stays for three days to be resumed; `ohsandbox gc --kept` removes it before.")
        return False

    return leave


def _merged(asked: SandboxOptions, before: SandboxOptions | None, conversation_id: str) -> SandboxOptions:
    if before is None:
        return asked
    _check_place(asked, before, conversation_id)
    given = {name: value for name, value in asdict(asked).items() if value}
    if asked.attach:
        before = replace(before, image=None)
    return replace(before, **given)


def _check_place(asked: SandboxOptions, before: SandboxOptions, conversation_id: str) -> None:
    if asked.runtime not in {None, before.runtime}:
        raise UsageError(
            f"Conversation {conversation_id!r} works with --runtime {before.runtime}; its files are there. "
            "Leave --runtime out, or start a new conversation."
        )
    if asked.copies and before.workspace is not None and not before.copies:
        raise UsageError(
            f"Conversation {conversation_id!r} works in {str(before.workspace)!r} itself. "
            "Leave --copy out, or start a new conversation."
        )
    was = before.workspace or before.host_workdir
    if before.backend.isolated or was is None:
        return
    if asked.workspace is None and not was.is_dir():
        raise UsageError(
            f"Conversation {conversation_id!r} works in {str(was)!r}, which is gone. "
            "Make it again, or start a new conversation."
        )
    if asked.workspace is not None and asked.workspace.resolve() != was:
        raise UsageError(
            f"Conversation {conversation_id!r} works in {str(was)!r}; its files are there. "
            "Leave --workspace out, or start a new conversation."
        )
