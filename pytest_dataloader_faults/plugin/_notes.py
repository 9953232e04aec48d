"""Notes on how datasets were tried, at the end of pytest's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_PROPERTY = "dataloader_faults_note"


def add_notes(node: pytest.Item, notes: tuple[str, ...]) -> None:
    """Have *notes* told once for the test of *node*. They go with its reports, also under xdist."""
    node.user_properties += [(_PROPERTY, each) for each in notes]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell each note once per test, and not once per check."""
    reports = (report for found in terminalreporter.stats.values() for report in found)
    notes = {
        f"{report.nodeid.partition('[')[0]}: {text}"
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == _PROPERTY
    }
    if notes:
        terminalreporter.section("dataloader-faults")
    for note in sorted(notes):
        terminalreporter.write_line(note)
