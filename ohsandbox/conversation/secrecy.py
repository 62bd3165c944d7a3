"""`Secretive`: what of a conversation has to do with secrets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ohsandbox.secrets import Secrets, host_keys
from ohsandbox.secrets.vault import MIN_HOST_KEY_BYTES

if TYPE_CHECKING:
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.llm import ChatModel
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.settings import Settings


class Secretive:
    """Secrets reach the sandbox's commands, and neither they nor the host's keys reach the trail or the model."""

    secrets: Secrets
    _trail: Trail
    _settings: Settings | None

    def _expect_secrets(self, secrets: Secrets | None) -> None:
        self.secrets = secrets or Secrets()
        self._secrets_given = secrets is not None

    def _know_secrets(self, llm: ChatModel) -> None:
        """Have them, and the keys of the model's provider, masked from now on.

        Raises:
            UsageError: a secret of the settings has no value, or one is the model's own key.
        """
        if not self._secrets_given and self._settings is not None:
            self.secrets = Secrets.load(self._settings.secrets)
        own = keys_of(llm)
        self.secrets = self.secrets.hiding({**host_keys(), **own}, never=own.values())
        self._trail.masker = self.secrets.masker

    def _give_secrets(self, runtime: Runtime) -> None:
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
