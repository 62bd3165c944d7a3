"""Whatever a task is called and a verifier prints: every report stays what it is."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox.evaluation.reports import read_results, write_reports
from tests.evaluation.results import trial, write_run

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
MARKUP = st.sampled_from(
    ["<", ">", "&", '"', "'", "`", "|", "]]>", "</script>", "-->", "\n", "\r", "\0", "\x1b[", "\\"]
)
NAMES = st.one_of(ANY_TEXT, st.lists(st.one_of(MARKUP, ANY_TEXT), min_size=1, max_size=6).map("".join))
LEGAL = re.compile("[\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


@settings(max_examples=60, deadline=None)
@given(name=NAMES, output=st.one_of(st.binary(max_size=300), NAMES.map(str.encode)))
def test_reports_hold_any_name_and_any_output(name: str, output: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = write_run(Path(place), [trial(name, "fail", notes=[name]), trial("plain")], output=output)
        write_reports(read_results([run]), run)
        assert json.loads((run / "report.json").read_text())["tasks"][0]["id"] == name
        assert len(ET.fromstring((run / "junit.xml").read_bytes()).findall(".//testcase")) == 2
        page, summary = ((run / file).read_text() for file in ("report.html", "summary.md"))
    assert LEGAL.fullmatch(page)
    assert page.count("<script>") == page.count("</script>") == page.count("</body>") == 1
    assert page.count("<details") == page.count("</details>") == 3
    row = next(line for line in summary.splitlines() if line.endswith("| `reward 0` |"))
    assert re.fullmatch(r"\| `[^`|]+` \| 1 \| fail \| 2\.0 s \| `reward 0` \|", row)
