"""The demo as a user starts it: its output and its exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import data
import demo
from pytest_dataloader_faults import check_dataset

EXPECTED = demo.read_matrix(demo.EXPECTED.read_text())


@pytest.fixture(name="copied")
def _copied(examples):
    """A copy of the examples, beside a folder of its own for temporary files.

    Its path is short: what torch's workers share travels by sockets below it, whose paths may have
    107 bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tmp").mkdir()
        yield Path(shutil.copytree(examples, Path(folder, "examples")))


def _start(folder, *arguments):
    inherited = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    return subprocess.run(
        [sys.executable, str(folder / "demo.py"), *arguments],
        env=inherited | {"TMPDIR": str(folder.parent / "tmp")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.slow
def test_one_dataset(copied):
    """--only prints its summary and its table; the exit code is 0, and no file is left behind."""
    done = _start(copied, "--only", "Careful")

    assert (done.returncode, done.stderr) == (0, "")
    summary, _, rest = done.stdout.partition("\n\n")
    assert summary.startswith("Careful: 27 checks passed (18 failed_cleanly, 9 survived); ")
    table, _, verdict = rest.partition(demo.LEGEND)
    assert demo.read_matrix(table) == {"Careful": EXPECTED["Careful"]}
    assert verdict.strip() == "The verdicts are the expected ones."
    assert list((copied.parent / "tmp").iterdir()) == []


def test_wrong_expectation(tmp_path, monkeypatch, capsys):
    """A cell that is not as expected is named, and the exit code is 1."""
    table = tmp_path / "expected.txt"
    table.write_text("  Careful\nworkers-agree  hung\n")
    make = demo.examples(data.build(tmp_path))["Careful"]
    found = {"Careful": check_dataset(make, only="workers-agree")}
    monkeypatch.setattr(demo, "EXPECTED", table)
    monkeypatch.setattr(demo, "try_all", lambda *_: found)

    assert demo.main([]) == 1

    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Careful workers-agree: expected hung, found survived"


@pytest.mark.slow
def test_failures_and_evidence(copied):
    """What fails has its likely cause; --verbose adds how to reproduce each check."""
    done = _start(copied, "--only", "FromFile", "--verbose")

    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  2 checks: accepts a truncated file: truncated-half, truncated-tail\n" in done.stdout
    reproduced = [line for line in done.stdout.splitlines() if "  reproduce: " in line]
    assert len(demo.CHECKS) == len(reproduced)


def test_unknown_dataset(copied):
    """A name that is no example's is refused with the names that are."""
    done = _start(copied, "--only", "Nobody")

    assert done.returncode == 2
    assert all(name in done.stderr for name in EXPECTED)
