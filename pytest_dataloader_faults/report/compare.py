"""What has changed since an older report of the same suite. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pytest_dataloader_faults.report.model import FAILURES, LEFT_OUT, NOT_RUN, PASSED, Report

NEW, OTHER_VERDICT = "newly failing", "with a different verdict"
FIXED, NOT_FIXED = "fixed", "neither failing nor fixed"
"""The kinds of changes."""


class ReportComparison(NamedTuple):
    """A newer report compared with an older one.

    Attributes:
        old, new: How many failures there are in each.
        changes: A line for each change, by kind.
        has_common_test: Whether there is a test in both reports.
    """

    old: int
    new: int
    changes: dict[str, list[str]]
    has_common_test: bool

    @property
    def is_worse(self) -> bool:
        """Whether something fails that did not fail before."""
        return bool(self.changes[NEW])


def compare_reports(old: Report, new: Report) -> ReportComparison:
    """Compare the failures of *new* with those of *old*."""
    failed, failing = (
        {key: item for key, item in report.states.items() if item.status in FAILURES}
        for report in (old, new)
    )
    changes: dict[str, list[str]] = {kind: [] for kind in (NEW, FIXED, NOT_FIXED, OTHER_VERDICT)}
    for key, now in failing.items():
        if key not in failed:
            changes[NEW].append(f"{now.name}: {now.word}: {now.sentence}")
        elif (before := failed[key]).word != now.word:
            change = f"{before.word} before, {now.word} now"
            changes[OTHER_VERDICT].append(f"{now.name}: {change}: {now.sentence}")
    for key in failed.keys() - failing.keys():
        state, before = new.states.get(key), failed[key]
        kind = FIXED if state and state.status == PASSED else NOT_FIXED
        word = state.word if state else LEFT_OUT[NOT_RUN]
        changes[kind].append(f"{before.name}: {before.word} before, {word} now")
    has_common_test = bool(old.tests.keys() & new.tests.keys())
    return ReportComparison(len(failed), len(failing), changes, has_common_test)


def lines(comparison: ReportComparison) -> Iterator[str]:
    """Format *comparison* for a terminal."""
    if not comparison.has_common_test:
        yield "warning: the reports have no test in common. Pass reports of one suite"
    counts = [f"{len(found)} {kind}" for kind, found in comparison.changes.items() if found]
    changed = ", ".join(counts) or "nothing changed"
    yield f"failures: {comparison.old} before, {comparison.new} now ({changed})"
    for kind, found in comparison.changes.items():
        if found:
            yield f"{kind}:"
            yield from (f"  {line}" for line in sorted(found))
