"""`ModelPrice`: the price of a model's tokens, given by a person where no price list has it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

_MILLION = 1_000_000
_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelPrice(NamedTuple):
    """A price in US dollars for a million tokens. Tokens that a provider had in its cache count as input in full."""

    input_usd: _Usd
    output_usd: _Usd

    def cost_usd(self, *, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost of an answer of so many tokens."""
        return (prompt_tokens * self.input_usd + completion_tokens * self.output_usd) / _MILLION


def _pair(value: Any) -> Any:
    """Parse `"3,15"` into two numbers; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    numbers = value.split(",")
    if len(numbers) != len(ModelPrice._fields):
        raise ValueError("expected IN,OUT: US dollars for a million tokens of input and of output, as in 3,15")
    return numbers


GivenPrice = Annotated[ModelPrice, BeforeValidator(_pair)]
"""A price in a configuration: a ModelPrice, two numbers, or the text `IN,OUT`."""
