"""Keep what a run of the suite on one Python and one torch found.

    tox -e py313                             runs the suite, and writes .tox/py313/suite.xml
    PYTHON evidence compatibility SUITE.xml  asks README's battery by PYTHON, and keeps both results
    python evidence environments --page      writes the page, which also has the environments

After SUITE.xml may come files of tests that failed, were mended, and ran again: theirs count.
"""

from __future__ import annotations

import multiprocessing
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from pages import Page, commit
from paths import ROOT
from support.scripts import load_script

generate = load_script("docs/generate.py")
PAGE = Page("compatibility")
PACKAGES = ("torch", "pytest", "hypothesis", "pyfakefs", "psutil")
RESULTS = ("passed", "failed", "skipped")
REFERENCE = ("3.11", "2.13")
"""The Python and the torch of every other run of the suite."""
_ROUNDS = 2


def fields(pairs: list[dict[str, Any]]) -> dict[str, str]:
    """The rows of the page: a pair of Python and torch each, the oldest Python first."""
    return {
        "suites": "\n".join(_suite_row(pair) for pair in pairs),
        "batteries": "\n".join(_battery_row(pair, _reference(pairs)) for pair in pairs),
    }


def _reference(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return next(
        pair
        for pair in pairs
        if pair["python"].startswith(REFERENCE[0]) and pair["torch"].startswith(REFERENCE[1])
    )


def _suite_row(pair: dict[str, Any]) -> str:
    suite = pair["suite"]
    counts = ", ".join(f"{suite[name]} {name}" for name in RESULTS)
    cells = [pair["python"], *(pair[name] for name in PACKAGES)]
    return f"| {' | '.join(cells)} | {counts} | {suite['date']} | {suite['commit']} |"


def _battery_row(pair: dict[str, Any], reference: dict[str, Any]) -> str:
    battery, usual = pair["battery"], reference["battery"]
    ratio = battery["seconds"] / usual["seconds"]
    cells = [
        pair["python"],
        pair["torch"],
        f"`{battery['start_method']}`",
        f"{battery['seconds']:.1f} s",
        f"{ratio:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def measure(suites: list[Path]) -> dict[str, Any]:
    """What is to be kept of this interpreter, and of its runs of the suite."""
    return {
        "python": platform.python_version(),
        **{name: version(name).partition("+")[0] for name in PACKAGES},
        "suite": _suite(suites),
        "battery": _battery(),
    }


def _suite(junits: list[Path]) -> dict[str, Any]:
    """How many tests passed, failed and were skipped; of a test that ran again, the last run."""
    roots = [ET.parse(junit).getroot() for junit in junits]  # noqa: S314
    results = {
        (case.attrib["classname"], case.attrib["name"]): _result(case)
        for root in roots
        for case in root.iter("testcase")
    }
    counts = Counter(results.values())
    began = next(roots[0].iter("testsuite"))
    return {
        **{result: counts[result] for result in RESULTS},
        "date": began.attrib["timestamp"][:10],
        "commit": commit(),
    }


def _result(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def _battery() -> dict[str, Any]:
    """The battery of README's first example: each check's verdict, and the least of its times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for block in generate.blocks((ROOT / "README.md").read_text(encoding="utf-8")):
            if block.kind == "file":
                (folder / block.argument).write_text(block.text, encoding="utf-8")
        runs = [_run_battery(folder) for _ in range(_ROUNDS)]
    return {
        "start_method": multiprocessing.get_start_method(),
        "seconds": round(min(seconds for seconds, _ in runs), 2),
        "verdicts": runs[-1][1],
    }


def _run_battery(folder: Path) -> tuple[float, dict[str, str]]:
    junit = folder / "battery.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", "test_data.py"]
    began = time.monotonic()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    seconds = time.monotonic() - began
    cases = ET.parse(junit).getroot().iter("testcase")  # noqa: S314
    return seconds, {case.attrib["name"].split("[")[1][:-1]: _verdict(case) for case in cases}


def _verdict(case: ET.Element) -> str:
    if (failure := case.find("failure")) is not None:
        return failure.attrib["message"].removeprefix("Failed: ").partition(":")[0]
    return {"skipped": "does not apply"}.get(_result(case), "passed")


def main() -> None:
    """Keep what is found."""
    pair = measure([Path(name) for name in sys.argv[1:]])
    other_pairs = [each for each in PAGE.record() if _key(each) != _key(pair)]
    PAGE.keep(sorted([*other_pairs, pair], key=_key))


def _key(pair: dict[str, Any]) -> tuple[list[int], str]:
    """Its minor version of Python, and its torch."""
    return [int(part) for part in pair["python"].split(".")[:2]], pair["torch"]


if __name__ == "__main__":
    main()
