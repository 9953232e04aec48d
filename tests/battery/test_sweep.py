"""A sweep: the N-th operation fails, for each N there is, and is judged as a check is."""

import os

import pytest
import torch

from pytest_dataloader_faults import sweep
from pytest_dataloader_faults.exceptions import CheckFailedError, UnusableDatasetError
from pytest_dataloader_faults.faults import OpenError, ReadError
from support.datasets import Records

SAMPLES, BROKEN = 2, 7
NEXT = ReadError(nth=BROKEN + 1, times=1)
ONE_WORKER = {"num_workers": 1, "batch_size": 2}
READS = [ReadError(times=1), ReadError()]


class FewReads(Records):
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
    results = sweep(lambda: FewReads(records), loader=ONE_WORKER)

    assert [each.check for each in results] == [
        str(kind(nth=nth, times=times))
        for kind in (OpenError, ReadError)
        for times in (1, None)
        for nth in range(1, SAMPLES + 1)
    ]
    assert {(each.verdict, each.passed, each.outcome.fired > 0) for each in results} == {
        ("failed_cleanly", True, True)
    }


def test_the_one_operation_that_matters_is_found(records):
    """A dataset that swallows its seventh read error is caught there.

    One line repeats it, and another continues after it.
    """
    with pytest.raises(CheckFailedError, match=r"corrupted: sample 6 \(batch 3\)") as caught:
        sweep(lambda: SwallowsOne(records, 8), loader=ONE_WORKER, faults=READS)
    text = str(caught.value)
    line = text.partition("reproduce: ")[2].splitlines()[0]
    assert line.startswith("sweep(make_dataset, faults=[ReadError(nth=7, times=1)], max_trials=1")
    assert text.splitlines()[-1] == f"continue the sweep with faults={[NEXT, ReadError()]!r}"
    names = {"sweep": sweep, "ReadError": ReadError}
    names["make_dataset"] = lambda: SwallowsOne(records, 8)
    with pytest.raises(CheckFailedError, match="corrupted: sample 6"):
        eval(line, names)  # noqa: S307  # our own


def test_a_sweep_is_bounded_and_says_how_to_continue(records):
    options = {"loader": ONE_WORKER, "max_trials": 4}
    with pytest.warns(RuntimeWarning, match=r"stopped after 4 trials. Continue it with") as warned:
        first = sweep(lambda: FewReads(records), faults=READS, **options)
    assert warned[0].filename == __file__
    (line,) = (str(each.message).partition("faults=")[2] for each in warned)
    faults = eval(line, {"ReadError": ReadError})  # noqa: S307  # our own
    second = sweep(lambda: FewReads(records), faults=faults, **options)

    assert [len(first), len(second)] == [SAMPLES + 1, SAMPLES - 1]


def test_a_dataset_without_files_cannot_be_swept():
    """A sweep of nothing would pass, and has shown nothing."""
    with pytest.raises(UnusableDatasetError, match="nothing to sweep"):
        sweep(lambda: [torch.tensor(number) for number in range(8)])


class _FailsInWorkers(FewReads):
    def _read(self, fd):
        if torch.utils.data.get_worker_info():
            message = "not here"
            raise OSError(message)
        return super()._read(fd)


def test_a_dataset_that_fails_without_a_fault_is_not_swept(records):
    with pytest.raises(CheckFailedError, match=r"^fails_without_fault: .*OSError"):
        sweep(lambda: _FailsInWorkers(records), loader=ONE_WORKER)


def test_a_sweep_in_which_no_fault_happens_is_reported(records):
    nothing = {"faults": [OpenError("*.nothing")], "loader": ONE_WORKER}
    with pytest.warns(UserWarning, match="no fault of the sweep fired") as warned:
        sweep(lambda: FewReads(records), **nothing, on_fail="warn")
    assert warned[0].filename == __file__


class Counted(FewReads):
    def __init__(self, folder):
        super().__init__(folder)
        count = folder.parent / "count.txt"
        try:
            self.paths = self.paths[: int(count.read_text(encoding="ascii"))]
        except OSError:
            self.paths = []


@pytest.mark.slow
def test_operations_of_the_constructor_are_swept_on_request(records):
    (records.parent / "count.txt").write_text(str(SAMPLES), encoding="ascii")
    options = {"loader": ONE_WORKER, "faults": [OpenError(times=1)]}
    result = sweep(lambda: Counted(records), **options, before_init=True, on_fail=None)[0]

    assert (result.verdict, result.passed) == ("corrupted", False)
    assert "count.txt cannot be opened; only 0 of 2 samples are left" in result.explanation
    assert "before_init=True" in result.reproduce
