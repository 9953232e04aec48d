"""Searches and sweeps fail the writes of a dataset, where that harms nobody."""

import os

import pytest
from hypothesis import find

from pytest_dataloader_faults import explore, strategies, sweep
from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults.exceptions import CheckFailedError, UnusableDatasetError
from pytest_dataloader_faults.faults import ShortWrite, WriteError
from support.datasets import CopiedRecords, Records
from support.judging import survey

pytestmark = pytest.mark.skipif(
    bool(explain_missing_engine()), reason=str(explain_missing_engine())
)


def _copying(records):
    return lambda folder: CopiedRecords(records, folder)


def test_a_survey_lists_what_workers_write(records):
    files = survey(_copying(records)).files

    assert files.count("writes") == {f"*/{number:02}.copy": 1 for number in range(16)}
    assert files.together["writes"] == "*.copy"
    assert set(files.count("opens")) == {f"*/{number:02}.rec" for number in range(16)}


def test_files_of_another_folder_are_not_listed(records, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()

    files = survey(lambda: CopiedRecords(records, copies)).files

    assert files.count("writes") == {}
    schedules = strategies.faults(files=files, kinds=[WriteError, *strategies.DEFAULT_KINDS])
    assert not isinstance(find(schedules, lambda _: True), WriteError)


def test_a_sweep_fails_each_write(records):
    results = sweep(_copying(records), faults=[WriteError()], samples=6, loader={"num_workers": 2})

    assert len(results) >= 3
    assert {each.verdict for each in results} == {"failed_cleanly"}


def test_a_sweep_needs_writes(records):
    with pytest.raises(UnusableDatasetError, match="nothing to sweep"):
        sweep(lambda: Records(records), faults=[WriteError(), ShortWrite()])


class Once(CopiedRecords):
    """Writes each copy by one os.write(), and takes it for written: a short write cuts it."""

    def __getitem__(self, index):
        path = self.copies / f"{index:02}.copy"
        data, _ = Records.__getitem__(self, index)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, bytes(data.tolist()))
        os.close(fd)
        return sum(path.read_bytes()), index


def test_a_search_finds_a_write_that_is_not_looped(records):
    with pytest.raises(CheckFailedError, match=r"ShortWrite\("):
        explore(lambda folder: Once(records, folder), kinds=[ShortWrite], max_examples=5)
