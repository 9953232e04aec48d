"""What the conftest.py at the root does for each test."""

import os
import subprocess
import sys

import pytest

from support.inner import PYTHONPATH
from support.scripts import ROOT
from support.waiting import allowed

GARBAGE = """
import gc
import traceback


class Finalized:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        try:
            [1][ 5 ]
        except IndexError:
            traceback.format_exc()


def test_fails():
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 2, 2)
    kept = [Finalized() for _ in range(200)]
    gc.collect()
    kept = None
    assert gc.isenabled() and kept
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="a defect of Python 3.11 alone")
def test_a_failure_is_reported_although_garbage_is_to_be_collected(tmp_path):
    """Finalizers wait until pytest has parsed the source of the test, which is long."""
    functions = (f"def many_{number}(a):\n    return [a, (a + 1) * 2]\n" for number in range(1000))
    (tmp_path / "test_inner.py").write_text(GARBAGE + "".join(functions), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "conftest", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=allowed(60),
    )

    assert (process.returncode, "1 failed" in process.stdout) == (1, True), (
        process.stdout + process.stderr
    )
