"""The options of `Conversation.autoresume`, and the descriptor that makes it callable on class and instance."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar

from ohsandbox.conversation.storage.catalog import find_conversation
from ohsandbox.errors import UsageError
from ohsandbox.persistence import LOG_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.agent import Agent
    from ohsandbox.conversation.approvals.analysis import SecurityAnalyzer
    from ohsandbox.conversation.approvals.decisions import ApprovalCallback
    from ohsandbox.conversation.approvals.policy import ConfirmationPolicy
    from ohsandbox.conversation.environment.skill_servers import SkillServersPolicy
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.run.limits import RunLimits
    from ohsandbox.conversation.storage.metadata import ConversationStore
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Secrets
    from ohsandbox.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class ResumeOptions(TypedDict, total=False):
    """Options of a resumed conversation, which are those of a new one."""

    agent: Agent | None
    runtime: Runtime | None
    metadata_store: ConversationStore | None
    user_id: str | None
    settings: Settings | None
    limits: RunLimits | None
    tool_choice: str
    confirmation: ConfirmationPolicy | str | None
    security_analyzer: SecurityAnalyzer | None
    confirm: ApprovalCallback | None
    secrets: Secrets | None
    checkpoints: bool | None
    skill_servers: SkillServersPolicy | None


class class_or_instance(Generic[P, R]):  # noqa: N801 - a decorator, as classmethod is
    """A method whose first argument is the instance, or the class if it is called on the class."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self._function = function

    def __get__(self, instance: Any, owner: type[Any]) -> Callable[P, R]:
        return functools.partial(self._function, owner if instance is None else instance)


def adopt(log: ConversationLog, wanted: str | None) -> None:
    """Make a log that has no events that of a stored conversation beside it, also if it is open.

    None is its own conversation if that is stored, else the newest as for `find_conversation`.

    Raises:
        UsageError: there is none, several begin so, or the log is open with events and another conversation is wanted.
    """
    is_stored = log.has_events if log.is_open else (log.directory / LOG_NAME).exists()
    if wanted == log.conversation_id or (wanted is None and is_stored):
        return
    existing_id = find_conversation(log.directory.parent, wanted)
    if log.has_events and existing_id != log.conversation_id:
        raise UsageError(
            f"Conversation {log.conversation_id!r} has begun and cannot become {existing_id!r}. "
            f"Use Conversation.autoresume({existing_id!r})."
        )
    log.select(existing_id)
