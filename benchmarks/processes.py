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
    fault_check(lambda: Records(folder, count={files}))
"""
WAYS = ("load", "loadfile", "worksteal")
"""Values of ``--dist``."""


def table(rounds: int) -> Table:
    """Ten tests, each in a file of its own and all in one file, in turn."""
    rows = Table((f"{DATASETS} datasets of {FILES} files", "time", "relative to one process"))
    with tempfile.TemporaryDirectory() as name:
        many_files, one_file = Path(name, "several"), Path(name, "one")
        write_suite(many_files, [[number] for number in range(DATASETS)])
        write_suite(one_file, [list(range(DATASETS))])
        works = dict(_works(many_files, one_file))
        seconds = in_turn(max(1, rounds // 4), *works.values())
    for text, samples in zip(works, seconds, strict=True):
        times = f"{ratio(seconds[0], samples):.2f}"
        rows.rows.append((text, shown(statistics.median(samples)), times))
    return rows


def _works(many_files: Path, one_file: Path) -> Iterator[tuple[str, Measure]]:
    yield "one process", clock(lambda: run_pytest(many_files))
    for way in WAYS:
        yield (
            f"`-n 2 --dist {way}`",
            clock(lambda way=way: run_pytest(many_files, "-n2", f"--dist={way}")),
        )
    yield "`-n 4 --dist load`", clock(lambda: run_pytest(many_files, "-n4", "--dist=load"))
    for way in WAYS:
        yield (
            f"all in one file, `-n 2 --dist {way}`",
            clock(lambda way=way: run_pytest(one_file, "-n2", f"--dist={way}")),
        )


def write_suite(folder: Path, files: list[list[int]]) -> None:
    """A suite in *folder*: a file of tests for each list of numbers."""
    folder.mkdir()
    for number, tests in enumerate(files):
        text = TEST + "".join(CASE.format(each, files=FILES) for each in tests)
        Path(folder, f"test_records_{number}.py").write_text(text, encoding="utf-8")


def run_pytest(folder: Path, *options: str) -> None:
    """Run the suite in *folder*, by no plugins but this one and pytest-xdist."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_dataloader_faults.plugin", "-p", "xdist", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [os.path.dirname(__file__), *filter(None, sys.path)]
    )
    process = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert process.returncode == 0, process.stdout
