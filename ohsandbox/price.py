"""`ModelPrice`: what a model's tokens cost, as a person gives it where no list has it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

_MILLION = 1_000_000
_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelPrice(NamedTuple):
    """US dollars for a million tokens. Tokens that a provider had in its cache count as input in full."""

    input_usd: _Usd
    output_usd: _Usd

    def cost_usd(self, *, prompt_tokens: int, completion_tokens: int) -> float:
        """What an answer of so many tokens costs."""
        return (prompt_tokens * self.input_usd + completion_tokens * self.output_usd) / _MILLION


def _pair(value: Any) -> Any:
    """`"3,15"` as two numbers; anything else as it is."""
    if not isinstance(value, str):
        return value
    numbers = value.split(",")
    if len(numbers) != len(ModelPrice._fields):
        raise ValueError("expected IN,OUT: US dollars for a million tokens of input and of output, as in 3,15")
    return numbers


GivenPrice = Annotated[ModelPrice, BeforeValidator(_pair)]
"""In a configuration: a ModelPrice, two numbers, or the text `IN,OUT`."""
