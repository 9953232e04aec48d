"""Try dataset classes that other people wrote, and write what the battery says of each.

    python evidence datasets              every class
    python evidence datasets KEY ...      these; the others keep their record
    python evidence datasets --only "shared storage" KEY ...   of these, only this group of checks
    python evidence datasets --page       none: only the page, from the record

The classes and the audit of what they fail are in evidence/field. A class whose library is missing
keeps its record.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from field import Tried, load_all
from field.audit import AUDIT, Found
from pages import Page, commit
from paths import EVIDENCE
from record.names import current_name, current_names

PAGE = Page("datasets")
_LIMIT = 1500
"""Seconds for one class. The slowest takes a few minutes: its checks hang."""
_LONGEST = 150
"""Characters in a cell."""
RANKS = "ranks-agree ranks-next-epoch rank-read-error rank-worker-killed".split()
"""The checks that ran on the classes in field/ranks.py; others were added later."""
RESUME = "resumes resumes-after-death".split()
"""The only ones that ran on the classes in field/resume.py."""
_OF_PART = {"ranks": RANKS, "resume": RESUME}
GROUPS = {
    "shared storage": (
        "listing-order stray-entries locked-file no-locks http-error copy-on-write".split()
    )
}
"""Checks that were added later. They run apart, so that older rows keep their record."""
_RECORDED = ("before init", *GROUPS)
"""The parts of a row that ran apart: the first of them before it became part of other checks."""


def run(tried_class: Tried, only: list[str] | None = None) -> dict[str, Any]:
    """What the battery says of *tried_class*, in this process, which imports no other library."""
    from pytest_dataloader_faults import check_dataset, exceptions

    tried_class.load()
    only = only or current_names(_OF_PART.get(tried_class.part, ())) or None
    exclude = () if only else current_names(itertools.chain(*GROUPS.values()))
    with tempfile.TemporaryDirectory(prefix="field") as name:
        folder = Path(name) / "data"
        folder.mkdir()
        tried_class.write(folder)
        begun = time.monotonic()
        try:
            results = check_dataset(
                **tried_class.dataset(folder),
                on_fail=None,
                only=only,
                exclude=exclude,
                **tried_class.arguments(),
            )
        except exceptions.UnusableDatasetError as error:
            return {"version": tried_class.version(), "refused": without_places(str(error))}
        seconds = round(time.monotonic() - begun)
    row = {"version": tried_class.version(), "seconds": seconds, **summary(results)}
    if tried_class.part:
        row["by check"] = {each.check: str(each.verdict) for each in results if each.applies}
    return row


def summary(results: list[Any]) -> dict[str, Any]:
    """How many checks had which verdict, and which failed, maybe as a warning, or did not apply."""
    applied = [each for each in results if each.applies]
    return {
        "verdicts": dict(Counter(str(each.verdict) for each in applied)),
        "failed": {each.check: _sentence(each) for each in applied if each.failed or each.warns},
        "not reproduced": [each.check for each in applied if not each.reproduced],
        "not applicable": [each.check for each in results if not each.applies],
    }


def without_places(message: str) -> str:
    """The first line of *message*, without what differs from run to run."""
    return re.sub(r" at (0x[0-9a-f]+|/\S+:\d+)|^rank \d+: ", "", message.partition("\n")[0])


def _sentence(result: Any) -> str:
    return result.explanation.partition("\n")[0]


def _in_a_process(key: str, only: str = "") -> dict[str, Any]:
    """The same, where a thread or a hook of one library cannot disturb another."""
    command = [sys.executable, "-W", "ignore", str(EVIDENCE), "datasets", "--one", key, only]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_LIMIT)
    return json.loads(process.stdout.decode().rpartition("RESULT ")[2])


def page(record: dict[str, Any]) -> str:
    """The page about what the *record* has."""
    classes = load_all()
    alone, of_ranks, of_states = (
        {key: row for key, row in record.items() if classes[key].part == part}
        for part in ("", "ranks", "resume")
    )
    judged = _count_by_kind(alone)
    whole = [key for key, row in alone.items() if "verdicts" in row or "refused" in row]
    return PAGE.text(
        classes=len(whole),
        waiting=sum(not each.part for each in classes.values()) - len(whole),
        convictions=sum(len(failed(row)) for row in alone.values()),
        true=judged["true"],
        arguable=judged["arguable"],
        false=judged["false"],
        refused=sum("refused" in row for row in alone.values()),
        table="".join(_rows(alone)),
        **_shared_storage(alone),
        **_part("ranks", of_ranks, RANKS),
        **_part("states", of_states, RESUME),
    )


def _part(name: str, rows: dict[str, Any], checks: list[str]) -> dict[str, Any]:
    """The fields of a table of its own: how many classes and failures it has, and its rows."""
    judged = _count_by_kind(rows)
    return {
        f"{name}_classes": len(rows),
        f"{name}_failed": sum(len(failed(row)) for row in rows.values()),
        **{f"{name}_{kind}": judged[kind] for kind in ("true", "arguable", "false")},
        name: "".join(_rows_of_part(rows, checks)),
    }


def _shared_storage(rows: dict[str, Any]) -> dict[str, Any]:
    """The fields of the section about listings, stray files and locks."""
    group = "shared storage"
    of_group = {key: row[group] for key, row in rows.items() if group in row}
    judged = _count_by_kind(of_group)
    names = current_names(GROUPS[group])
    return {
        "shared_classes": len(of_group),
        "shared_applies": sum(bool(row.get("verdicts")) for row in of_group.values()),
        "shared_only": sum("verdicts" not in rows[key] for key in of_group),
        "shared_failed": sum(len(row.get("failed", {})) for row in of_group.values()),
        **{f"shared_{kind}": judged[kind] for kind in ("true", "arguable", "false")},
        "shared_checks": "".join(_rows_by_check(of_group, names)),
    }


def _rows_by_check(rows: dict[str, Any], checks: list[str]) -> Iterator[str]:
    """A row for each of these *checks*: how many classes it applies to, and which fail it."""
    for check in checks:
        olds = [name for name in GROUPS["shared storage"] if current_name(name) == check]
        applies = sum(
            any(old not in row.get("not applicable", olds) for old in olds) for row in rows.values()
        )
        failing = sum(any(old in row.get("failed", {}) for old in olds) for row in rows.values())
        yield f"| `{check}` | {applies} | {applies - failing} | {failing} |\n"


def _count_by_kind(rows: dict[str, Any]) -> Counter[str]:
    """How many failures the audit calls true, arguable or false."""
    failures = ((key, check) for key, row in rows.items() for check in failed(row))
    return Counter(finding.kind for each in failures if (finding := audited(*each)))


def failed(row: dict[str, Any]) -> dict[str, str]:
    """The checks that a class fails, those of the groups last."""
    of_groups = (row[group].get("failed", {}) for group in _RECORDED if group in row)
    return dict(entry for each in (row.get("failed", {}), *of_groups) for entry in each.items())


def audited(key: str, check: str) -> Found | None:
    """What the audit says of the failure of *check* by the class *key*."""
    return next(
        (finding for finding in AUDIT.get(key, ()) if check in finding.checks.split()), None
    )


def _rows(rows: dict[str, Any]) -> Iterator[str]:
    """A row for each cause of failures of each class, then one of those that fail no check."""
    sound = []
    for key, tried_class in load_all().items():
        if key not in rows:
            continue
        begin = _name(tried_class, rows[key])
        causes = _causes(key, rows[key])
        sound += [] if causes else [begin]
        for cause in causes:
            yield f"| {begin} | {' | '.join(cause)} |\n"
            begin = ""
    yield f"\nThese fail no check: {'; '.join(sound)}.\n"


def _name(tried_class: Tried, row: dict[str, Any]) -> str:
    return f"{tried_class.shown}, {row['version']}"


def _rows_of_part(rows: dict[str, Any], checks: list[str]) -> Iterator[str]:
    """A row for each class that was asked these *checks* alone."""
    for key, tried_class in load_all().items():
        if key not in rows:
            continue
        row = rows[key]
        verdicts = " | ".join(_verdict(row, name) for name in current_names(checks))
        why = "; ".join(dict.fromkeys(why for why, _ in _causes(key, row) if why))
        yield f"| {_name(tried_class, row)} | {verdicts} | {why} |\n"


def _verdict(row: dict[str, Any], check: str) -> str:
    """What *check* came to, in bold where that is a failure; a dash where it did not run.

    Of several checks that it stands for, one that fails counts first.
    """
    olds = [name for name in row.get("by check", {}) if current_name(name) == check]
    olds.sort(key=lambda old: old not in failed(row))
    if not olds:
        return "-"
    verdict = row["by check"][olds[0]].replace("_", " ")
    return f"**{verdict}**" if olds[0] in failed(row) else verdict


def _causes(key: str, row: dict[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with a class, and the checks that it fails for that."""
    if "refused" in row:
        return [("refused", f"`{row['refused'].partition('. ')[0]}`".replace("|", "¦"))]
    groups: dict[str, list[str]] = {}
    for check in failed(row):
        finding = audited(key, check)
        groups.setdefault(finding.shown if finding else "**not audited**", []).append(check)
    return [
        cell
        for why, checks in groups.items()
        for cell in _cells(why, [f"`{name}`" for name in current_names(checks)])
    ]


def _cells(why: str, checks: list[str]) -> Iterator[tuple[str, str]]:
    """A cause and its checks, in as many rows as they need."""
    for line in textwrap.wrap(", ".join(checks), _LONGEST, break_on_hyphens=False):
        yield why, line.rstrip(",")
        why = ""


def _run(key: str, row: dict[str, Any], only: str | None) -> dict[str, Any]:
    """What the battery says of a class, or the *row* with what the group *only* says of it."""
    row = row or {"version": load_all()[key].version()}
    if only is None:
        row = {"commit": commit(), **_in_a_process(key)}
    groups = [] if "refused" in row or load_all()[key].part else [only] if only else GROUPS
    for group in groups:
        checks = ",".join(current_names(GROUPS[group]))
        row[group] = {"commit": commit(), **_in_a_process(key, checks)}
    return row


def main(arguments: list[str]) -> None:
    """Run what is asked for, and write the record and the page."""
    record = PAGE.record()
    group = arguments[1].replace("-", " ") if arguments[:1] == ["--only"] else None
    keys = arguments[2:] if group else arguments
    for key in [] if keys == ["--page"] else keys or list(load_all()):
        if missing := load_all()[key].missing():
            print(f"{key}: {missing} is not installed")
            continue
        record[key] = _run(key, record.get(key, {}), group)
        print(f"{key}: {record[key].get(group, record[key]).get('seconds')} s", flush=True)
        PAGE.keep(record)
    PAGE.write(page(record))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        names = sys.argv[3].split(",") if sys.argv[3:] and sys.argv[3] else None
        print("RESULT " + json.dumps(run(load_all()[sys.argv[2]], names)), flush=True)
    else:
        main(sys.argv[1:])
