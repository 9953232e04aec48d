"""What a run of pytest over ten datasets takes, in one process and in several of pytest-xdist."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from timing import Measure, Table, clock, in_turn, ratio, shown

DATASETS, FILES = 10, 16
TEST = f"""
import pytest

from subjects import Records


@pytest.fixture
def folder(tmp_path):
    for number in range({FILES}):
        (tmp_path / f"{{number}}.bin").write_bytes(bytes([number]) * 64)
    return tmp_path
"""
CASE = """

def test_records_{}(fault_check, folder):
    fault_check(lambda: Records(folder))
"""
WAYS = ("load", "loadfile", "worksteal")
"""Values of ``--dist``."""


def table(rounds: int) -> Table:
    """Ten tests, each in a file of its own and all in one file, in turn."""
    found = Table((f"{DATASETS} datasets of {FILES} files", "time", "beside one process"))
    with tempfile.TemporaryDirectory() as name:
        several, one = Path(name, "several"), Path(name, "one")
        _write(several, [[number] for number in range(DATASETS)])
        _write(one, [list(range(DATASETS))])
        works = dict(_works(several, one))
        seconds = in_turn(max(1, rounds // 4), *works.values())
    for text, each in zip(works, seconds, strict=True):
        times = f"{ratio(seconds[0], each):.2f}"
        found.rows.append((text, shown(statistics.median(each)), times))
    return found


def _works(several: Path, one: Path) -> Iterator[tuple[str, Measure]]:
    yield "one process", clock(lambda: run_pytest(several))
    for way in WAYS:
        yield (
            f"`-n 2 --dist {way}`",
            clock(lambda way=way: run_pytest(several, "-n2", f"--dist={way}")),
        )
    yield "`-n 4 --dist load`", clock(lambda: run_pytest(several, "-n4", "--dist=load"))
    for way in WAYS:
        yield (
            f"all in one file, `-n 2 --dist {way}`",
            clock(lambda way=way: run_pytest(one, "-n2", f"--dist={way}")),
        )


def _write(folder: Path, files: list[list[int]]) -> None:
    """A suite in *folder*: a file of tests for each list of numbers."""
    folder.mkdir()
    for number, tests in enumerate(files):
        text = TEST + "".join(CASE.format(each) for each in tests)
        Path(folder, f"test_records_{number}.py").write_text(text, encoding="utf-8")


def run_pytest(folder: Path, *options: str) -> None:
    """Run the suite in *folder*, by no plugins but this one and pytest-xdist."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_dataloader_faults.plugin", "-p", "xdist", *options]
    given = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    given["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run(
        command, cwd=folder, env=given, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
