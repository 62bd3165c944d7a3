import pytest

from ohsandbox.llm.text import encodable, encodable_tree, one_line, redact


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


@pytest.mark.parametrize("key", ["sk-ant-api03-abcdefgh", "xai-abcdefgh1", "AIzaSyabcdefgh", "sk-abc***wxyz12"])
def test_what_looks_like_a_key_is_hidden(key: str) -> None:
    assert redact(f"key {key}, sir", ()) == "key ***, sir"


def test_secrets_are_hidden_before_the_text_is_cut() -> None:
    assert one_line("x" * 295 + "secret-0123456789", {"secret-0123456789"}) == "x" * 295 + "***"


def test_a_placeholder_is_no_secret() -> None:
    assert redact("a next text", {"x", ""}) == "a next text"
