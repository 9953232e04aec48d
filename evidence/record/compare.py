"""Compare two records: what a change of the package has changed.

    python evidence compare OLD NEW

prints each change once, with the cases and checks that have it. If NEW is from after checks were
merged, the worst result of the old ones counts. Facts that are marked as intermittent are left out.
The exit status is 1 if there is any difference.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import record
from record import Entry, Key
from record.names import current_name

LOST, FOUND, VERDICTS, STATUSES, FACTS, MISSING, ADDED = SECTIONS = (
    "causes that the new record no longer finds",
    "causes that only the new record finds",
    "changed verdicts",
    "changed statuses, with the same verdict and cause",
    "changed facts",
    "entries of the old record only",
    "entries of the new record only",
)
_WORST_FIRST = "ended refused failed flaky warned passed".split()
_FAILING = "failed", "flaky", "warned"
_VERDICT = "verdict", "cause"
Record = Mapping[Key, Entry]


class Change(NamedTuple):
    """A difference.

    Attributes:
        section: Its title in the report.
        what: What it was, and what it is.
        key: Where.
    """

    section: str
    what: str
    key: Key


def compare(old: Record, new: Record) -> Iterator[Change]:
    """The differences of *new* from *old*."""
    groups = _group(old), _group(new)
    keys = sorted({key for each in groups for key in each})
    pairs = [(key, *(each.get(key, {}) for each in groups)) for key in keys]
    yield from _compare_causes(pairs)
    for key, before, after in pairs:
        is_merged = before.keys() != after.keys() and {key.check} in (before.keys(), after.keys())
        if is_merged and before and after:
            yield from _compare_results(_worst(before), _worst(after), key)
            continue
        for check in {**before, **after}:
            place = key._replace(check=check)
            yield from _compare_entries(before.get(check), after.get(check), place)


def _group(record: Record) -> dict[Key, dict[str, Entry]]:
    """The entries by case and current check: of each those of the checks for which it stands."""
    groups: dict[Key, dict[str, Entry]] = {}
    for key, entry in record.items():
        current = key._replace(check=current_name(key.check))
        groups.setdefault(current, {})[key.check] = entry
    return groups


def _varies(name: str, *entries: Entry) -> bool:
    """Whether the fact with that *name* is marked as intermittent in one of *entries*."""
    return any(name in each.get("intermittent", ()) for each in entries)


def _worst(group: dict[str, Entry]) -> Entry:
    def rank(entry: Entry) -> int:
        return [*_WORST_FIRST, entry["status"]].index(entry["status"])

    return min(group.values(), key=rank)


def _compare_causes(
    pairs: list[tuple[Key, dict[str, Entry], dict[str, Entry]]],
) -> Iterator[Change]:
    """The causes that a case has in one of the records only, in whichever check."""
    causes: list[dict[Key, dict[str, None]]] = [{}, {}]
    for key, *groups in pairs:
        for causes_by_case, group in zip(causes, groups, strict=True):
            failed = [each for each in group.values() if each["status"] in _FAILING]
            names = [each.get("cause") for each in failed if not _varies("cause", each)]
            causes_by_case.setdefault(key._replace(check=""), {}).update(dict.fromkeys(names))
    before, after = causes
    for case in before:
        for section, names, others in (
            (LOST, before[case], after[case]),
            (FOUND, after[case], before[case]),
        ):
            for name in names:
                if name not in others:
                    yield Change(section, name or "no cause", case)


def _compare_entries(old: Entry | None, new: Entry | None, key: Key) -> Iterator[Change]:
    """The differences of one check."""
    if old is None or new is None:
        yield Change(ADDED if old is None else MISSING, _describe(old or new or {}), key)
        return
    yield from _compare_results(old, new, key)
    for name in ("wrong", "notes", "faults"):
        if old.get(name) != new.get(name) and not _varies(name, old, new):
            yield Change(FACTS, f"{name}: {_differing(old.get(name), new.get(name))}", key)


def _differing(old: Any, new: Any) -> str:
    """Two values, or those in two lists of the same length that differ."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
    else:
        pairs = [(old, new)]
    texts = ([json.dumps(value, ensure_ascii=False) for value in pair] for pair in pairs)
    return "; ".join(map(" -> ".join, texts))


def _compare_results(old: Entry, new: Entry, key: Key) -> Iterator[Change]:
    """The difference of the results alone: of a check, or of those that became one."""
    differing = [
        name
        for name in (*_VERDICT, "status")
        if old.get(name) != new.get(name) and not _varies(name, old, new)
    ]
    if differing == ["status"] and "verdict" in old:
        yield Change(STATUSES, f"{_describe(old)} -> {new['status']}", key)
    elif differing:
        yield Change(VERDICTS, f"{_describe(old)} -> {_describe(new)}", key)


def _describe(entry: Entry) -> str:
    """The status, the verdict and the cause of *entry*."""
    return ", ".join(entry[name] for name in ("status", *_VERDICT) if name in entry)


def report(changes: Iterable[Change]) -> Iterator[str]:
    """The *changes* by section, each once, with the checks of each case that has it."""
    sections: dict[str, dict[str, dict[str, list[str]]]] = {title: {} for title in SECTIONS}
    for section, what, (case, check) in changes:
        sections[section].setdefault(what, {}).setdefault(case, []).append(check)
    for section, by_change in sections.items():
        if by_change:
            yield f"{section}:"
        for what, by_case in by_change.items():
            yield f"  {what}"
            for case, checks in by_case.items():
                names = ", ".join(filter(None, checks))
                yield f"    {case}: {names}" if names else f"    {case}"


def main() -> int:
    """Print the report; 1 if there is any difference."""
    old, new = (record.read(Path(each)) for each in sys.argv[1:])
    lines = list(report(compare(old, new)))
    count = sum("intermittent" in each for each in new.values())
    print(f"{len(old)} and {len(new)} entries, {count} of which have facts that are not compared")
    print("\n".join(lines) or "no differences")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
