from __future__ import annotations

import base64
import itertools
import json
import random
import re
import textwrap
import unicodedata
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ohsandbox.secrets import Masker
from ohsandbox.secrets.encodings import encodings_of

TOKEN = "ghp_Zx81kQ0aVn72LmWq55TtPo39RsYb"
AWKWARD = 'p@ss "w\'rd"/$x\\y+z&äö'
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nshort\n  AQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"


def forms(value: str) -> dict[str, str]:
    raw = value.encode()
    return {
        "raw": value,
        "url": quote(value, safe=""),
        "json": json.dumps(value),
        "json, not ascii": json.dumps(value, ensure_ascii=False),
        "json in json": json.dumps(json.dumps(value)),
        "repr": repr(value),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        **{f"base64 at {n}": base64.b64encode(b"xyz"[:n] + raw + b"tail").decode() for n in range(3)},
        **{f"urlsafe at {n}": base64.urlsafe_b64encode(b"xyz"[:n] + raw).decode() for n in range(3)},
    }


@pytest.mark.parametrize("form", forms(TOKEN))
@pytest.mark.parametrize("value", [TOKEN, AWKWARD])
def test_every_form_is_masked_in_text_and_in_streams(value: str, form: str) -> None:
    masker = Masker({"T": value})
    text = f"before {forms(value)[form]} after"
    masked = masker.mask(text)
    assert "<secret:T>" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert not any(one in masked for one in encodings_of(value))
    assert in_pieces(masker, text, [*range(len(text))]) == masked


def in_pieces(masker: Masker, data: str, cuts: list[int]) -> str:
    stream = masker.stream()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return "".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges)) + stream.flush()


SECRETS = {
    "A": "abcdefgh",
    "B": "abcdefghijkl",  # A is its beginning
    "C": "ghabcdefab",  # overlaps both, at either end
    "D": "aaaaaaaa",  # overlaps itself
    "E": "ababababab",
}
PARTS = st.sampled_from([*SECRETS.values(), "a", "b", "ab", "abcdefg", "gh", "ijkl", "aaaa", "x", " ", "\n"])


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(parts=st.lists(PARTS, max_size=14), cuts=st.lists(st.integers(0, 200), max_size=12))
@example(parts=["a"] * 30, cuts=[*range(30)])
def test_a_stream_gives_what_the_whole_gives_however_it_is_cut(parts: list[str], cuts: list[int]) -> None:
    masker, data = Masker(SECRETS), "".join(parts)
    whole = masker.mask(data)
    assert in_pieces(masker, data, cuts) == whole
    assert not any(value in whole for value in SECRETS.values())


def test_random_streams_leak_nothing() -> None:
    rng = random.Random(7)
    values = {"T": TOKEN, "W": AWKWARD, "P": PEM}
    masker = Masker(values)
    forms = [form for value in values.values() for form in encodings_of(value)]
    for _ in range(500):
        data = "".join(rng.choice(forms)[: rng.choice([99999, 5, 20])] + rng.choice(["", " "]) for _ in range(12))
        cuts = [rng.randrange(len(data) + 1) for _ in range(rng.randrange(30))]
        given_out = in_pieces(masker, data, cuts)
        assert given_out == masker.mask(data)
        assert not any(form in given_out for form in forms)


LONG = "abcdefghijklmnopqrstuvwx"
PIECES = st.lists(
    st.one_of(
        st.builds(
            lambda form, start, width, gap: gap.join([form[:start], *textwrap.wrap(form[start:], width)]),
            st.sampled_from(sorted(form for value in (LONG, "ab" * 8, "aa/bb/ab") for form in encodings_of(value))),
            st.integers(0, 12), st.sampled_from([1, 2, 3, 7, 8, 11, 99]), st.sampled_from(["\n", " ", ":", "\r\n  "]),
        ),
        st.sampled_from([" ", "\n", "x", "a", "ab", "YW", " " * 40]),
    ),
    max_size=6,
)  # fmt: skip


def as_defined(values: dict[str, str], data: str) -> str:
    """What `mask` has to give, as slowly and plainly as it can be said."""
    spans = []
    for name, value in values.items():
        for form in encodings_of(value):
            between = ""
            run = 2 if re.fullmatch("[0-9a-f]+|[0-9A-F]+", form) else 8
            if re.fullmatch("[A-Za-z0-9+/_-]{16,}", form):
                between = r"[ \t\r\n:]*"
            regex = re.escape(form[:run]) + "".join(between + re.escape(c) for c in form[run:])
            found = re.finditer(f"(?=({regex}))", data)
            spans += [(m.start(), -len(form), m.end(1), name) for m in found if len(m[1]) <= 2 * len(form)]
    out, done = "", 0
    for start, _, end, name in sorted(spans):
        if start >= done:
            out += data[done:start] + f"<secret:{name}>"
        done = max(done, end)
    return out + data[done:]


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(pieces=PIECES, cuts=st.lists(st.integers(0, 500), max_size=12))
def test_forms_that_are_broken_over_lines_are_masked_in_the_whole_and_in_streams(
    pieces: list[str], cuts: list[int]
) -> None:
    values = {"A": LONG, "B": "ab" * 8, "C": "aa/bb/ab"}
    masker, data = Masker(values), "".join(pieces)
    whole = masker.mask(data)
    assert whole == as_defined(values, data)
    assert in_pieces(masker, data, cuts) == whole


@pytest.mark.parametrize("before", range(0, 80, 7))
@pytest.mark.parametrize("columns", [60, 64, 76])
def test_nothing_of_base64_over_lines_is_left_by_mask_cut(before: int, columns: int) -> None:
    value = "".join(random.Random(1).choices("abcdefghijklmnop0123456789", k=400))
    encoded = base64.b64encode(b"x" * before + value.encode() + b"tail of the file").decode()
    text = "\n    ".join(encoded[at : at + columns] for at in range(0, len(encoded), columns))
    masked = Masker({"T": value}).mask_cut(f"data: {text}\n")
    assert masked.count("<secret:T>") == 1
    assert len(masked) < 2 * before + 60


@pytest.mark.parametrize("count", [1, 3, 30, 1000])
def test_one_of_many_values_is_found_wherever_it_begins(count: int) -> None:
    rng = random.Random(3)
    values = {f"T{n}": "".join(rng.choices("abcdefghij", k=rng.choice([8, 11, 16, 40]))) for n in range(count)}
    masker = Masker(values)
    for name, value in [*values.items()][:: max(1, count // 8)]:
        for before in range(9):
            for text in (value, value.encode().hex()):
                assert masker.mask(f"{'.' * before}{text}.") == f"{'.' * before}<secret:{name}>."


def test_a_value_that_is_not_utf_8_is_masked_as_output_shows_it() -> None:
    shown = b"abc\xffdefghij".decode("utf-8", "replace")
    assert Masker({"X": "abc\udcffdefghij"}).mask(f"is {shown}.") == "is <secret:X>."


def test_the_other_normal_form_of_a_value_is_masked() -> None:
    value = "pässwörd-ü-long"
    masker = Masker({"N": unicodedata.normalize("NFC", value)})
    assert masker.mask(unicodedata.normalize("NFD", f"<{value}>")) == "<<secret:N>>"


def test_text_that_comes_in_pieces_is_masked_and_comes_back_as_it_was() -> None:
    stream = Masker({"T": TOKEN}).stream()
    pieces = ["ü \ud800 ", TOKEN[:9], TOKEN[9:], " gh", "p_"]
    assert [stream.feed(piece) for piece in pieces] == ["ü \ud800 ", "", "<secret:T>", " ", ""]
    assert stream.flush() == "ghp_"


def test_half_a_character_is_never_cut_off() -> None:
    value = "äöüßäöüßäöüßäöüßäöüß"
    assert Masker({"T": value}).mask_cut(f"{value[:10]}é ü{value[-10:]}") == "<secret:T>é ü<secret:T>"


def test_ordinary_output_is_not_held_back() -> None:
    stream = Masker({"T": TOKEN}).stream()
    assert stream.feed("Continue? [y/N] ") == "Continue? [y/N] "
    assert stream.feed("is ghp_") == "is "
    assert stream.feed("x") == "ghp_x"


@pytest.mark.slow
def test_what_is_held_back_of_an_endless_value_is_bounded() -> None:
    stream = Masker({"D": "a" * 20}).stream()
    out = "".join(stream.feed("a" * 1000) for _ in range(1000))
    assert out == "<secret:D>"
    assert stream.flush() == ""


@pytest.mark.parametrize("value", ["", "1234567", "äöü"])
def test_a_short_value_is_not_looked_for(value: str) -> None:
    assert not Masker({"S": value})
    assert Masker({"S": value}).mask(f"pin {value}") == f"pin {value}"


def test_of_several_lines_each_long_one_is_masked_and_no_boundary() -> None:
    masked = Masker({"KEY": PEM}).mask("x MIIEvQIBADANBgkqhkiG9w0B y\n-----BEGIN KEY-----\nshort")
    assert masked == "x <secret:KEY> y\n-----BEGIN KEY-----\nshort"


def test_values_side_by_side_are_two_and_overlapping_ones_one() -> None:
    masker = Masker(SECRETS)
    assert masker.mask("abcdefghabcdefgh".replace("ha", "h a")) == "<secret:A> <secret:A>"
    assert masker.mask(TOKEN + "abcdefghijklabcdefgh") == f"{TOKEN}<secret:B><secret:A>"
    assert masker.mask("abcdefghabcdefab") == "<secret:A>"


def test_halves_at_a_cut_are_masked() -> None:
    masker = Masker({"T": TOKEN})
    half = len(TOKEN) // 2
    assert masker.mask_cut(f"{TOKEN[:half]}\n[... cut ...]\n{TOKEN[half - 1 :]} end") == (
        "<secret:T>\n[... cut ...]\n<secret:T> end"
    )
    assert masker.mask_cut(f"{TOKEN[:5]} {TOKEN}") == f"{TOKEN[:5]} <secret:T>"


@pytest.mark.parametrize("cut", range(len(TOKEN) + 8))
def test_around_a_gap_nothing_of_a_value_is_left(cut: int) -> None:
    masker = Masker({"T": TOKEN})
    text = f"1234{TOKEN}5678"
    kept = masker.mask_window(text[:cut], before_gap=True) + "|" + masker.mask_window(text[cut:], after_gap=True)
    assert not re.search("|".join(re.escape(TOKEN[i : i + 3]) for i in range(len(TOKEN) - 2)), kept)
    assert kept.startswith("1234"[:cut])
    assert kept.endswith("5678"[max(0, cut - len(TOKEN) - 4) :])


@pytest.mark.parametrize("cut", range(1, 60))
def test_around_a_gap_no_line_of_a_value_is_left(cut: int) -> None:
    lines = "user anna\nA-password-of-one-line\nport 1234\n"
    masker = Masker({"T": lines})
    text = f"....\n{lines}....\n"
    kept = masker.mask_window(text[:cut], before_gap=True) + "|" + masker.mask_window(text[cut:], after_gap=True)
    assert not re.search("anna|pass|1234", kept)
    assert masker.mask_window(text, after_gap=True, before_gap=True) == "....\n<secret:T>....\n"


def test_json_is_masked_throughout_but_for_images() -> None:
    picture = f"data:image/png;base64,iVBORw0KGgo{base64.b64encode(TOKEN.encode()).decode()}"
    value = {TOKEN: [1, None, True, {"a": f"x{TOKEN}"}], "images": [picture]}
    masked = Masker({"T": TOKEN}).mask_json(value)
    assert masked == {
        "<secret:T>": [1, None, True, {"a": "x<secret:T>"}],
        "images": [picture],
    }


@pytest.mark.parametrize(
    "text",
    [
        'data: {"key": "%s"}', "data:%s", "data:,%s", "data:text/plain,%s", "data:image/png;base64,%s",
        "data:image/png;base64,iVBORw0KGgo=\nand %s", "data:image/svg+xml,%s", "data:image/jpeg;base64,iVBORw0KGgo%s",
    ],
)  # fmt: skip
def test_a_text_of_json_that_only_begins_as_an_image_is_masked(text: str) -> None:
    assert TOKEN not in Masker({"T": TOKEN}).mask_json([text % TOKEN])[0]


def test_without_secrets_nothing_is_copied() -> None:
    value = {"a": ["b"]}
    assert Masker().mask_json(value) is value


def test_no_value_stands_in_a_repr() -> None:
    assert repr(Masker({"T": TOKEN})) == "Masker(T)"


HIDDEN = "sk-ant-api03-8dKw0Pz4uEjB6yGh2XfNv7CqMi"
ENCODED = sorted(encodings_of(HIDDEN))
BROUGHT = st.lists(
    st.one_of(
        st.builds(
            lambda form, start, size: form[start : start + min(size, (len(form) - 1) // 2 - 1)],
            st.sampled_from(ENCODED), st.integers(0, 60), st.integers(1, 60),
        ),
        st.sampled_from(["\n", " ", "x", "sk-ant-api03-", "é"]),
    ),
    max_size=3,
).map("|".join)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(text=BROUGHT)
def test_less_than_half_of_a_hidden_value_changes_nothing_of_what_a_model_reads(text: str) -> None:
    masker, other = Masker(hidden={"K": HIDDEN}), Masker()
    for gap in ({}, {"after_gap": True}, {"before_gap": True}, {"before_gap": True, "after_gap": True, "cut": True}):
        assert masker.mask_window(text, **gap) == other.mask_window(text, **gap) == text
    assert masker.mask_cut(text) == text


@pytest.mark.parametrize("right", range(0, len(HIDDEN) // 2, 3))
def test_around_half_of_a_hidden_value_a_right_guess_looks_like_a_wrong_one(right: int) -> None:
    masker = Masker({"T": TOKEN}, hidden={"K": HIDDEN})
    half = len(HIDDEN) // 2 + 1
    guess = (HIDDEN[:half] + HIDDEN[half : half + right]).ljust(len(HIDDEN) - 1, "~") + " end"
    wrong = (HIDDEN[:half] + "0" * right).ljust(len(HIDDEN) - 1, "~") + " end"
    assert masker.mask_cut(guess) == masker.mask_cut(wrong)
    assert masker.mask_cut(f"is {HIDDEN[:half]}\n{TOKEN[1:]}") == "is <secret:K>\n<secret:T>"


def test_a_hidden_value_is_masked_wherever_it_stands_whole() -> None:
    masker = Masker({"T": TOKEN}, hidden={"K": HIDDEN, "T": HIDDEN[::-1]})
    for form in forms(HIDDEN).values():
        assert "<secret:K>" in masker.mask(form)
        assert masker.mask_cut(f"x {HIDDEN[::-1]} {form} y").startswith("x <secret:T> ")
        assert HIDDEN[20:] not in masker.mask_cut(form)
    assert in_pieces(masker, f"<{HIDDEN}>", [*range(40)]) == "<<secret:K>>"
