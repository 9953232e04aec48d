"""Measure what the plugin costs, in turn with the same work without it.

    python benchmarks                  everything: about five minutes on an idle machine
    python benchmarks calls start      these tables; the others keep their record
    python benchmarks --quick ...      fewer rounds; it prints the tables and keeps nothing
    python benchmarks --page           measure nothing: only write the page again

prints the tables, and writes docs/evidence/performance.json and from it and performance.in a
section of docs/evidence/environments.md. It measures the package that Python finds.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import platform
import subprocess
import time
import warnings
from importlib.metadata import version
from typing import Any

import battery
import cost
import files
import growth
import page
import processes
import search
import start
import targets
import tools
from timing import FEW_ROUNDS, ROUNDS, Table

TABLES = {
    "start": start.table,
    "calls": cost.table,
    "growth": growth.table,
    "targets": targets.table,
    "trials": battery.trials,
    "ranks": battery.ranks,
    "phases": battery.phases,
    "sizes": battery.sizes,
    "files": files.table,
    "processes": processes.table,
    "search": search.table,
    "tools": tools.table,
}


def machine() -> dict[str, str]:
    """What it was measured on, and with."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        models = {line.partition(": ")[2].strip() for line in lines if "model name" in line}
    libraries = {name: version(name) for name in ("torch", "pytest", "hypothesis", "pyfakefs")}
    return {
        "CPU": f"{' and '.join(models) or platform.machine()} ({os.cpu_count()} cores)",
        "Linux": platform.release(),
        "Python": platform.python_version(),
        **libraries,
        **tools.versions(),
    }


def _commit() -> str:
    """The commit that is measured, or "unknown" outside of a checkout."""
    command = ["git", "-C", str(page.ROOT), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


def stamped(table: Table, rounds: int) -> dict[str, Any]:
    """The record of a table."""
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    content = {"columns": table.columns, "rows": table.rows}
    run = {"day": day, "commit": _commit(), "rounds": rounds, "machine": machine()}
    return {**run, **content}


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python benchmarks", description="What the plugin costs.")
    parser.add_argument(
        "tables", nargs="*", choices=[[], *TABLES], metavar="TABLE", help=", ".join(TABLES)
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds; keep nothing")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    record = page.record()
    rounds = FEW_ROUNDS if options.quick else ROUNDS
    for name in [] if options.page else options.tables or TABLES:
        began = time.monotonic()
        table = TABLES[name](rounds)
        print(f"{name}, {time.monotonic() - began:.0f} s\n{table.text()}\n", flush=True)
        record["tables"][name] = stamped(table, rounds)
        record["tables"] = {key: record["tables"][key] for key in TABLES if key in record["tables"]}
        if not options.quick:
            page.write(record)
    if options.page:
        page.write(record)


if __name__ == "__main__":
    main()
