"""Keep what a run of the suite on one Python and one torch found, and write the page about all.

    tox -e py313                            runs the suite, and writes .tox/py313/suite.xml
    PYTHON docs/compatibility.py SUITE.xml  asks README's battery by PYTHON, and keeps both results
    python docs/compatibility.py            writes the page only

After SUITE.xml may come files of tests that failed, were mended, and ran again: theirs count.

docs/evidence/compatibility.json is the record. The page docs/evidence/compatibility.md is made
from it and docs/compatibility.in. tests/test_compatibility.py compares.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
# This file's neighbours have the names of libraries that tests use, such as datasets.
sys.path[:] = [str(ROOT / "tests"), *(each for each in sys.path if each != str(ROOT / "docs"))]

from support.scripts import load_script  # noqa: E402  # it is below tests/

generate = load_script("docs/generate.py")
RECORD = ROOT / "docs/evidence/compatibility.json"
TEMPLATE = ROOT / "docs/compatibility.in"
PAGE = ROOT / "docs/evidence/compatibility.md"
PACKAGES = ("torch", "pytest", "hypothesis", "pyfakefs", "psutil")
RESULTS = ("passed", "failed", "skipped")
REFERENCE = ("3.11", "2.13")
"""The Python and the torch of every other run of the suite."""
_TESTS_OF_THIS = "tests.test_compatibility"
"""They read what this script writes."""
_ROUNDS = 2


def record() -> list[dict[str, Any]]:
    """What is kept: a pair of Python and torch each, the oldest Python first."""
    return list(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else []


def page(kept: list[dict[str, Any]]) -> str:
    """The page about what is kept."""
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        suites="\n".join(_suite_row(pair) for pair in kept),
        batteries="\n".join(_battery_row(pair, _reference(kept)) for pair in kept),
    )


def _reference(kept: list[dict[str, Any]]) -> dict[str, Any]:
    return next(
        pair
        for pair in kept
        if pair["python"].startswith(REFERENCE[0]) and pair["torch"].startswith(REFERENCE[1])
    )


def _suite_row(pair: dict[str, Any]) -> str:
    suite = pair["suite"]
    counts = ", ".join(f"{suite[name]} {name}" for name in RESULTS)
    cells = [pair["python"], *(pair[name] for name in PACKAGES)]
    return f"| {' | '.join(cells)} | {counts} | {suite['date']} | {suite['commit']} |"


def _battery_row(pair: dict[str, Any], reference: dict[str, Any]) -> str:
    battery, usual = pair["battery"], reference["battery"]
    others = [
        f"`{check}`: {verdict}, there {usual['verdicts'].get(check)}"
        for check, verdict in battery["verdicts"].items()
        if verdict != usual["verdicts"].get(check)
    ]
    ratio = battery["seconds"] / usual["seconds"]
    cells = [
        pair["python"],
        pair["torch"],
        f"`{battery['start_method']}`",
        f"{battery['seconds']:.1f} s",
        f"{ratio:.1f}",
        "; ".join(others) or "none",
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
    last = {
        (case.attrib["classname"], case.attrib["name"]): _result(case)
        for root in roots
        for case in root.iter("testcase")
        if case.attrib["classname"] != _TESTS_OF_THIS
    }
    counts = Counter(last.values())
    began = next(roots[0].iter("testsuite"))
    return {
        **{result: counts[result] for result in RESULTS},
        "date": began.attrib["timestamp"][:10],
        "commit": _commit(),
    }


def _result(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _battery() -> dict[str, Any]:
    """The battery of README's first example: each check's verdict, and the least of its times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for block in generate.blocks((ROOT / "README.md").read_text(encoding="utf-8")):
            if block.kind == "file":
                (folder / block.argument).write_text(block.text, encoding="utf-8")
        runs = [_ask(folder) for _ in range(_ROUNDS)]
    return {
        "start_method": multiprocessing.get_start_method(),
        "seconds": round(min(seconds for seconds, _ in runs), 2),
        "verdicts": runs[-1][1],
    }


def _ask(folder: Path) -> tuple[float, dict[str, str]]:
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
    """Keep what is found, if a file is named, and write the page."""
    if len(sys.argv) > 1:
        pair = measure([Path(name) for name in sys.argv[1:]])
        others = [each for each in record() if _key(each) != _key(pair)]
        kept = sorted([*others, pair], key=_key)
        RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(record()), encoding="utf-8")


def _key(pair: dict[str, Any]) -> tuple[list[int], str]:
    """Its minor version of Python, and its torch."""
    return [int(part) for part in pair["python"].split(".")[:2]], pair["torch"]


if __name__ == "__main__":
    main()
