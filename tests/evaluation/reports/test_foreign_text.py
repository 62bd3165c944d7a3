import re
from pathlib import Path

import pytest

from ohsandbox.evaluation.reports.foreign_text import MAX_NAME_CHARS, message_line, name, output_tail, terminal_text
from tests.evaluation.results import HOSTILE_NAMES


@pytest.mark.parametrize("text", HOSTILE_NAMES)
def test_a_name_is_one_visible_line(text: str) -> None:
    assert name(text).isprintable()
    assert len(name(text * 100)) == MAX_NAME_CHARS


def test_names_that_look_alike_stay_apart() -> None:
    assert name("a\u202eb") == "a\\u{202e}b"
    assert name("a\\u{202e}b") == "a\\u{5c}u{202e}b"


def test_a_message_is_one_line() -> None:
    assert message_line("first\n\n  second\x07") == "first second\\u{7}"


def test_output_is_as_its_terminal_would_show_it_in_legal_characters() -> None:
    assert terminal_text("\x1b[31mred\x1b[0m\n1%\r100%\n") == "red\n100%\n"
    every = terminal_text("".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000)])))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]", every)


def test_the_outputs_of_steps_follow_each_other_with_their_names(tmp_path: Path) -> None:
    for step in ("a", "b"):
        place = tmp_path / "steps" / step / "verifier"
        place.mkdir(parents=True)
        (place / "test-stdout.txt").write_text(f"output of {step}\n")
    assert output_tail(tmp_path) == "--- step a, verifier ---\noutput of a\n\n--- step b, verifier ---\noutput of b\n"


def test_a_link_in_the_place_of_the_output_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "trial" / "verifier").mkdir(parents=True)
    (tmp_path / "trial" / "verifier" / "test-stdout.txt").symlink_to(tmp_path / "secret")
    assert output_tail(tmp_path / "trial") == ""
    assert output_tail(None) == ""


def test_what_the_agent_printed_stands_before_the_verifier_where_it_is_asked_for(tmp_path: Path) -> None:
    for place, text in (("agent/oracle.txt", "denied\n"), ("verifier/test-stdout.txt", "missing\n")):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_text(text)
    assert output_tail(tmp_path) == "missing\n"
    assert output_tail(tmp_path, of_agent=True) == "--- agent, oracle.txt ---\ndenied\n\n--- verifier ---\nmissing\n"
