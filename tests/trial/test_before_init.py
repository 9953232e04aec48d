"""Faults that are there before the dataset is made: who meets them, and what comes after them."""

import ctypes
import signal
import threading

import pytest
import torch

from pytest_dataloader_faults import Verdict, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import FaultNotFiredError
from pytest_dataloader_faults.faults import HungRead, OpenError, ReadError, TruncatedFile
from pytest_dataloader_faults.outcomes.stages import START
from pytest_dataloader_faults.search import replay
from pytest_dataloader_faults.wire import FiringPlace
from support.before_init import (
    Checked,
    InProgram,
    InThread,
    InWorker,
    Mapped,
    MappedAsLong,
    ThreadOfWorker,
    Whole,
    _libc,
    announces_itself,
    write_pack,
)
from support.judging import judge_trial

_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


CONSTRUCTOR, MAIN, WORKER = FiringPlace
HALF = TruncatedFile("*.pack")
GONE = OpenError("*.pack", errno=2)


@pytest.fixture(name="pack")
def _pack(tmp_path, engine):
    return write_pack(tmp_path / "a.pack")


def _places(outcome) -> set[FiringPlace]:
    return {firing.place for each in outcome.faults for firing in each.firings}


def _judged(make, outcome):
    return judge_trial(outcome, take_reference(make, Settings()))


@pytest.mark.parametrize(
    ("kind", "place", "method"), [(Whole, CONSTRUCTOR, "fork"), (InWorker, WORKER, "forkserver")]
)
def test_who_opens_the_file_meets_the_fault(pack, kind, place, method):
    loader = {"multiprocessing_context": method, "num_workers": 2}
    outcome = run_trial(lambda: kind(pack), HALF, loader=loader, before_init=True)

    assert _places(outcome) == {place}


@pytest.mark.parametrize(
    ("kind", "place"), [(InThread, CONSTRUCTOR), (InProgram, CONSTRUCTOR), (ThreadOfWorker, WORKER)]
)
def test_threads_and_programs_belong_to_who_started_them(pack, kind, place):
    outcome = run_trial(lambda: kind(pack), ReadError("*.pack"), before_init=True)

    assert _places(outcome) == {place}


class Ends(Checked):
    """Does something else with the error of a bad file."""

    def __init__(self, path, end):
        self.end = end
        super().__init__(path)

    def read(self):
        try:
            return super().read()
        except ValueError:
            return self.end()


def _exit_silently():
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("end", "raised"), [(lambda: pytest.skip("no data"), "Skipped"), (_exit_silently, "SystemExit")]
)
def test_whatever_ends_the_constructor_is_judged(pack, end, raised):
    """Python prints nothing of the error that an exit takes the place of."""
    outcome = run_trial(lambda: Ends(pack, end), HALF, before_init=True)

    assert outcome.exception.type == raised
    verdict = Verdict.FAILED_CLEANLY if raised == "Skipped" else Verdict.FAILED_UNCLEARLY
    assert _judged(lambda: Checked(pack), outcome).verdict is verdict


def test_a_fault_that_is_not_for_constructors_says_so(pack):
    with pytest.raises(FaultNotFiredError, match="workers only, but the main process"):
        replay(lambda: Whole(pack), HungRead("*.pack"), before_init=True)
    with pytest.raises(FaultNotFiredError, match=r"(?s)Files opened:.*a\.pack"):
        replay(lambda: Whole(pack), TruncatedFile("*.npy"), before_init=True)


@pytest.mark.parametrize(
    ("fault", "phrase"),
    [
        (HALF, "beyond the point where it was truncated"),
        (ReadError("*.pack"), "that the disk could not deliver"),
    ],
)
def test_a_death_by_a_mapping_is_explained(pack, left_behind, fault, phrase):
    outcome = run_trial(lambda: MappedAsLong(pack), fault, before_init=True)
    assert (outcome.end.exitcode, outcome.phase) == (-signal.SIGBUS, START)
    assert outcome.fired == 1
    judgement = _judged(lambda: MappedAsLong(pack), outcome)
    assert judgement.verdict is Verdict.CRASHED
    assert judgement.sentence.startswith(
        "the process that calls make_dataset() was killed by SIGBUS"
    )
    assert phrase in judgement.sentence
    assert left_behind() == []


def test_a_worker_may_die_of_what_the_constructor_mapped(pack):
    """The kernel has no other way to say that a page cannot be read: that is clear."""
    outcome = run_trial(lambda: Mapped(pack), ReadError("*.pack"), before_init=True)

    assert {each.exitcode for each in outcome.deaths} == {-signal.SIGBUS}
    assert _judged(lambda: Mapped(pack), outcome).verdict is Verdict.FAILED_CLEANLY


def test_a_constructor_that_hangs_is_ended_at_the_deadline(pack, left_behind):
    def make():
        try:
            return Whole(pack)
        except OSError:
            threading.Event().wait()

    outcome = run_trial(make, ReadError("*.pack"), deadline=2, before_init=True)

    assert (outcome.timed_out, outcome.phase, outcome.recovery) == (True, START, None)
    judgement = _judged(lambda: Whole(pack), outcome)
    assert judgement.verdict is Verdict.HUNG
    assert judgement.sentence.startswith("make_dataset() neither finished")
    assert left_behind() == []


def test_the_recovery_is_made_by_another_process(pack, tmp_path):
    pids = tmp_path / "pids"
    pids.touch()  # What a trial creates after a fault is removed.
    outcome = run_trial(lambda: announces_itself(pack, pids), HALF, before_init=True)

    main_pid, second = pids.read_text(encoding="ascii").split()
    assert main_pid != second
    assert str(outcome.main.pid) == main_pid
    assert outcome.recovery.complete


class OfWorkers(InWorker):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is None:
            message = "in workers only"
            raise RuntimeError(message)
        return super().__getitem__(index)


def test_what_only_workers_can_read_recovers_in_workers(pack):
    outcome = run_trial(lambda: OfWorkers(pack), GONE, before_init=True)

    assert outcome.fired
    assert outcome.recovery.exception is None
    assert outcome.recovery.complete
    assert {each.worker for each in outcome.recovery.delivered} == {0, 1}
    assert _judged(lambda: OfWorkers(pack), outcome).verdict is Verdict.FAILED_CLEANLY
    assert replay(lambda: OfWorkers(pack), GONE, before_init=True) is Verdict.FAILED_CLEANLY
