"""Files of one kind are put under faults together, and each kind on its own."""

from __future__ import annotations

import fcntl
import uuid

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery._workload import kinds_of
from pytest_dataloader_faults.outcomes.records import FileCounts
from support.corpus.truncation import Indexed
from support.datasets import Records


def _kinds(*workers):
    """The kinds of the files of *workers*: each a text of names with the bytes that were read."""
    used = {
        number: {
            f"/data/{path}": FileCounts(1, 1, int(count))
            for path, count in (each.split(":") for each in worker.split())
        }
        for number, worker in enumerate(workers)
    }
    return [sorted(path.removeprefix("/data/") for path in kind) for kind in kinds_of(used)]


@pytest.mark.parametrize(
    ("workers", "kinds"),
    [
        ([], []),
        (["a.bin:9", "b.bin:9"], [["a.bin", "b.bin"]]),
        (["x.json:9 a.bin:99", "x.json:9 b.bin:99"], [["a.bin", "b.bin"], ["x.json"]]),
        (["part.0:9", "part.1:9"], [["part.0", "part.1"]]),
        (["cat/1.png:9", "dog/2.png:9"], [["cat/1.png", "dog/2.png"]]),
        (["x/1.png:9 y/1.png:8", ""], [["x/1.png"], ["y/1.png"]]),
        (["i.bin:5 a.bin:9", "i.bin:5 b.bin:9"], [["a.bin", "b.bin"], ["i.bin"]]),
        (["a.bin:9 b.bin:9", "a.bin:9 b.bin:9"], [["a.bin", "b.bin"]]),
        (["a.w:9 a.x:8 a.y:7 a.z:6"], [["a.w"], ["a.x"], ["a.y", "a.z"]]),
    ],
    ids=["none", "one", "index", "numbers", "classes", "pairs", "no suffix", "shards", "many"],
)
def test_kinds(workers, kinds):
    """By extension, by folders with the same names, and by who reads them; three at most."""
    assert _kinds(*workers) == kinds


def test_each_kind_is_asked_and_named(records):
    """The data is under faults while the index is not, and the text names both."""
    (result,) = check_dataset(lambda: Indexed(records), only="open-error")

    hit = [{each.path for each in trial.faults[0].firings} for trial in result.trials]
    assert [len(each) > 0 for each in hit] == [True, True]
    assert not hit[0] & hit[1]
    tried = "tried: index.json (failed_cleanly); 00.rec and 15 files like it (failed_cleanly)"
    assert tried in result.explanation


class Locked(Records):
    """Each sample is read under a lock, whose file has a new name for each dataset."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lock = folder.parent / f"{uuid.uuid4().hex}.lock"

    def __getitem__(self, index):
        with open(self.lock, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return super().__getitem__(index)


def test_files_with_new_names_each_time_are_no_failure(records):
    """No fault can happen to them, so the others decide."""
    (result,) = check_dataset(lambda: Locked(records), only="open-error")

    assert result.verdict == "failed_cleanly"
    assert result.outcome.fired


class OnlyLock(Locked):
    """It has no other files."""

    def __getitem__(self, index):
        with open(self.lock, "a+b"):
            return index


def test_a_fault_that_happens_to_no_file_is_a_failure(records):
    """Where there are no others, nothing has been shown."""
    (result,) = check_dataset(lambda: OnlyLock(records), only="open-error", on_fail=None)

    assert result.failed
    assert result.verdict == "not_exercised"


def test_files_of_one_kind_are_one_trial(records):
    """There is nothing more to run, and to tell."""
    (result,) = check_dataset(lambda: Records(records), only="open-error")

    assert len(result.trials) == 1
    assert "tried:" not in result.explanation
