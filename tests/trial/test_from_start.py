"""Faults that are there before the dataset is made: who meets them, and what comes after them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

from pytest_dataloader_faults import Contract, Verdict, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import (
    CorruptedFile,
    HungRead,
    OpenError,
    ReadError,
    ShortRead,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.globs import is_excluded
from pytest_dataloader_faults.outcomes.records import FiringPlace
from pytest_dataloader_faults.outcomes.stages import START
from pytest_dataloader_faults.search import replay
from support.from_start import (
    COUNT,
    ByOtherLoader,
    Checked,
    Indexed,
    InProgram,
    InThread,
    InWorker,
    Mapped,
    MappedAsLong,
    Missing,
    ReadsWhileSampling,
    ThreadOfWorker,
    Whole,
    announces_itself,
    write_pack,
)

CONSTRUCTOR, MAIN, WORKER = FiringPlace
METHODS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
HALF = TruncatedFile("*.pack")
GONE = OpenError("*.pack", errno=2)


@pytest.fixture(name="pack")
def _pack(tmp_path, engine):
    return write_pack(tmp_path / "a.pack")


def _places(outcome) -> set[FiringPlace]:
    return {one.place for each in outcome.faults for one in each.firings}


def _judged(make, outcome, contract=None):
    reference = take_reference(make, Settings())
    return outcome.judge(reference, contract or Contract())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kind", "place"), [(Whole, CONSTRUCTOR), (Mapped, CONSTRUCTOR), (InWorker, WORKER)]
)
def test_who_opens_the_file_meets_the_fault(pack, kind, place, method):
    """The firing says whether that was the constructor or a worker, however workers start."""
    if kind is Mapped and method != "fork":
        pytest.skip("a mapping cannot be sent to a worker that is not forked")
    loader = {"multiprocessing_context": method, "num_workers": 2}
    outcome = run_trial(lambda: kind(pack), HALF, loader=loader, from_start=True)

    assert _places(outcome) == {place}


def test_two_workers_count_alone(pack):
    """Each has a first open of its own, though one filter is over both."""
    fault = OpenError("*.pack", nth=2, times=1)
    outcome = run_trial(lambda: InWorker(pack), fault, from_start=True)

    fired = [(one.worker, one.fetch) for one in outcome.faults[0].firings]
    assert sorted(fired) == [(0, 1), (1, 1)]
    assert {each.worker for each in outcome.workers} == {0, 1}
    assert outcome.main.worker is None


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (InThread, CONSTRUCTOR),
        (InProgram, CONSTRUCTOR),
        (ByOtherLoader, WORKER),
        (ThreadOfWorker, WORKER),
    ],
)
def test_threads_and_programs_belong_to_who_started_them(pack, kind, place):
    """A call is that of the nearest process of the trial that it descends from."""
    outcome = run_trial(lambda: kind(pack), ReadError("*.pack"), from_start=True)

    assert _places(outcome) == {place}


def test_what_a_sampler_reads_is_read_by_the_main_process(pack):
    """That is after the dataset was made, and before or between batches."""

    def make():
        return DataLoader(InWorker(pack), sampler=ReadsWhileSampling(pack), num_workers=1)

    outcome = run_trial(make, CorruptedFile("*.pack"), loader={}, from_start=True)

    assert _places(outcome) == {MAIN, WORKER}


def test_without_workers_the_main_process_meets_all(pack):
    """Once it has made the dataset, it makes the samples, too."""
    outcome = run_trial(lambda: InWorker(pack), HALF, loader={"num_workers": 0}, from_start=True)

    assert _places(outcome) == {MAIN}
    assert outcome.faults[0].firings[0].epoch == 1
    assert outcome.exception.type == "ValueError"


def test_a_shorter_dataset_is_wrong_and_the_numbers_are_told(pack):
    """The loop over it ends without an error, and half of the samples never came."""
    outcome = run_trial(lambda: Whole(pack), HALF, from_start=True)

    found = _judged(lambda: Whole(pack), outcome)
    assert found.verdict is Verdict.CORRUPTED
    assert found.sentence == (
        "a.pack has 50 % fewer bytes; 20 of 40 samples are there, and no exception was raised"
    )


def test_a_dataset_that_may_skip_may_be_shorter(pack):
    """What it has is what the whole file has, and the number that is missing is told."""
    outcome = run_trial(lambda: Whole(pack), HALF, from_start=True)

    found = _judged(lambda: Whole(pack), outcome, Contract(may_skip=True))
    assert found.verdict is Verdict.SURVIVED
    assert "20 samples that faults hit are missing" in found.sentence


def _drawn_again():
    generator = torch.Generator().manual_seed(1)
    return {"sampler": WeightedRandomSampler([1.0] * COUNT, 3 * COUNT, generator=generator)}


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"batch_size": 16, "drop_last": True},
        _drawn_again,
        lambda: {"sampler": range(0, COUNT, 2)},
    ],
    ids=["drop_last", "replacement", "sampler"],
)
def test_how_many_samples_there_are_is_not_how_many_came(pack, options):
    """A loader may leave some out, or draw some again, with and without a fault."""

    def make():
        return DataLoader(Whole(pack), num_workers=1, **options())

    fault = ShortRead("*.pack", max_bytes=0.5)
    outcome = run_trial(make, fault, loader={}, from_start=True)

    assert outcome.fired
    assert _judged(make, outcome).verdict is Verdict.SURVIVED


class Ends(Checked):
    """Does something else with the error of a bad file."""

    def __init__(self, path, end):
        self.end = end
        super().__init__(path)

    def read(self):
        """What is in the file, or what comes of its end."""
        try:
            return super().read()
        except ValueError:
            return self.end()


def _exit_silently():
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (lambda: pytest.skip("no data"), "Skipped"),
        (_exit_silently, "SystemExit"),
    ],
)
def test_whatever_ends_the_constructor_is_judged(pack, end, raised):
    """Python prints nothing of the error that an exit takes the place of."""
    outcome = run_trial(lambda: Ends(pack, end), HALF, from_start=True)

    assert outcome.exception.type == raised
    told = Verdict.FAILED_CLEANLY if raised == "Skipped" else Verdict.FAILED_UNCLEARLY
    assert _judged(lambda: Checked(pack), outcome).verdict is told


@pytest.mark.parametrize("fault", [HALF, ReadError("*.pack")])
def test_a_factory_that_gives_nothing_hides_the_cause(pack, fault):
    """The sentence about that is ours, whatever words are in it."""

    def make():
        try:
            return Checked(pack)
        except (ValueError, OSError):
            return None

    outcome = run_trial(make, fault, from_start=True)

    assert outcome.exception.type == "UnusableDatasetError"
    assert _judged(lambda: Checked(pack), outcome).verdict is Verdict.FAILED_UNCLEARLY


def test_a_process_that_a_failed_constructor_leaves_is_a_leak(pack, left_behind):
    """As one that a dataset leaves after an epoch."""

    def make():
        with contextlib.ExitStack() as stack:
            stack.callback(subprocess.Popen, ["sleep", "600"])
            return Checked(pack)

    outcome = run_trial(make, HALF, from_start=True)

    found = _judged(lambda: Checked(pack), outcome)
    assert (found.verdict, "sleep 600" in found.sentence) == (Verdict.LEAKED, True)
    assert left_behind() == []


@pytest.mark.parametrize("limit", [4096, 1024])
def test_a_constructor_may_lower_the_limit_of_descriptors(pack, limit):
    """Files under faults get numbers below it from then on."""

    def make():
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return Checked(pack)

    outcome = run_trial(make, ReadError("*.pack"), from_start=True)

    assert _judged(lambda: Checked(pack), outcome).verdict is Verdict.FAILED_CLEANLY


def test_a_limit_that_leaves_no_number_is_refused(pack):
    """The error says what the dataset did, and what to do."""

    def make():
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        return Checked(pack)

    with pytest.raises(InvalidArgumentError, match="lowered its limit of descriptors to 128"):
        run_trial(make, ReadError("*.pack"), from_start=True)


def test_a_fault_that_is_not_for_constructors_says_so(pack):
    """The file was read, though not where the fault happens."""
    with pytest.raises(FaultNotFiredError, match="workers only, and the loader's own process"):
        replay(lambda: Whole(pack), HungRead("*.pack"), from_start=True)
    with pytest.raises(FaultNotFiredError, match=r"(?s)Files opened:.*a\.pack"):
        replay(lambda: Whole(pack), TruncatedFile("*.npy"), from_start=True)


def test_the_interpreter_s_own_files_are_no_data():
    """A spawned worker reads them, also where all of it is under the filter."""
    assert is_excluded(f"{sys.prefix}/pyvenv.cfg")


def test_an_empty_dataset_is_no_refusal(pack):
    """A trial of a dataset that is empty by itself is refused; this one has been emptied."""
    outcome = run_trial(lambda: Whole(pack), TruncatedFile("*.pack", keep=0), from_start=True)

    found = _judged(lambda: Whole(pack), outcome)
    assert found.verdict is Verdict.CORRUPTED
    assert found.sentence.startswith("a.pack is empty; 0 of 40 samples are there")


@pytest.mark.parametrize(
    "fault", [HALF, GONE, OpenError("*.pack"), TruncatedFile("*.pack", keep=0)]
)
def test_an_error_of_the_constructor_is_a_failure_and_no_refusal(pack, fault):
    """It names its cause, and the dataset that a new process makes has everything."""
    outcome = run_trial(lambda: Checked(pack), fault, from_start=True)

    assert _judged(lambda: Checked(pack), outcome).verdict is Verdict.FAILED_CLEANLY
    assert [each.surfaced for each in outcome.faults] == [1]
    assert len(outcome.recovery.delivered) == COUNT // 4


def test_an_unclear_error_of_the_constructor_is_one(pack):
    """Its reader would not find the file."""

    class Hides(Checked):
        def read(self):
            try:
                return super().read()
            except ValueError:
                message = "bad dataset"
                raise RuntimeError(message) from None

    outcome = run_trial(lambda: Hides(pack), HALF, from_start=True)

    assert _judged(lambda: Hides(pack), outcome).verdict is Verdict.FAILED_UNCLEARLY


@pytest.mark.parametrize("ask", [os.path.exists, os.path.isfile, lambda path: os.access(path, 4)])
def test_a_missing_file_is_missing_for_each_call_that_names_it(pack, ask):
    """So a dataset that asks first goes the way that it goes without the file."""
    outcome = run_trial(lambda: Missing(pack, ask), GONE, from_start=True)

    found = _judged(lambda: Missing(pack), outcome)
    assert found.sentence.startswith("a.pack is missing; 0 of 40 samples are there")


def test_a_missing_file_is_listed(pack):
    """Only calls that name it fail."""
    outcome = run_trial(lambda: Whole(next(pack.parent.glob("*.pack"))), GONE, from_start=True)
    assert outcome.exception.type == "FileNotFoundError"


def test_damage_may_pass_unnoticed(pack):
    """As everywhere, unless the contract says that it does not."""
    outcome = run_trial(lambda: Whole(pack), CorruptedFile("*.pack"), from_start=True)

    assert _judged(lambda: Whole(pack), outcome).verdict is Verdict.SURVIVED
    promised = Contract(detects_corruption=True)
    assert _judged(lambda: Whole(pack), outcome, promised).verdict is Verdict.CORRUPTED


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (HALF, MappedAsLong, "beyond the end to which the file was cut off"),
        (ReadError("*.pack"), MappedAsLong, "that the disk could not deliver"),
    ],
)
def test_a_death_by_a_mapping_is_explained(pack, left_behind, fault, kind, told):
    """The report of the supervisor comes although the process that it served is dead."""
    for _ in range(5):
        outcome = run_trial(lambda: kind(pack), fault, from_start=True)
        assert (outcome.exitcode, outcome.phase) == (-signal.SIGBUS, START)
        assert outcome.fired == 1
    found = _judged(lambda: kind(pack), outcome)
    assert found.verdict is Verdict.CRASHED
    assert found.sentence.startswith("the process that calls make_dataset() died: signal 7")
    assert told in found.sentence
    assert left_behind() == []


def test_a_worker_may_die_of_what_the_constructor_mapped(pack):
    """The kernel has no other way to say that a page cannot be read: that is clear."""
    outcome = run_trial(lambda: Mapped(pack), ReadError("*.pack"), from_start=True)

    assert {each.exitcode for each in outcome.deaths} == {-signal.SIGBUS}
    assert _judged(lambda: Mapped(pack), outcome).verdict is Verdict.FAILED_CLEANLY


def test_a_constructor_that_hangs_is_ended_at_the_deadline(pack, left_behind):
    """It waits for a lock that nobody releases, once the file could not be read."""

    def make():
        try:
            return Whole(pack)
        except OSError:
            threading.Event().wait()

    outcome = run_trial(make, ReadError("*.pack"), deadline=2, from_start=True)

    assert (outcome.timed_out, outcome.phase, outcome.recovery) == (True, START, None)
    found = _judged(lambda: Whole(pack), outcome)
    assert found.verdict is Verdict.HUNG
    assert "no end of make_dataset() within 2 s" in found.sentence
    assert left_behind() == []


def test_the_recovery_is_made_by_another_process(pack, tmp_path):
    """Nothing that the first one keeps in memory can be met again."""
    pids = tmp_path / "pids"
    outcome = run_trial(lambda: announces_itself(pack, pids), HALF, from_start=True)

    first, second = pids.read_text(encoding="ascii").split()
    assert first != second
    assert str(outcome.main.pid) == first
    assert outcome.recovery.complete


def test_an_index_that_was_written_of_a_broken_file_is_found(pack):
    """It says 20 records, and the whole file has 40."""
    outcome = run_trial(lambda: Indexed(pack), HALF, from_start=True)

    pack.with_suffix(".index").unlink()
    found = _judged(lambda: Indexed(pack), outcome, Contract(may_skip=True))
    assert found.verdict is Verdict.POISONED
    assert found.sentence.endswith("made of the same files has 20 of 40 samples")


def test_the_folder_of_a_factory_is_the_same_for_the_recovery(pack):
    """A cache there stays from one process of a trial to the next."""

    def make(folder):
        copy = folder / "copy.pack"
        if not copy.exists():
            copy.write_bytes(pack.read_bytes())
        return Whole(copy)

    outcome = run_trial(make, TruncatedFile("*/a.pack"), from_start=True)

    found = _judged(make, outcome, Contract(may_skip=True))
    assert found.verdict is Verdict.POISONED


def test_faults_of_workers_can_be_armed_as_well(pack):
    """They do not concern the process that has the workers."""
    outcome = run_trial(lambda: Whole(pack), WorkerKilled(worker=1), from_start=True)

    assert [one.worker for one in outcome.faults[0].firings] == [1]
    assert [each.worker for each in outcome.deaths] == [1]


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_what_is_neither_true_nor_false_is_refused(pack, given):
    """The error shows the value, and what is allowed."""
    with pytest.raises(InvalidArgumentError, match=f"from_start={given!r} must be True or False"):
        run_trial(lambda: Whole(pack), HALF, from_start=given)


def test_the_python_engine_is_refused(pack):
    """It replaces what workers call, and the constructor would not meet the fault."""
    with pytest.raises(InvalidArgumentError, match="takes the kernel engine"):
        run_trial(lambda: Whole(pack), HALF, engine="python", from_start=True)


def test_without_a_fault_the_dataset_is_as_ever(pack):
    """The filter alone changes no sample, and there is nothing to recover from."""
    outcome = run_trial(lambda: Whole(pack), from_start=True)

    assert _judged(lambda: Whole(pack), outcome).verdict is Verdict.SURVIVED
    assert outcome.recovery is None


def test_the_trial_can_be_repeated(pack):
    """Its line says that the faults were there from the start."""
    outcome = run_trial(lambda: Whole(pack), HALF, from_start=True)

    assert "from_start=True" in outcome.reproduce()
    assert type(outcome).from_dict(outcome.to_dict()) == outcome
