"""What answers cost: by the price that was given, else by litellm's list, else unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.llm import LLM, ChatResponse, LLMConfig
from ohsandbox.price import ModelPrice
from ohsandbox.testing.provider import FakeProvider, text

pytestmark = pytest.mark.usefixtures("each_client")

Ask = Callable[..., ChatResponse]


def test_given_price_stands_above_the_list_and_counts_input_and_output(ask: Ask) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 800}}
    with FakeProvider(text("x", usage=usage), text("x", usage=usage)) as provider:
        unlisted = ask(provider, price=ModelPrice(2, 50))
        listed = ask(provider, model="openai/gpt-4o", price="2,50")
    assert unlisted.cost_usd == listed.cost_usd == 0.0025


def test_cost_by_a_given_price_is_unknown_where_no_tokens_were_told(ask: Ask) -> None:
    with FakeProvider(text("x", usage=None)) as provider:
        assert ask(provider, price="2,50").cost_usd is None


@pytest.mark.parametrize(
    ("model", "price", "has_price"),
    [
        ("openai/gpt-4o", None, True),
        ("anthropic/claude-sonnet-4-5", None, True),
        ("gemini/gemini-2.5-pro", None, True),
        ("openai/my-own", None, False),
        ("no-such-model", None, False),
        ("openai/my-own", "0,0", True),
    ],
)
def test_a_model_says_whether_its_price_is_known(model: str, price: str | None, *, has_price: bool) -> None:
    assert LLM(LLMConfig.model_validate({"model": model, "price": price})).has_price is has_price


@pytest.mark.parametrize("price", ["3", "3,", "3,x", "-1,2", "3,15,1", "nan,1", (1,), [1, 2, 3], 3])
def test_a_wrong_price_is_refused(price: object) -> None:
    with pytest.raises(UsageError, match="price"):
        LLMConfig(model="openai/x", price=price)
