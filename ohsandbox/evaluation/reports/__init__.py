"""Reports of a run for people and for CI systems, all generated from one `Report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.evaluation.reports.html import HTML_NAME, html
from ohsandbox.evaluation.reports.junit import JUNIT_NAME, junit_xml
from ohsandbox.evaluation.reports.markdown import MARKDOWN_NAME, markdown_report
from ohsandbox.evaluation.reports.report import REPORT_NAME, load_report, read_results
from ohsandbox.private_files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.reports.report import ReportSource

__all__ = ["load_report", "read_results", "write_reports"]


def write_reports(source: ReportSource, directory: Path) -> None:
    """Write report.json, junit.xml, summary.md and report.html, each atomically; the directory is made if missing.

    Raises:
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    report = source.report
    for name, text in (
        (REPORT_NAME, report.model_dump_json(indent=2, exclude_none=True) + "\n"),
        (JUNIT_NAME, junit_xml(source)),
        (MARKDOWN_NAME, markdown_report(report)),
        (HTML_NAME, html(source)),
    ):
        data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        write_atomically(directory / name, data, durable=False)
