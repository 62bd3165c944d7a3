"""litellm's list of models, read as a file: importing litellm takes 2-4 s, this 0.03 s."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.provider import ModelInfo
from ohsandbox.llm.response_parsing import token_count
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = "model_prices_and_context_window_backup.json"
"""The file's name in litellm 1.106, which loads the same file, since we prevent it from fetching a newer one."""
_TIER = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


@functools.cache
def model_list() -> Mapping[str, Mapping[str, Any]]:
    """Return each model's entry by its name; empty if litellm has no such file."""
    spec = importlib.util.find_spec("litellm")  # `find_spec` of a top-level package imports nothing
    if spec is None or spec.origin is None:
        return {}
    try:
        entries = load_json(Path(spec.origin).with_name(_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def model_entry(model: str, provider: str) -> Mapping[str, Any]:
    """Return the entry of a provider's model, by the provider's own name for it; {} if the list has none."""
    for name in (f"{provider}/{model}", model):
        entry = model_list().get(name)
        if entry is not None and entry.get("litellm_provider") == provider:
            return entry
    return {}


def listed_info(entry: Mapping[str, Any], *, provider: str) -> ModelInfo:
    """Return the facts of an entry; {} has none but the provider."""
    return ModelInfo(
        provider=provider,
        tools=entry.get("supports_function_calling"),
        images=entry.get("supports_vision"),
        context_tokens=entry.get("max_input_tokens") or entry.get("max_tokens"),
        priced=is_priced(entry),
    )


def is_priced(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has a price for input and output. litellm treats a missing price as 0."""
    return all(entry.get(f"{way}_cost_per_token") is not None for way in ("input", "output"))


def cost_usd(entry: Mapping[str, Any], usage: Mapping[str, Any]) -> float | None:
    """Return the cost of an answer by its model's entry; None if that has no price, or if no tokens were reported.

    usage is in OpenAI's form, with `cache_creation_input_tokens` if the provider reports them; `prompt_tokens` is all
    that was read. For many models input and output cost more above some number of tokens in the prompt.
    """
    prompt, output = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
    if not prompt or not is_priced(entry):
        return None
    limits = sorted((int(match[1]) for key in entry if (match := _TIER.fullmatch(key))), reverse=True)
    tier = next((f"_above_{limit}k_tokens" for limit in limits if prompt > limit * 1000), "")

    def price(name: str, default: float = 0.0) -> float:
        tier_price = entry.get(name + tier) if tier else None
        return float(next((value for value in (tier_price, entry.get(name)) if value is not None), default))

    cached = min(_detail(usage, "prompt", "cached_tokens"), prompt)
    written = min(token_count(usage.get("cache_creation_input_tokens")), prompt - cached)
    reasoned = min(_detail(usage, "completion", "reasoning_tokens"), output)
    read, out = price("input_cost_per_token"), price("output_cost_per_token")
    return (
        (prompt - cached - written) * read
        + cached * price("cache_read_input_token_cost", read)
        + written * price("cache_creation_input_token_cost", read)
        + (output - reasoned) * out
        + reasoned * price("output_cost_per_reasoning_token", out)
    )


def _detail(usage: Mapping[str, Any], of: str, name: str) -> int:
    details = usage.get(f"{of}_tokens_details")
    return token_count(details.get(name)) if isinstance(details, dict) else 0
