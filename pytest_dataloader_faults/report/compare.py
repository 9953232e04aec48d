"""Merge reports, and find what has changed between two reports of a suite. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_dataloader_faults.outcomes.text import is_or_are, join_some, pluralize
from pytest_dataloader_faults.report.model import LEFT_OUT, NOT_RUN, PASSED, STATUSES, Item, Report

NEW, OTHER_VERDICT = "newly failing", "with a different verdict"
FIXED, NOT_FIXED = "fixed", "neither failing nor fixed"
"""The kinds of changes."""
_OTHER_SAMPLES = (
    "other samples without a fault: {}. If no file has changed, the dataset may depend on the order"
    " of a set, on hash(), or on the path of its folder"
)
_REPEATED = (
    "; {} {} in several reports, and the worst result wins. To keep all results, label the"
    " reports, as in py312=REPORT.json"
)


def find_changes(old: Report, new: Report) -> dict[str, list[str]]:
    """Compare the failures of *new* with those of *old*: a line for each change, by kind."""
    failed, failing = old.failures, new.failures
    changes: dict[str, list[str]] = {kind: [] for kind in (NEW, FIXED, NOT_FIXED, OTHER_VERDICT)}
    for key, now in failing.items():
        if key not in failed:
            changes[NEW].append(f"{now.name}: {now.word}: {now.sentence}")
        elif (failure := failed[key]).word != now.word:
            change = f"{failure.word} before, {now.word} now"
            changes[OTHER_VERDICT].append(f"{now.name}: {change}: {now.sentence}")
    for key in failed.keys() - failing.keys():
        state, failure = new.states.get(key), failed[key]
        kind = FIXED if state and state.status == PASSED else NOT_FIXED
        word = state.word if state else LEFT_OUT[NOT_RUN]
        changes[kind].append(f"{failure.name}: {failure.word} before, {word} now")
    return {kind: sorted(lines) for kind, lines in changes.items() if lines}


def compare_reports(old: Report, new: Report) -> Iterator[str]:
    """Yield the lines of a comparison of *new* with *old*."""
    if not old.tests.keys() & new.tests.keys():
        yield "warning: the reports have no test in common. Pass reports of one suite"
    changes = find_changes(old, new)
    counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in changes.items())
    failures = f"{len(old.failures)} before, {len(new.failures)} now"
    yield f"failures: {failures} ({counts or 'nothing changed'})"
    for kind, lines in changes.items():
        yield f"{kind}:"
        yield from (f"  {line}" for line in lines)
    before_by_test, now_by_test = map(_samples_by_test, (old, new))
    common = before_by_test.keys() & now_by_test.keys()
    if tests := sorted(test for test in common if before_by_test[test] != now_by_test[test]):
        yield _OTHER_SAMPLES.format(join_some(tests))


def _samples_by_test(report: Report) -> dict[str, set[str]]:
    """The digests of the samples of each test whose dataset has some that are not random."""
    digests: dict[str, set[str]] = {}
    for item in filter(lambda item: item.samples, report.items):
        digests.setdefault(item.test, set()).add(item.samples)
    return digests


def add_label(report: Report, label: str) -> Report:
    """Put *label* before the ids in *report*, so that other reports have different items."""
    items = (
        replace(item, nodeid=f"{label}: {item.nodeid}", test=f"{label}: {item.test}")
        for item in report.items
    )
    return replace(report, items=tuple(items))


def merge_reports(reports: Sequence[Report]) -> tuple[Report, str]:
    """Merge *reports*; return the report, and a summary of the merge."""
    items: dict[str, Item] = {}
    repeated: set[str] = set()
    versions: dict[str, dict[str, None]] = {}
    for report in reports:
        repeated |= items.keys() & {item.nodeid for item in report.items}
        for item in report.items:
            same = (items.get(item.nodeid, item), item)
            items[item.nodeid] = min(same, key=lambda item: STATUSES.index(item.status))
        for name, text in report.versions.items():
            versions.setdefault(name, {}).update(dict.fromkeys(text.split(", ")))
    merged = Report(
        versions={name: ", ".join(texts) for name, texts in versions.items()},
        runs=tuple(run for each in reports for run in each.runs),
        items=tuple(items.values()),
    )
    counts = f"{pluralize(len(reports), 'report')}: {pluralize(len(items), 'item')}"
    twice = pluralize(len(repeated), "item"), is_or_are(len(repeated))
    again = _REPEATED.format(*twice) if repeated else ""
    return merged, f"{counts}, {len(merged.failed)} failed{again}"
