"""In each kind of trial, a dataset that destroys its files after a fault loses none of them."""

import errno
import functools
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from pytest_dataloader_faults import Verdict, check_dataset, inject, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import (
    MemoryExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes.stages import Change, FileHistory, Refusal
from support import destroyers
from support.datasets import write_records
from support.destroyers import Deletes, Log
from support.epochs import alone, epoch
from support.facts import UNCLEAR, fired, ordinary, revised, stream, stream_reference
from support.judging import judge_trial
from support.protection import CONTENT, Deed, changes, contents, perform_as_expected
from support.rows import rows, slow
from support.waiting import until

pytestmark = pytest.mark.usefixtures("engine")

RECORDS = "*.rec"


@pytest.fixture(name="log")
def _log(tmp_path):
    """What the dataset notes: an empty file, which it may append to."""
    path = tmp_path / "attempts"
    path.touch()
    log = Log(path)
    yield log
    os.close(log.fd)


def trial(*faults, **options):
    return lambda make: run_trial(make, *faults, **options)


def checks(*names, **options):
    return lambda make: check_dataset(make, only=names, on_fail=None, **options)


RUN_TIME = {
    "read error": trial(ReadError(RECORDS)),
    "no memory": trial(MemoryExhaustion()),
    "read error before init": trial(ReadError(RECORDS), before_init=True),
    "without workers": trial(ReadError(RECORDS), loader={"num_workers": 0}),
    "forkserver": trial(
        ReadError(RECORDS), loader={"num_workers": 1, "multiprocessing_context": "forkserver"}
    ),
    "ranks": trial(ReadError(RECORDS), ranks=2),
}
AT_REST = {"truncated before init": trial(TruncatedFile(RECORDS), before_init=True)}
DATASETS = {
    "in another worker": (destroyers.DeletesElsewhere, trial(ReadError(RECORDS, workers=(0,)))),
    "after a crash": (
        destroyers.DeletesAfterCrash,
        trial(WorkerKilled(at=2), loader={"num_workers": 1}),
    ),
    "in a new process": (destroyers.DeletesOnRestart, trial(ReadError(RECORDS), before_init=True)),
    "in a daemon": (destroyers.LeavesDaemon, trial(ReadError(RECORDS), loader={"num_workers": 1})),
    "in the main process": (destroyers.in_the_main_process, trial(ReadError(RECORDS))),
    "in the process that resumes": (destroyers.resumed, checks("resumes")),
}
ROWS = {**{name: (Deletes, go) for name, go in {**RUN_TIME, **AT_REST}.items()}, **DATASETS}


SLOW = {
    *("no memory", "without workers", "truncated before init"),
    *("in a new process", "in the process that resumes"),
}
"""Rows of which another one has most of the mechanism."""


@pytest.mark.parametrize("row", [slow(each) if each in SLOW else each for each in ROWS])
def test_nothing_is_lost(row, records, log):
    make, go = ROWS[row]
    before = contents(records)
    go(functools.partial(make, records, log))

    assert changes(before, contents(records)) == []
    assert "EROFS" in log.lines()


def of_refusal(fault, *, is_read=True, change=Change.UNLINK, **facts):
    refusal = Refusal("/data/a.rec", change, change.value, 0, is_read)
    return revised(ordinary(stream("d0"), fired(fault)), notes=(refusal,), **facts)


POISONED = {
    "read error": of_refusal(ReadError()),
    "no permission": of_refusal(OpenError(errno=errno.EACCES)),
    "dead worker": of_refusal(WorkerKilled()),
    "overwritten": of_refusal(ReadError(), change=Change.WRITE),
    "then an unclear error": of_refusal(ReadError(), epochs=stream(error=UNCLEAR)),
    "then a hang": of_refusal(ReadError(), timed_out=True),
    "then a substitute": of_refusal(ReadError(), epochs=stream("d0 other")),
}
NOT_EXERCISED = {
    "truncated": of_refusal(TruncatedFile()),
    "missing": of_refusal(OpenError(errno=errno.ENOENT)),
    "another file": of_refusal(ReadError(), is_read=False),
}


@rows("name", [*POISONED, *NOT_EXERCISED], ids=str)
def test_who_deletes_a_sound_file_that_it_reads_poisons_it(name):
    """Whatever the refusal has led to. Anything else can be tested only with a copy."""
    is_poisoned = name in POISONED
    outcome = (POISONED if is_poisoned else NOT_EXERCISED)[name]
    finding = judge_trial(outcome, stream_reference("d0"))

    assert finding.verdict is (Verdict.POISONED if is_poisoned else Verdict.NOT_EXERCISED)
    verb = "overwrite" if name == "overwritten" else "delete"
    assert f"would {verb} /data/a.rec" in finding.sentence
    assert ("copy=" in finding.sentence) is not is_poisoned


def test_a_trial_says_what_was_refused(records, log):
    """Whether the trial reads that file, and which one it is."""
    records.with_name("notes.txt").write_text("notes")
    outcome = run_trial(lambda: destroyers.DeletesNotes(records, log), ReadError("*/05.rec"))

    assert {(Path(each.path).name, each.is_read) for each in outcome.refusals} == {
        ("notes.txt", False)
    }


def test_a_copy_may_be_destroyed(records, log):
    before = contents(records)
    run_trial(lambda folder: Deletes(folder, log), TruncatedFile(RECORDS), copy=records)

    assert changes(before, contents(records)) == []
    assert "done" in log.lines()
    assert "EROFS" not in log.lines()


@pytest.fixture(name="outside")
def _outside():
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield write_records(folder / "records")
    shutil.rmtree(folder)


def test_inject_protects_files(outside, log):
    before = contents(outside)
    with pytest.warns(RuntimeWarning, match=rf"tried to delete {outside}/\d\d.rec"):
        _inject_and_iterate(Deletes(outside, log))

    assert changes(before, contents(outside)) == []
    assert set(log.lines()) == {"EROFS"}


def _inject_and_iterate(dataset):
    with inject(ReadError(RECORDS)):
        epoch(alone(dataset))


def test_tests_may_move_what_is_in_their_temporary_folders(records, log):
    _inject_and_iterate(Deletes(records, log))

    assert log.lines()[0] == "done"
    assert not records.exists()


@pytest.fixture(name="cache")
def _cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "old.bin").write_bytes(CONTENT)
    return folder


@pytest.mark.parametrize(
    ("kind", "fault", "before_init"),
    [
        (destroyers.Caches, ReadError("*/15.rec"), False),
        (destroyers.CachesAtStart, ReadError(RECORDS), True),
    ],
)
def test_what_a_trial_creates_elsewhere_is_removed(kind, fault, before_init, records, log, cache):
    before = contents(cache)
    outcome = run_trial(lambda: kind(records, log, cache), fault, before_init=before_init)

    assert outcome.fired
    assert changes(before, contents(cache)) == []


def test_what_a_run_that_failed_has_created_belongs_to_the_dataset(cache):
    def make():
        (cache / "new.bin").write_bytes(CONTENT)
        raise ValueError

    history = FileHistory()
    with pytest.raises(UnusableDatasetError):
        take_reference(make, history=history)
    ((begin, end),) = history.unseen
    assert begin < (cache / "new.bin").stat().st_mtime < end


def test_a_trial_without_a_fault_removes_nothing(records, log, cache):
    run_trial(lambda: destroyers.Caches(records, log, cache))

    assert len(os.listdir(cache)) == 1 + 16 * 3
    assert (cache / "7.bin").read_bytes() == (records / "07.rec").read_bytes()


def replace(cache):
    """What another program does to a file and a folder of a trial."""
    until((cache / "0.d" / "inner" / "file").exists)
    (cache / "0.d" / "inner" / "theirs").write_bytes(CONTENT)
    (cache / "theirs").write_bytes(CONTENT)
    os.replace(cache / "theirs", cache / "0.bin")


class CachesWithOthers(destroyers.Caches):
    """Waits for another program after its first record."""

    def write(self, index, data):
        super().write(index, data)
        if index == 0:
            until(lambda: (self.cache / "0.bin").read_bytes() == CONTENT)


def test_what_others_have_put_there_stays(records, log, cache):
    process = multiprocessing.get_context("fork").Process(target=replace, args=(cache,))
    process.start()
    run_trial(lambda: CachesWithOthers(records, log, cache), ReadError("*/15.rec"))
    process.join()

    assert (cache / "0.bin").read_bytes() == CONTENT
    assert sorted(contents(cache)) == [
        ".",
        "0.bin",
        "0.d",
        "0.d/inner",
        "0.d/inner/theirs",
        "old.bin",
    ]


def hide(folder):
    """Prepare a folder with nothing but a file that a fault hides."""
    (folder / "hidden").mkdir()
    (folder / "hidden" / "a.hid").write_bytes(CONTENT)


def remove_listed(remove):
    def do(folder):
        assert os.listdir(folder / "hidden") == []
        remove(folder / "hidden")

    return do


def test_a_folder_that_seems_empty_is_never_said_to_be_full(tmp_path):
    deeds = {
        "rmdir": Deed(remove_listed(os.rmdir), "rmdir", "hidden", "EROFS", hide),
        "rmtree": Deed(remove_listed(shutil.rmtree), "rmdir", "hidden", "EROFS", hide),
    }
    perform_as_expected(deeds, tmp_path, OpenError("*.hid", errno.ENOENT))
