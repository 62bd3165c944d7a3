from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from ohsandbox.evaluation.reports import read_results
from ohsandbox.evaluation.reports.junit import junit_xml
from tests.evaluation.results import HOSTILE_NAMES, HOSTILE_OUTPUT, trial, write_run

if TYPE_CHECKING:
    from pathlib import Path

READERS_ACCEPT = {
    "testsuites": ({"testsuite"}, {"name", "time", "tests", "failures", "disabled", "errors"}),
    "testsuite": (
        {"properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id", "file"},
    ),
    "properties": ({"property"}, set()),
    "property": (set(), {"name", "value"}),
    "testcase": (
        {"skipped", "error", "failure", "system-out", "system-err"},
        {"name", "assertions", "time", "timestamp", "classname", "status", "file", "line"},
    ),
    **{name: (set(), {"type", "message"}) for name in ("skipped", "error", "failure")},
    **{name: (set(), set()) for name in ("system-out", "system-err")},
}
"""Elements with their children and attributes: of the schema junit-10.xsd of Jenkins' xUnit plug-in, what GitLab's
parser and the actions that annotate GitHub's pull requests read, too."""


def _parsed(tmp_path: Path, *args: object, **how: object) -> ET.Element:
    return ET.fromstring(junit_xml(read_results([write_run(tmp_path, *args, **how)])))  # type: ignore[arg-type]


def _assert_accepted(root: ET.Element) -> None:
    assert root.tag == "testsuites"
    for element in root.iter():
        children, attributes = READERS_ACCEPT[element.tag]
        assert {child.tag for child in element} <= children
        assert set(element.keys()) <= attributes
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases)
        for tag in ("failure", "error", "skipped"):
            told = suite.attrib[tag if tag == "skipped" else f"{tag}s"]
            assert int(told) == sum(case.find(tag) is not None for case in cases)
        names = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
        assert len(set(names)) == len(names), "GitLab ignores the second case of a name"
        assert all(re.fullmatch(r"\d+\.\d{3}", case.attrib["time"]) for case in cases)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])


OUTCOMES = {
    "pass": None, "fail": "failure", "agent_error": "failure", "model_error": "error", "verifier_error": "error",
    "infrastructure_error": "error", "invalid": "error",
}  # fmt: skip


def test_each_outcome_has_its_element(tmp_path: Path) -> None:
    root = _parsed(tmp_path, [trial(name, name) for name in OUTCOMES], output=b"the end of the output")  # type: ignore[arg-type]
    _assert_accepted(root)
    for name, tag in OUTCOMES.items():
        case = root.find(f".//testcase[@name='{name}']")
        assert case is not None
        found = [child for child in case if child.tag != "system-out"]
        assert [child.tag for child in found] == ([tag] if tag else [])
        assert case.findtext("system-out") == ("the end of the output" if tag else None)
    told = root.find(".//testcase[@name='agent_error']/failure")
    assert told is not None
    assert told.attrib == {"type": "agent_error.Timeout", "message": "agent: Timeout: it took too long"}


def test_what_is_not_finished_is_skipped(tmp_path: Path) -> None:
    root = _parsed(tmp_path, [trial("a")], attempts=2, tasks={"a": "sha256:1", "b": "sha256:1"})
    _assert_accepted(root)
    assert len(root.findall(".//skipped")) == 3


def test_properties_hold_the_rate_and_the_images(tmp_path: Path) -> None:
    root = _parsed(tmp_path, [trial("a"), trial("b", "fail")])
    found = {one.attrib["name"]: one.attrib["value"] for one in root.iter("property")}
    assert found["pass_rate"] == "0.5000"
    assert found["image.python:3.12"] == "sha256:abc"
    assert found["complete"] == "true"


def test_hostile_names_and_output_are_legal_xml(tmp_path: Path) -> None:
    trials = [trial(name, "fail") for name in (*HOSTILE_NAMES, "x" * 300 + "1", "x" * 300 + "2")]
    run = write_run(tmp_path, trials, output=HOSTILE_OUTPUT)
    text = junit_xml(read_results([run]))
    _assert_accepted(ET.fromstring(text))
    shown = text.decode()
    assert not re.search("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", shown)
    assert "\u202e" not in shown
    assert "<script" not in shown


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_of_long_output_the_end_is_shown(tmp_path: Path, size: int) -> None:
    root = _parsed(tmp_path, [trial("a", "fail")], output=b"x" * size + b"THE END")
    shown = root.findtext(".//system-out") or ""
    assert shown.endswith("THE END")
    assert f"{size + 7 - 4096} bytes before" in shown
    assert len(shown) < 4200
