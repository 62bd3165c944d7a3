"""What a conversation takes from the settings where its caller said nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.conversation.limits import Limits

if TYPE_CHECKING:
    from ohsandbox.agent import Agent
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.settings import Settings


def with_model(agent: Agent, settings: Settings) -> Agent:
    """The agent on the model that the settings name.

    Raises:
        UsageError: they name none, or it cannot be opened.
    """
    from ohsandbox.llm import open_model  # noqa: PLC0415 - only a run needs the model's client

    return agent.with_llm(open_model(settings.llm_config()))


def default_runtime(settings: Settings, *, conversation_id: str) -> Runtime:
    """A DockerRuntime by the settings, not started."""
    from ohsandbox.runtime.docker import DockerRuntime  # noqa: PLC0415 - the docker package is for those who use it

    return DockerRuntime(
        settings.image, network=settings.network, ca_bundle=settings.ca_bundle, conversation=conversation_id
    )


def limits_of(settings: Settings) -> Limits:
    """The limits that the settings name."""
    return Limits(**{name: getattr(settings, name) for name in Limits.model_fields})
