"""The script that compares other people's tests, bare and armed, sees what differs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import transparency
from paths import EVIDENCE

TESTS = """
import unittest
from torch.utils.data import DataLoader

def is_armed():
    return "Monitored" in str(type(iter(DataLoader([1], num_workers=1))))

class TestLoader(unittest.TestCase):
    def test_workers(self):
        for workers in (0, 1):
            self.assertEqual([[1], [2]], [*map(list, DataLoader([1, 2], num_workers=workers))])

    @unittest.skip("never")
    def test_skipped(self):
        pass

    def test_bare_only(self):
        self.assertFalse(is_armed())
"""


@pytest.mark.slow
def test_a_test_that_knows_that_it_is_armed_differs(tmp_path):
    """It is named, and the exit status says so; loaders without workers work both ways."""
    (tmp_path / "test_sampler.py").write_text(TESTS)
    process = _compare(tmp_path)
    assert process.stderr == ""
    assert "bare   2 passed, 1 skipped" in process.stdout
    assert "armed  1 failed, 1 passed, 1 skipped" in process.stdout
    assert "TestLoader.test_bare_only: bare passed and armed failed" in process.stdout
    assert process.returncode == 1


def test_a_run_that_dies_differs():
    """No result at all is no result that is the same."""
    assert transparency.differing({"bare": {"test": "passed"}, "armed": {}}) == ["test"]


def test_no_file_is_no_success(tmp_path):
    """Or a wrong folder would pass each night."""
    assert _compare(tmp_path).returncode == 1


def _compare(folder):
    command = [sys.executable, str(EVIDENCE), "transparency"]
    command += [f"--torchdata-tests={folder}", f"--torch-tests={folder}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)
