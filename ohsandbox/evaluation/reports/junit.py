"""`junit.xml`: test results in the format that CI systems read.

A suite with a case for each trial. A trial that did not pass is a failure where the agent is at fault, an error where
the verifier, the model, the infrastructure or the task is, and skipped where it is not finished. Elements, attributes
and their order are those of the schema of Jenkins' xUnit plug-in (junit-10.xsd), the strictest of the readers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ohsandbox.evaluation.reports import foreign_text

if TYPE_CHECKING:
    from ohsandbox.evaluation.reports.report import Report, ReportSource
    from ohsandbox.evaluation.results import TrialResult

JUNIT_NAME = "junit.xml"
_SUITE = "ohsandbox eval"
_FAILURES = frozenset({"fail", "agent_error"})


def junit_xml(source: ReportSource) -> bytes:
    """Return the document, in UTF-8."""
    report = source.report
    failures = sum(count for name, count in report.outcomes.items() if name in _FAILURES)
    errors = sum(count for name, count in report.outcomes.items() if name not in _FAILURES | {"pass"})
    counts = {
        "tests": str(report.trials_planned),
        "failures": str(failures),
        "errors": str(errors),
        "time": f"{report.totals.seconds:.3f}",
    }
    root = ET.Element("testsuites", {"name": _SUITE, **counts})
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **counts, "timestamp": _began(report)})
    suite.set("skipped", str(report.trials_planned - report.trials_finished))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ET.SubElement(properties, "property", {"name": name, "value": foreign_text.name(value)})
    cases = _Cases(suite, f"eval.{foreign_text.name(report.agent_name)}")
    limit_bytes = foreign_text.tail_limit(report)
    for result in (trial for trial in report.trials if not trial.is_repeat):
        of_agent = result.outcome == "agent_error"
        tail = foreign_text.output_tail(source.directory(result), of_agent=of_agent, limit_bytes=limit_bytes)
        cases.add(result, tail)
    for task in report.tasks:
        for _ in range(task.missing):
            ET.SubElement(cases.case(task.id, 0.0), "skipped", {"message": "not finished"})
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _began(report: Report) -> str:
    """The start time without a time zone, in UTC, as the schema requires."""
    first = min((result.started_at for result in report.trials), default=report.made_at)
    return first.strftime("%Y-%m-%dT%H:%M:%S")


def _properties(report: Report) -> dict[str, str]:
    rate, totals = report.pass_rate, report.totals
    properties = {
        "made_by": report.made_by,
        "complete": str(report.complete).lower(),
        "run_id": ", ".join(str(run.get("run_id")) for run in report.runs),
        "agent": report.agent_name,
        "model": ", ".join(report.models),
        "pass_rate": "" if rate is None else f"{rate.value:.4f}",
        "pass_rate_interval": "" if rate is None else f"{rate.low:.4f} to {rate.high:.4f}",
        **{f"pass_at_{k}": f"{value:.4f}" for k, value in report.pass_at.items()},
        **{f"tokens.{name}": str(count) for name, count in totals.tokens.items()},
        "cost_usd": "" if totals.cost_usd is None else f"{totals.cost_usd:.4f}",
        "infrastructure_retries": str(totals.infrastructure_retries),
        **{f"image.{foreign_text.name(name)}": ", ".join(digests) for name, digests in report.images.items()},
    }
    return {name: value for name, value in properties.items() if value}


class _Cases:
    """Adds cases with unique names to a suite: readers keep only the first of several with one name."""

    def __init__(self, suite: ET.Element, class_name: str) -> None:
        self._suite, self._class_name = suite, class_name
        self._names = Counter[str]()

    def case(self, task: str, seconds: float) -> ET.Element:
        """Return a case named after its task; further ones of the same name get a number."""
        name = foreign_text.name(task)
        self._names[name] += 1
        label = name if self._names[name] == 1 else f"{name} [{self._names[name]}]"
        attributes = {"name": label, "classname": self._class_name, "time": f"{seconds:.3f}"}
        return ET.SubElement(self._suite, "testcase", attributes)

    def add(self, result: TrialResult, tail: str) -> None:
        """Add the case of a trial."""
        case = self.case(result.task, result.seconds)
        if result.outcome == "pass":
            return
        fault = result.fault
        kind = result.outcome if fault is None else f"{result.outcome}.{fault.kind}"
        message = foreign_text.message_line(foreign_text.reason(result))
        tag = "failure" if result.outcome in _FAILURES else "error"
        ET.SubElement(case, tag, {"message": message, "type": foreign_text.name(kind)}).text = message
        if tail:
            ET.SubElement(case, "system-out").text = tail
