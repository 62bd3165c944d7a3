import fnmatch

import pytest

from ohsandbox.text import cut_middle, encodable, encodable_tree, natural_number, quoted_brackets, quoted_line


@pytest.mark.parametrize("text", ["", "plain", "é \U0001f600", "x" * 1_000_000])
def test_text_that_can_be_encoded_is_left_alone(text: str) -> None:
    assert encodable(text) is text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("plain", "plain"),
        ("a\ud800b", "a\ufffdb"),
        ("a\udc80", "a\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud83d\U0001f600\udc00x", "\ufffd\U0001f600\ufffdx"),
    ],
)
def test_lone_surrogates_are_replaced_and_nothing_else(text: str, made: str) -> None:
    assert encodable(text) == made


def test_a_tree_is_copied() -> None:
    tree = {"a": ["\ud800", {"b": ("x", 1, None)}]}
    assert encodable_tree(tree) == {"a": ["\ufffd", {"b": ["x", 1, None]}]}
    assert tree["a"][0] == "\ud800"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n b\t\x1b[1mc\u202e", "a b [1mc"),
        ("12345678", "12345678"),
        ("123456789", "1234567…"),
        ("", ""),
    ],
)
def test_a_quoted_line_is_bounded_and_printable(text: str, line: str) -> None:
    assert quoted_line(text, limit_chars=8) == line


@pytest.mark.parametrize("length", [0, 9, 10, 11, 1000])
def test_cut_says_exactly_what_is_missing(length: int) -> None:
    text = "".join(chr(97 + i % 26) for i in range(length))
    cut = cut_middle(text, limit_chars=10)
    if length <= 10:
        assert cut == text
    else:
        assert cut == f"{text[:5]}\n[... {length - 10} of {length} characters left out here ...]\n{text[-5:]}"


@pytest.mark.parametrize(
    "pattern", ["[", "[[", "a[b", "[!", "[]", "[]a]", "[a][", "[!]", "x[a-c]y[", "*[", "[[]", "]["]
)
def test_quoted_brackets_mean_what_the_pattern_meant(pattern: str) -> None:
    names = ["[", "[[", "a[b", "[!", "[]", "a", "]", "a[", "b", "xby[", "x[", "]["]
    assert fnmatch.filter(names, quoted_brackets(pattern)) == fnmatch.filter(names, pattern)


@pytest.mark.parametrize(("text", "number"), [("0", 0), (b"12", 12), ("9" * 20, 10**20 - 1)])
def test_a_number_is_read_from_digits(text: str | bytes, number: int) -> None:
    assert natural_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", " 1", "1\n", "²", "٣", "9" * 21, b"1" * 5000, b"\xb2", "1_0"])
def test_what_is_no_number_of_64_bits_is_none(text: str | bytes) -> None:
    assert natural_number(text) is None
