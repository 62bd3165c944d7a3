"""The system prompt: our words, the sandbox's facts, and what the user adds."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import jinja2

    from ohsandbox.runtime.base import Runtime


def render_system_prompt(
    *,
    tool_names: Iterable[str],
    runtime: Runtime | None,
    system_prompt: str | None = None,
    extensions: Sequence[str] = (),
    microagents: Sequence[str] = (),
) -> str:
    """The exact text of the system message.

    Args:
        tool_names: what can be called; the prompt mentions only those.
        runtime: describes the sandbox; None is a conversation without one.
        system_prompt: takes the place of ours, as it is.
        extensions: paragraphs put after it.
        microagents: knowledge put after those.
    """
    base = system_prompt
    if base is None:
        base = _template().render(tools=set(tool_names), facts=None if runtime is None else runtime.describe())
    return "\n\n".join(part.strip() for part in (base, *extensions, *microagents) if part.strip())


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    import jinja2  # noqa: PLC0415 - 30 ms that only a run needs

    source = resources.files("ohsandbox.agent").joinpath("prompts", "system_prompt.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(  # noqa: S701 - plain text for a model, not HTML
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source)
