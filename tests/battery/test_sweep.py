"""A sweep: the N-th operation fails, for each N there is, and is judged as a check is."""

import errno
import fcntl
import os

import pytest
import torch

from pytest_dataloader_faults import sweep
from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.faults import (
    HungRead,
    ListingError,
    ListingOrder,
    LockError,
    OpenError,
    ReadError,
    ShortRead,
)
from support.corpus.endless import RandomForAll
from support.datasets import Records

SAMPLES, BROKEN = 2, 7
ONE_WORKER = {"num_workers": 1, "batch_size": 2}
READS = [ReadError()]
_needs_engine = pytest.mark.skipif(
    bool(explain_missing_engine()), reason=str(explain_missing_engine())
)


class FewReads(Records):
    """One open and one read for each sample, and nothing else."""

    def __init__(self, folder, samples=SAMPLES):
        self.paths = sorted(folder.iterdir())[:samples]

    def __getitem__(self, index):
        fd = os.open(self.paths[index], os.O_RDONLY)
        try:
            return torch.tensor(list(self._read(fd)))
        finally:
            os.close(fd)

    def _read(self, fd):
        return os.read(fd, 64)


class SwallowsOne(FewReads):
    """Zeros in place of the seventh read, where that fails; any other error is raised."""

    count = 0

    def _read(self, fd):
        self.count += 1
        try:
            return super()._read(fd)
        except OSError:
            if self.count != BROKEN:
                raise
            return bytes(64)


def test_a_sweep_ends_where_the_operations_end(records):
    swept = sweep(lambda: FewReads(records), loader=ONE_WORKER)
    steps = [(type(each.fault).__name__, each.fault.times, each.fault.nth) for each in swept.steps]
    assert steps == [
        (kind, times, nth)
        for kind in ("OpenError", "ReadError")
        for times in (1, None)
        for nth in range(1, SAMPLES + 2)
    ]
    assert swept.complete
    assert swept.counts == {"failed_cleanly": 4 * SAMPLES}
    assert [each.fault.nth for each in swept.steps if not each.fired] == [SAMPLES + 1] * 4
    assert all(each.passed for each in swept.steps)


def test_the_one_operation_that_matters_is_found(records):
    """A dataset that swallows its seventh read error is caught there.

    The line repeats it, and the next start is the step after it.
    """
    with pytest.raises(CheckFailedError, match=r"corrupted: sample 6 \(batch 3\)") as caught:
        sweep(lambda: SwallowsOne(records, 8), loader=ONE_WORKER, faults=READS)
    text = str(caught.value)
    line = text.partition("reproduce: ")[2].splitlines()[0]
    assert "sweep(make_dataset, faults=[ReadError()], start_at=ReadError(nth=7, times=1)" in line
    assert text.splitlines()[-1].startswith("7 trials: 6 failed_cleanly, 1 corrupted; stopped")
    names = {
        "sweep": sweep,
        "ReadError": ReadError,
        "make_dataset": lambda: SwallowsOne(records, 8),
    }
    with pytest.raises(CheckFailedError, match="corrupted: sample 6") as again:
        eval(line, names)  # noqa: S307  # our own
    next_fault = ReadError(nth=BROKEN + 1, times=1)
    ends = f"1 trial: 1 corrupted; stopped; continue with start_at={next_fault!r}"
    assert str(again.value).splitlines()[-1] == ends


def test_a_sweep_can_go_on_after_a_violation(records):
    swept = sweep(
        lambda: SwallowsOne(records, 8),
        loader=ONE_WORKER,
        faults=READS,
        start_at=ReadError(nth=6, times=1),
        on_fail=None,
        max_trials=4,
    )
    assert [each.fault.nth for each in swept.steps if not each.passed] == [BROKEN]
    assert swept.table().splitlines() == [
        "   N  ReadError EIO, once",
        "   6  failed_cleanly",
        "   7  corrupted",
        "   8  failed_cleanly",
        "   9  .",
        "4 trials: 2 failed_cleanly, 1 corrupted; stopped; continue with start_at=ReadError()",
    ]


def test_a_sweep_is_bounded_and_continues_where_it_stopped(records):
    options = {"loader": ONE_WORKER, "faults": READS}
    first_part = sweep(lambda: FewReads(records), max_trials=5, **options)
    assert (len(first_part.steps), first_part.complete) == (5, False)
    assert "continue with start_at=ReadError(" in str(first_part)
    second_part = sweep(lambda: FewReads(records), start_at=first_part.next, **options)
    assert second_part.complete
    assert [
        (each.fault.times, each.fault.nth) for each in (*first_part.steps, *second_part.steps)
    ] == [(times, nth) for times in (1, None) for nth in range(1, SAMPLES + 2)]


def test_faults_are_templates(records):
    swept = sweep(
        lambda: FewReads(records),
        faults=[ReadError("*/00.rec", errno.ESTALE), ShortRead(max_bytes=8)],
        loader=ONE_WORKER,
        on_fail=None,
        max_trials=6,
    )
    shorts = [each for each in swept.steps if isinstance(each.fault, ShortRead)]
    assert [(each.fired > 0, each.passed) for each in shorts] == [(True, False)] * 2
    stale = [each.fault for each in swept.steps if isinstance(each.fault, ReadError)]
    assert [each.nth for each in stale] == [1, 2, 1, 2]
    assert "ReadError ESTALE, once" in swept.table()


class Listed(FewReads):
    """Each sample lists the folder."""

    def __init__(self, folder):
        super().__init__(folder)
        self.folder = folder

    def __getitem__(self, index):
        self.paths = sorted(self.folder.iterdir())
        return super().__getitem__(index)


@_needs_engine
def test_each_listing_of_a_folder_fails(records):
    swept = sweep(lambda: Listed(records), faults=[ListingError()], loader=ONE_WORKER)

    assert [each.fired > 0 for each in swept.steps] == [True, True, False] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"faults": [ReadError(nth=2)]}, "must not set nth, times or probability"),
        ({"faults": [ReadError(probability=0.5)]}, "must not set nth, times or probability"),
        ({"faults": [HungRead()]}, "such as OpenError"),
        ({"faults": [ListingOrder()]}, "must be a fault with path, nth and times"),
        ({"faults": ["read"]}, "such as OpenError"),
        ({"max_trials": 0}, "max_trials=0 must be an int, 1 or more"),
        ({"on_fail": "ignore"}, "on_fail='ignore' must be one of"),
        ({"start_at": OpenError("*.other", nth=3)}, r"must be one of these steps"),
    ],
    ids=str,
)
def test_what_cannot_be_swept_is_refused(options, message, records):
    with pytest.raises(InvalidArgumentError, match=message):
        sweep(lambda: FewReads(records), loader=ONE_WORKER, **options)


def test_a_dataset_without_files_cannot_be_swept():
    """A sweep of nothing would pass, and has shown nothing."""
    with pytest.raises(UnusableDatasetError, match="nothing to sweep"):
        sweep(lambda: [torch.tensor(number) for number in range(8)])


@_needs_engine
@pytest.mark.parametrize("fault", [LockError(), ListingError()])
def test_a_sweep_needs_an_operation_that_the_fault_matches(fault, records):
    with pytest.raises(UnusableDatasetError, match="nothing to sweep"):
        sweep(lambda: FewReads(records), faults=[fault], loader=ONE_WORKER)


class LocksFiles(FewReads):
    """Locks each file while it reads it, and does not wait for the lock."""

    def _read(self, fd):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return super()._read(fd)


@_needs_engine
def test_a_sweep_fails_each_lock(records):
    options = {"faults": [LockError()], "loader": ONE_WORKER, "max_trials": 3}
    swept = sweep(lambda: LocksFiles(records), **options)

    assert [each.fired > 0 for each in swept.steps] == [True, True, False]


def test_a_stream_of_which_no_content_is_compared_cannot_be_swept(records):
    with pytest.raises(UnusableDatasetError, match="Use a finite stream"):
        sweep(lambda: RandomForAll(records), faults=[ShortRead()], loader=ONE_WORKER)


class _FailsInWorkers(FewReads):
    def _read(self, fd):
        if torch.utils.data.get_worker_info():
            message = "not here"
            raise OSError(message)
        return super()._read(fd)


def test_a_dataset_that_fails_without_a_fault_is_not_swept(records):
    with pytest.raises(CheckFailedError, match=r"^fails_without_fault: .*OSError"):
        sweep(lambda: _FailsInWorkers(records), loader=ONE_WORKER)


def test_a_sweep_in_which_no_fault_happens_fails(records):
    nothing = {"faults": [OpenError("*.nothing")], "loader": ONE_WORKER}
    with pytest.raises(CheckFailedError, match="not_exercised: no fault of the sweep fired"):
        sweep(lambda: FewReads(records), **nothing)
    with pytest.warns(UserWarning, match="no fault of the sweep fired") as warned:
        sweep(lambda: FewReads(records), **nothing, on_fail="warn")
    assert warned[0].filename == __file__


class Counted(FewReads):
    """Asks a file for the number of its samples, and takes none if it cannot."""

    def __init__(self, folder):
        super().__init__(folder)
        count = folder.parent / "count.txt"
        try:
            self.paths = self.paths[: int(count.read_text(encoding="ascii"))]
        except OSError:
            self.paths = []


def test_operations_of_the_constructor_are_swept_on_request(records):
    """Workers never open that file, so a sweep of theirs passes."""
    (records.parent / "count.txt").write_text(str(SAMPLES), encoding="ascii")
    options = {"loader": ONE_WORKER, "faults": [OpenError()], "max_trials": 3}
    assert all(each.passed for each in sweep(lambda: Counted(records), **options).steps)

    options = {**options, "max_trials": 1, "before_init": True, "on_fail": None}
    (step,) = sweep(lambda: Counted(records), **options).steps

    assert (step.fault.nth, step.verdict, step.passed) == (1, "corrupted", False)
    assert "count.txt cannot be opened; only 0 of 2 samples are left" in step.explanation
    assert "before_init=True" in step.explanation
