"""The settings of a run: what the file, the project, the environment and the options of the command say together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.mcp_servers import with_mcp_file
from ohsandbox.cli.model import read_settings, without_key_of_another
from ohsandbox.cli.rendering.text import say
from ohsandbox.secrets import parse_flags

if TYPE_CHECKING:
    from ohsandbox.cli.options import RunOptions
    from ohsandbox.cli.project import UsedProject
    from ohsandbox.settings import Settings

_ASKED = ("api_key", "base_url", "native_tool_calling")
"""What a person may have been asked for, beside the model."""


def settings_of(what: RunOptions, project: UsedProject | None = None) -> Settings:
    """The settings with what the project and the options say; a key among these is warned of."""
    if what.api_key:
        advice = "Prefer the settings or the environment."
        say(f"warning: --api-key is visible to every user of this machine (`ps`). {advice}")
    names = "model", "api_key", "base_url", "max_iterations", "max_time_s", "max_tokens", "max_cost_usd", "price"
    asking = "confirm", "skill_servers"
    given = {name: getattr(what, name) for name in (*names, *asking)}
    settings = read_settings(what.settings, project=project.layer if project else None, **given)
    settings = without_key_of_another(settings, what.settings)
    return with_mcp_file(settings, what.mcp_config).with_flags(
        tools=settings.tools.switched(on=what.enable or (), off=what.disable or ()),
        secrets=settings.secrets | parse_flags(what.secrets or ()) or None,
        instructions=None if what.instructions is None else str(what.instructions),
    )


def settings_elsewhere(what: RunOptions, project: UsedProject | None, *, given: Settings) -> Settings:
    """The settings of a session where its next conversation works, by the project there.

    given are those that the session began with: what a person was asked for then is not asked again.
    """
    settings = settings_of(what, project)
    if settings.model not in {None, given.model}:
        return settings
    asked = {name: getattr(given, name) for name in _ASKED if getattr(settings, name) is None}
    return settings.model_copy(update={"model": given.model, **asked})
