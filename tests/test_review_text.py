from __future__ import annotations

import re
import time
import unicodedata

import pytest

from ohsandbox.review_text import concealed_in, on_one_line, visible

HIDDEN = [
    "\r", "\x1b", "\x00", "\x08", "\x7f", "\x85", "\x9b", "\x9d", "\xa0", "\xad", "\u034f", "\u061c", "\u115f",
    "\u1160", "\u180e", "\u2003", "\u200b", "\u200d", "\u202e", "\u2028", "\u2029", "\u2066", "\u2800", "\u3000",
    "\u3164", "\ud800", "\udcff", "\ue000", "\ufe0f", "\ufeff", "\uffa0", "\ufff9", "\U000e0041", "\U000e0100",
]  # fmt: skip


def read_back(shown: str) -> str:
    """What `visible` was given, from what it gave."""

    def character(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) * int(found[2] or 1)

    return re.sub(r"\\u\{([0-9a-fA-F]+)(?:\*(\d+))?\}", character, shown)


@pytest.mark.parametrize("character", HIDDEN, ids=ascii)
def test_a_hidden_character_is_spelt_out_and_told(character: str) -> None:
    text = f"a{character}b"
    assert visible(text) == rf"a\u{{{ord(character):x}}}b"
    assert len(concealed_in(text)) == 1
    assert read_back(visible(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "awk 'BEGIN{system(\"x\")}' #\rls -la /workspace",
        "x = 1 \x1b]0;y\x07",
        r"a literal \u{202e} beside a real " + "\u202e",
        r"\u{5c}u{202e} \\u{20*300} \u{} \u{zz}",
        "p\u0430ypal",
        "one" + " " * 500 + "two",
        "one" + "\t" * 100 + " " * 3 + "two\n" + " " * 70,
    ],
    ids=ascii,
)
def test_nothing_is_deleted(text: str) -> None:
    assert read_back(visible(text)) == text


def test_different_texts_are_shown_differently() -> None:
    texts = ["\u202e", r"\u{202e}", r"\u{5c}u{202e}", r"\\u{202e}", " " * 300, r"\u{20*300}", "p\u0430y", r"p\u{430}y"]
    assert len({visible(text) for text in texts}) == len(texts)


def test_what_is_read_every_day_stays_as_it_is() -> None:
    text = "\tnaïve café, Привет мир, файл_test, Δx, μs, 東京, שלום, ❤️ 👩‍💻 1️⃣ ✅, `x`\n\n    return\n"
    assert visible(text) == text
    assert concealed_in(text) == []


@pytest.mark.parametrize("text", ["p\u0430ypal", "sud\u043e rm", "\u0430_config", "\u0391pt"], ids=ascii)
def test_a_word_that_mixes_look_alike_letters_is_marked_and_told(text: str) -> None:
    assert visible(text).isascii()
    assert [why for why in concealed_in(text) if "look-alike" in why]


def test_no_run_of_blanks_or_empty_lines_pushes_text_out_of_sight() -> None:
    assert visible("ls" + " " * 5000 + "; rm -rf x") == r"ls\u{20*5000}; rm -rf x"
    assert visible("ls" + "\n" * 5000 + "rm -rf x") == "ls\n\\u{a*4999}\nrm -rf x"
    assert visible("ls\n" + " \t\n" * 5000 + "rm -rf x").count("\n") == 2


def test_marks_that_pile_up_are_spelt_out() -> None:
    assert visible("e\u0302\u0301") == "e\u0302\u0301"
    assert visible("a" + "\u0301" * 4) == "a\u0301\u0301" + r"\u{301}\u{301}"
    assert concealed_in("a" + "\u0336" * 40)


def test_one_line_stays_one() -> None:
    shown = on_one_line(visible("a\nb\tc\r\u2028d\x85e\x0bf"))
    assert shown == r"a\u{a}b\u{9}c\u{d}\u{2028}d\u{85}e\u{b}f"
    assert shown.splitlines() == [shown]


def test_all_that_unicode_calls_control_format_or_blank_is_hidden() -> None:
    missed = [
        hex(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"}
        and chr(code) not in "\n\t "
        and visible(chr(code)) == chr(code)
    ]
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [" \t", "\n \n", "\u202e", "a\u0430", "❤\ufe0f", r"\u{20", "\\", "_\u0444", " " * 65 + "x", "\n", "\u0301"],
    ids=ascii,
)
def test_time_grows_with_the_text_and_no_faster(seed: str) -> None:
    def spent_s(size: int) -> float:
        text = seed * (size // len(seed))
        began = time.process_time()
        visible(text)
        concealed_in(text)
        return time.process_time() - began

    small = max(min(spent_s(100_000) for _ in range(3)), 0.002)
    assert spent_s(800_000) < 40 * small  # eight times the text; a square would be 64
