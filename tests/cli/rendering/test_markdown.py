"""An answer while it is written."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from ohsandbox import events
from ohsandbox.cli.rendering import text as printable
from ohsandbox.cli.rendering.markdown import StreamedMarkdown
from ohsandbox.cli.rendering.terminal import RichView
from ohsandbox.llm.chat import DeltaEvent, RetryEvent
from ohsandbox.secrets import Masker
from tests.cli.test_terminal import HOSTILE, assert_harmless
from tests.fakes import stamp

SECRET = "s3cret-välue\n\nof two paragraphs"
TEXT = f"# One\n\n{SECRET} and\nmore\n\n```\ncode\n\nstill code\n```\n\n- é\n- last"


def _pieces(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(text)), 12))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.fixture
def secret() -> Masker:
    return Masker({"KEY": SECRET})


@pytest.mark.parametrize("seed", range(20))
def test_blocks_and_rest_are_the_masked_text_however_it_was_cut(secret: Masker, seed: int) -> None:
    answer = StreamedMarkdown(secret)
    blocks = [block for piece in _pieces(TEXT, seed) for block in answer.feed(piece)]
    final = secret.mask(TEXT)
    assert blocks == ["# One\n\n", "<secret:KEY> and\nmore\n\n", "```\ncode\n\nstill code\n```\n\n"]
    assert "".join(blocks) + answer.end(final) == final


def test_the_beginning_of_a_secret_is_not_in_sight(secret: Masker) -> None:
    answer = StreamedMarkdown(secret)
    assert answer.feed(f"The key is {SECRET[:12]}") == []
    assert answer.tail == "The key is "


def test_a_final_text_that_is_another_one_is_told_whole(secret: Masker) -> None:
    answer = StreamedMarkdown(secret)
    assert answer.feed("One.\n\nTwo") == ["One.\n\n"]
    assert answer.end("Other.") == "Other."


def _view() -> tuple[RichView, io.StringIO]:
    out = io.StringIO()
    return RichView(Console(file=out, force_terminal=True, width=60, color_system="standard")), out


def test_each_paragraph_is_printed_once_and_before_the_answer_is_over() -> None:
    view, out = _view()
    view.stream(DeltaEvent(text="First paragraph.\n\nSec"))
    assert out.getvalue().count("First paragraph.\n") + out.getvalue().count("First paragraph. ") == 1
    view.stream(DeltaEvent(text="ond."))
    [event] = stamp(events.assistant_message("First paragraph.\n\nSecond.", response_id="r", finish_reason="stop"))
    view.show(event)
    view.status("")
    assert out.getvalue().count("First paragraph.") == 1
    assert "Second." in out.getvalue().rpartition("First paragraph.")[2]


def test_an_answer_that_breaks_off_is_said_to_begin_again() -> None:
    view, out = _view()
    view.stream(DeltaEvent(text="One.\n\nTw"))
    view.stream(RetryEvent(attempt=1, wait_s=0.0, reason="cut"))
    assert "begins again" in out.getvalue()


def test_no_control_and_no_secret_reaches_the_terminal_letter_by_letter(
    secret: Masker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printable, "_maskers", [secret])
    view, out = _view()
    text = "\n\n".join([*HOSTILE, SECRET, "\ud800 end"])
    for letter in text:
        view.stream(DeltaEvent(text=letter))
    assert "clipboard" in out.getvalue()
    assert "cret-v" not in out.getvalue()
    assert_harmless(out.getvalue().encode())
