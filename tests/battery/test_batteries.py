"""What items of one test share, as long as its dataset works, and the bar of a long call."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery.batteries import Batteries
from support.datasets import Records, write_records
from support.inner import PYTHONPATH
from support.rows import slow
from support.specimens import ZerosOnError
from support.waiting import allowed

WHOLE, ALONE, CONTROL, SECOND = 3, 1, 1, 1
"""Processes that make a dataset: reference, fault-free epoch and trial; a trial; and one without a
fault, after a failure, and before the second item of a test.
"""


class CountedBatteries:
    """The batteries of a session, and how many processes each check has cost."""

    def __init__(self, log):
        self.batteries = Batteries()
        self.log = log
        log.touch()

    def __call__(self, make_dataset, name="open-error", **settings):
        size = len(self.log.read_text())
        settings.setdefault("loader", {"num_workers": 1, "batch_size": 4})
        options = {"call": "a test", "expected_failures": {}, "reproduce": "again"}
        result, _ = self.batteries.run_check(name, make_dataset, Settings(**settings), **options)
        return result, len(self.log.read_text()) - size


@pytest.fixture(name="run_check")
def _run_check(tmp_path):
    return CountedBatteries(tmp_path / "log")


def _factory(folder, log, kind=Records):
    def make_dataset():
        with log.open("a") as file:
            file.write("x")
        return kind(folder)

    return make_dataset


def test_items_use_the_data_of_the_first_one(tmp_path, run_check):
    """Another check that passes or does not apply costs its own trial."""
    costs = []
    for name in ("open-error", "closed-descriptor", "connection-error"):
        folder = write_records(tmp_path / name)
        result, cost = run_check(_factory(folder, run_check.log), name)
        costs.append(cost)
        if name == "closed-descriptor":
            paths = {each.path for facts in result.outcome.faults for each in facts.firings}
            assert {path.rpartition("/")[0] for path in paths} == {str(tmp_path / "open-error")}
    assert costs[0] >= WHOLE
    assert costs[1:] == [SECOND + ALONE, 0]


@pytest.mark.parametrize("change", ["touched", slow("other settings")])
def test_an_item_has_its_own_battery_after_a_change(records, tmp_path, run_check, change):
    run_check(_factory(records, run_check.log))
    own = write_records(tmp_path / "own")
    settings = {}
    if change == "touched":
        (records / "00.rec").touch()
    else:
        settings = {"loader": {"batch_size": 2}}
    result, cost = run_check(_factory(own, run_check.log), **settings)
    assert (result.passed, cost) == (True, WHOLE)
    assert (
        run_check(_factory(own, run_check.log), "closed-descriptor", **settings)[1]
        == SECOND + ALONE
    )


def test_a_failure_counts_if_the_dataset_works_without_a_fault(records, run_check):
    factory = _factory(records, run_check.log, ZerosOnError)
    run_check(factory, "worker-killed")
    result, cost = run_check(factory)
    assert (result.verdict, result.failed, cost) == (
        "corrupted",
        True,
        SECOND + 2 * ALONE + CONTROL,
    )


class Closed(Records):
    """Needs something that a fixture closes after each item."""

    def __init__(self, folder, is_open):
        assert is_open, "it is closed"
        super().__init__(folder)


def test_a_failure_of_data_that_a_fixture_closed_is_none(records, run_check):
    """From then on, each item has its own battery at once."""
    costs = []
    for name in ("open-error", "read-error", "closed-descriptor"):
        is_open = [True]
        factory = _factory(
            records, run_check.log, lambda folder, is_open=is_open: Closed(folder, is_open)
        )
        result, cost = run_check(factory, name)
        assert result.passed
        costs.append(cost)
        is_open.clear()
    assert costs[1] > costs[2] == WHOLE


class Logs(Records):
    def __getitem__(self, index):
        with (self.paths[0].parents[1] / "read.txt").open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


def test_what_the_items_own_trials_write_is_no_change(records, run_check):
    factory = _factory(records, run_check.log, Logs)
    run_check(factory, files="*.rec")
    assert run_check(factory, "closed-descriptor", files="*.rec")[1] == SECOND + ALONE


def test_relative_paths_are_those_of_the_present_item(tmp_path, run_check, monkeypatch):
    for name in ("open-error", "closed-descriptor"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write_records(tmp_path / name / "records")
        assert run_check(_factory("records", run_check.log, ByName), name)[0].passed


class ByName(Records):
    def __init__(self, folder):
        super().__init__(Path(folder))


BEFORE_INIT = "truncated-file"
AFTER = 1
"""The recovery pass in a new process."""


def test_files_that_are_damaged_at_rest_need_no_fault_free_run_of_their_own(records, run_check):
    factory = _factory(records, run_check.log)
    run_check(factory)
    costs = [run_check(factory, name)[1] for name in (BEFORE_INIT, BEFORE_INIT, "missing-file")]

    # No worker meets a file that is missing in its folder, so a trial in the workers follows.
    assert costs == [SECOND + ALONE + AFTER, ALONE + AFTER, ALONE + ALONE + AFTER]


class _Broken(Records):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info():
            raise OSError("not here")
        return super().__getitem__(index)


def test_the_battery_of_a_dataset_that_is_broken_without_a_fault_is_not_kept(records, run_check):
    factory = _factory(records, run_check.log, _Broken)
    verdicts = [run_check(factory, "workers-agree") for _ in range(2)]
    assert {result.verdict for result, _ in verdicts} == {"fails_without_fault"}
    assert len({cost for _, cost in verdicts}) == 1


pytest.importorskip("tqdm")
SCRIPT = """
import multiprocessing
import sys
import threading
from pathlib import Path
from pytest_dataloader_faults import check_dataset, explore, sweep
from pytest_dataloader_faults.battery.checking import progress_bar
from pytest_dataloader_faults.faults import OpenError
from support.datasets import Records

with progress_bar("nothing"):
    assert multiprocessing.get_start_method(allow_none=True) is None
    assert threading.active_count() == 1
multiprocessing.set_start_method("fork")
def make(): return Records(Path(sys.argv[1]))
check_dataset(make, only=["workers-agree", "open-error"])
sweep(make, faults=[OpenError()], max_trials=2)
explore(make, max_examples=3)
"""


def _run(records, **streams):
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    env.pop("PYTEST_CURRENT_TEST")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(records)]
    return subprocess.run(command, env=env, check=True, timeout=allowed(120), **streams)


@pytest.mark.slow
def test_a_terminal_shows_how_far_a_call_is(records):
    reading, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with open(reading, "rb", buffering=0) as screen, open(terminal, "wb") as stderr:
        _run(records, stderr=stderr)
        shown = screen.read(1 << 16).decode()
    for bar in ("check_dataset: 100%", "2/2", "sweep: 2it", "explore: "):
        assert bar in shown
