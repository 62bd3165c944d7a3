import pytest

from ohsandbox.llm.text import one_line, redact


@pytest.mark.parametrize("key", ["sk-ant-api03-abcdefgh", "xai-abcdefgh1", "AIzaSyabcdefgh", "sk-abc***wxyz12"])
def test_what_looks_like_a_key_is_hidden(key: str) -> None:
    assert redact(f"key {key}, sir", ()) == "key ***, sir"


def test_secrets_are_hidden_before_the_text_is_cut() -> None:
    assert one_line("x" * 295 + "secret-0123456789", {"secret-0123456789"}) == "x" * 295 + "***"


def test_a_placeholder_is_no_secret() -> None:
    assert redact("a next text", {"x", ""}) == "a next text"
