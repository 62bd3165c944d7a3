"""`Secrecy`: secrets reach the sandbox's commands, and neither they nor the host's keys the log or the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ohsandbox.secrets import Secrets, host_keys
from ohsandbox.secrets.vault import MIN_HOST_KEY_BYTES

if TYPE_CHECKING:
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.llm import ChatModel
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.settings import Settings


class Secrecy:
    """The secrets of one conversation."""

    def __init__(self, given: Secrets | None, log: ConversationLog) -> None:
        """None takes those of the settings, where some are known to `learn`."""
        self.given = given
        self.secrets = given or Secrets()
        self._log = log

    def learn(self, llm: ChatModel, settings: Settings | None) -> None:
        """Have them, and the keys of the model's provider, masked from now on.

        Raises:
            UsageError: a secret of the settings has no value, or one is the model's own key.
        """
        if self.given is None and settings is not None:
            self.secrets = Secrets.load(settings.secrets)
        own = keys_of(llm)
        self.secrets = self.secrets.hiding({**host_keys(), **own}, never=own.values())
        self._log.masker = self.secrets.masker

    def give_to(self, runtime: Runtime) -> None:
        """Have the sandbox's commands find them in their environment."""
        if self.secrets:
            runtime.give_secrets(self.secrets)


def keys_of(llm: ChatModel) -> dict[str, str]:
    """The model's own key, where it is known and long enough for a real one."""
    config: Any = getattr(llm, "config", None)
    if config is None:
        return {}
    if config.api_key is not None:
        found = {"api_key": config.api_key.get_secret_value()}
    else:  # the client reads its provider's variable
        variable = f"{config.model.partition('/')[0].upper().replace('-', '_')}_API_KEY"
        found = {variable: os.environ.get(variable, "")}
    return {name: key for name, key in found.items() if len(key.encode()) >= MIN_HOST_KEY_BYTES}
