"""Processes that are lost, of pytest-xdist too."""

import json
import re

import pytest

pytestmark = pytest.mark.usefixtures("engine")
SUITE = """
import os
import signal

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from pytest_dataloader_faults import run_trial


class Stops(Dataset):
    def __init__(self, in_worker):
        self.in_worker = in_worker

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if (get_worker_info() is not None) is self.in_worker:
            os.kill(os.getppid() if self.in_worker else os.getpid(), signal.SIGSTOP)
        return torch.tensor(index)


@pytest.mark.dataloader_faults(only=["workers-agree", "worker-killed-first"], deadline=1)
@pytest.mark.parametrize("in_worker", [True, False], ids=["parent", "itself"])
def test_stops(fault_check, in_worker):
    fault_check(lambda: Stops(in_worker))


def test_run():
    run_trial(lambda: Stops(True), loader={"num_workers": 1}, deadline=1)
"""
STOPPED = (
    "the main process (pid N), which iterates the loader, was stopped (SIGSTOP, or a debugger)"
)


@pytest.fixture(name="stopped", scope="module")
def _stopped(run_suite):
    """What is printed, and the folder with the reports."""
    names = ("r.json", "r.md")
    options = [f"--dataloader-faults-report={name}" for name in names]
    folder, result = run_suite(SUITE, "-p", "no:cacheprovider", *options)
    return folder, re.sub(r"pid \d+", "pid N", result.stdout.str())


def test_it_is_one_sentence(stopped):
    failures = stopped[1].partition("= FAILURES")[2].partition("= dataloader-faults")[0]
    parts = re.split(r"\n_+ (test_\w+)(?:\[.*)? _+\n", failures)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert failures.count(STOPPED) == 5
    assert "pytest_dataloader_faults/" not in failures
    assert bodies["test_stops"].startswith(STOPPED)
    assert ">       run_trial(" in bodies["test_run"]


def test_it_is_one_cause(stopped):
    causes = re.findall(r"^- .*was stopped.*$", (stopped[0] / "r.md").read_text(), re.MULTILINE)
    assert len(causes) == 2
    assert all("pid" not in each for each in causes)
    assert all("workers-agree, worker-killed-first" in each for each in causes)
    items = json.loads((stopped[0] / "r.json").read_text())["items"]
    assert all(re.search(r"\(pid \d+\)", each["sentence"]) for each in items)
