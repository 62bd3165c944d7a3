"""YAML that nobody trusts: numbers as Compose reads them, each key once, and no more than stands in the text."""

from __future__ import annotations

from typing import Any

import pytest

from ohsandbox.strict_yaml import InvalidYaml, parse_yaml


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("22:22", "22:22"), ("1:30:30.5", "1:30:30.5"), ("2026-11-28", "2026-11-28"), ("=", "="),
        ("0", 0), ("-1_000", -1000), ("0o17", 15), ("017", 15), ("08", "08"), ("0x1F", 31), ("0b11", 3),
        ("18446744073709551615", 2**64 - 1), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0),
        ("-2.5E-1", -0.25), ("1.2.3", "1.2.3"), ("1e", "1e"), ("!!str 5", "5"), ("!!int 5", 5), ("~", None),
        ("true", True), ("FALSE", False), ("yes", "yes"), ("on", "on"), ("No", "No"), ("y", "y"), ("!!bool yes", True),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00"), ("2026-13-01", "2026-13-01"),
        ('"5"', "5"), ("'.inf'", ".inf"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(scalar: str, value: Any) -> None:
    read = parse_yaml(f"a: {scalar}").value["a"]
    plain = str(read) if isinstance(read, str) else read  # one that Compose reads in another way is still a text
    assert (type(plain), plain) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\na: " + "9" * 5000, f"line 2: the number {'9' * 40} is too large: quote it if it is text"),
        ("a: 0x" + "f" * 5000, f"line 1: the number 0x{'f' * 38} is too large: quote it if it is text"),
        ("a: 18446744073709551616", "line 1: the number 18446744073709551616 is too large"),
        ("a: 1e400", "line 1: the number 1e400 is too large: quote it if it is text"),
        ("a: .inf", "line 1: '.inf' is not a finite number"),
        ("a: -.NAN", "line 1: '-.NAN' is not a finite number"),
        ("a: !!int 1:30", "line 1: '1:30' is not a finite number"),
        ("a: !!float 1:30.5", "line 1: '1:30.5' is not a finite number"),
        ("a: !!bool x", "not YAML: 'x' is not a boolean"),
        ("a: !!timestamp 2026-11-28", "line 1: not YAML: could not determine a constructor for the tag"),
        ("a: !!binary YQ==", "line 1: not YAML: could not determine a constructor for the tag"),
        ("!!python/object/apply:os.system [id]", "line 1: not YAML: could not determine a constructor for the tag"),
        ("1: a\n0x1: b", "line 2: key '0x1' is there twice, first in line 1"),
        ('1: a\n"1": b', "line 2: key '1' is there twice, first in line 1"),
        ("True: a\ntrue: b", "line 2: key 'true' is there twice, first in line 1"),
        ("a: 1\n" * 1000, "key 'a' is there twice, first in line 1; and 979 more"),
        ("? [a]\n: b", "line 1: not YAML: found unhashable key"),
        ("a: &a [*a]", "line 1: refers to itself by an alias"),
        ("a: *b", "line 1: not YAML: found undefined alias"),
        ("a: \0", "line 1: not YAML: "),
        ("a: \ud800", "not YAML: "),
        ('a: "\\ud800"', "line 1: not YAML: "),
        ("[" * 100_000, "not YAML: exceeded maximum nesting depth"),
        ("- " * 100_000, "line 1: is nested more than 64 levels deep"),
        ("a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100)), "nested more than 64"),
        ("a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)), "too many"),
        ("a: &a {" + ",".join(f"k{i}: 1" for i in range(5000)) + "}\nb:\n" + "- {<<: *a}\n" * 5000, "too many"),
        ("%TAG !a! b\n" * 101 + "---\na", "has more than 100 %TAG directives"),
        ("a: 1\n---\nb: 2", "line 2: not YAML: but found another document"),
    ],
)  # fmt: skip
def test_a_hostile_text_is_told_with_its_line_and_is_no_other_error(text: str, fault: str) -> None:
    with pytest.raises(InvalidYaml) as caught:
        parse_yaml(text)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_merged_keys_give_way_to_those_that_are_written() -> None:
    assert parse_yaml("a: &a {k: 1, l: 1}\nb: {<<: *a, k: 2}").value["b"] == {"k": 2, "l": 1}


@pytest.mark.parametrize("text", ["!!seq =:", "!!map 3? ` : x", "? !!seq\n: 1"])
def test_a_key_that_claims_to_be_a_list_is_a_fault_of_the_text(text: str) -> None:
    with pytest.raises(InvalidYaml, match=r"not YAML: \S+"):
        parse_yaml(text)
