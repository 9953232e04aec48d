"""The section about what was measured, from its record and its template."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from typing import Any

from pytest_dataloader_faults.battery.checks import CHECKS

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/evidence/performance.json"
TEMPLATE = ROOT / "benchmarks/performance.in"
OF_CHECK = "by the fixture: "


def record() -> dict[str, Any]:
    """What was measured so far."""
    empty: dict[str, Any] = {"tables": {}}
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else empty


def text(record: dict[str, Any]) -> str:
    """The section about what is kept; it is a part of docs/evidence/environments.md."""
    tables = {name: "\n".join(_lines(each)) for name, each in record["tables"].items()}
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    values = _Values(made=_describe_measurements(record["tables"].values()), **tables)
    return template.substitute(values)


class _Values(dict[str, str]):
    """What the template needs; some tables may not be measured yet."""

    def __missing__(self, name: str) -> str:
        return f"`python benchmarks {name}` has not been run yet."


def _describe_measurements(tables: Iterable[dict[str, Any]]) -> str:
    """A line for each machine, with what was measured on it."""
    by_machine: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for table in tables:
        machine = ", ".join(f"{name} {value}" for name, value in table["machine"].items())
        run = f"{table['day']} at commit {table['commit']}, {table['rounds']} rounds"
        by_machine[machine][run] = None
    return "\n- ".join(f"{machine}: {'; '.join(runs)}" for machine, runs in by_machine.items())


def _lines(table: dict[str, Any]) -> Iterator[str]:
    columns = table["columns"]
    yield f"| {' | '.join(columns)} |"
    yield f"| --- |{' ---: |' * (len(columns) - 1)}"
    for row in table["rows"]:
        check = row[0].removeprefix(OF_CHECK)
        if check == row[0] or check in CHECKS:  # Older tables name checks that no longer exist.
            yield f"| {' | '.join(row)} |"


def write(record: dict[str, Any]) -> None:
    """Keep the record, and let the evidence write the page."""
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "evidence", "environments", "--page"], check=True)
