"""The table of known programs: each entry can be read, and has kinds that the rules know."""

from __future__ import annotations

import re
from pathlib import Path

from ohsandbox.conversation.approvals.rules import known_programs
from ohsandbox.conversation.approvals.rules.known_programs import arguments_of, usage_of
from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

TABLE = Path(known_programs.__file__).with_suffix(".txt").read_text(encoding="utf-8")
HEAD, ENTRIES = TABLE.split("\n\n", 1)
KINDS = set(re.findall(r"[a-z]+", HEAD))


def test_every_kind_of_the_table_is_told_in_its_head() -> None:
    operands = re.findall(r"(?m)^\S[^\n]*?\s+\(([^()]*)\)", ENTRIES)
    used = {kind.rstrip("*?").partition(":")[0] for words in operands for kind in words.split()}
    used |= set(re.findall(r"\s-\S+=([a-z]+)(?=[?:\s]|$)", ENTRIES))
    assert used <= KINDS, used - KINDS


def kinds(line: str) -> list[tuple[str, str]]:
    program, *words = line.split()
    return [(item.kind, item.text) for item in arguments_of(SimpleCommand(program, tuple(words))).items]


def test_options_are_read_as_getopt_reads_them() -> None:
    assert kinds("sort -rno out in") == [("write", "out"), ("read", "in")]
    assert kinds("sort -oout in") == [("write", "out"), ("read", "in")]
    assert kinds("sort --outp=out") == [("write", "out")]
    assert kinds("sort -- -o") == [("read", "-o")]


def test_the_last_operand_of_a_copy_is_written_and_the_others_are_read() -> None:
    assert kinds("cp a b c") == [("tree", "a"), ("tree", "b"), ("write", "c")]
    assert kinds("cp -t d a b") == [("write", "d"), ("tree", "a"), ("tree", "b")]


def test_letters_of_tar_without_a_hyphen_take_their_words_in_order() -> None:
    assert ("archive", "a") in kinds("tar xfC a b")
    assert ("write", "b") in kinds("tar xfC a b")


def test_an_option_or_a_sub_command_that_is_in_no_entry_is_unknown() -> None:
    assert kinds("sort --frob")[0][0] == "unknown"
    assert kinds("git frob x")[0][0] == "unknown sub-command"
    assert usage_of("frob") is None


def test_a_version_in_a_programs_name_does_not_matter() -> None:
    assert usage_of("python3.12") is usage_of("python")
    assert usage_of("gcc-13") is usage_of("gcc")
