"""The page of what was measured, from its record and its template. It needs nothing but Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/evidence/performance.json"
TEMPLATE = ROOT / "benchmarks/performance.in"
PAGE = ROOT / "docs/evidence/performance.md"


def record() -> dict[str, Any]:
    """What was measured so far."""
    empty: dict[str, Any] = {"tables": {}}
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else empty


def page(record: dict[str, Any]) -> str:
    """The page about what is kept."""
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
        yield f"| {' | '.join(row)} |"


def write(record: dict[str, Any]) -> None:
    """Keep the record, and write the page of it."""
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")
