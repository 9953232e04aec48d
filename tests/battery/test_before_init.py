"""Files that are bad before the dataset is made: which are tried, and how results are judged."""

import functools
import os

import pytest
import torch

from pytest_dataloader_faults import check_dataset, sweep
from pytest_dataloader_faults.battery.fault_free_run import BY_FACTORY, BY_WORKERS
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import ReadError
from support.corpus.at_rest import (
    COUNT,
    CUT,
    DAMAGED,
    EMPTY,
    MISSES,
    MISSING,
    KeepsAnIndex,
    Listed,
    ReadMean,
    write_block,
    write_files,
)
from support.datasets import SIZE, Records
from support.results import failure_of, result_of

NAMES = [MISSING, EMPTY, CUT, DAMAGED]


@pytest.fixture(name="block", scope="module")
def _block(tmp_path_factory):
    folder = tmp_path_factory.mktemp("block")
    write_block(folder)
    return folder


class ZerosIfGone(Records):
    """Lists its files, and gives zeros for one that is gone later."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except FileNotFoundError:
            return torch.zeros(SIZE, dtype=torch.uint8), index


def test_workers_meet_the_fault_as_well_if_the_constructor_keeps_it_from_them(records):
    result = failure_of(lambda: ZerosIfGone(records), MISSING)
    assert result.verdict == "corrupted", result.explanation
    assert "in the workers only (corrupted)" in result.explanation


class ListedInFile(Records):
    """Reads the names of its files from another one, in the constructor only."""

    def __init__(self, folder, names):
        super().__init__(folder)
        self.paths = [folder / each for each in names.read_text("utf-8").splitlines()]


def test_files_may_mean_one_that_only_the_constructor_opens(records, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{each.name}\n" for each in Records(records).paths), "utf-8")
    make = functools.partial(ListedInFile, records, names)
    cut = failure_of(make, CUT, files="*/names.txt")
    error = result_of(make, "open-error", files="*/names.txt")

    assert (cut.verdict, cut.outcome.fired) == ("corrupted", 1), cut.explanation
    assert not error.applies


def test_what_the_constructor_writes_was_not_there_before(block):
    result = failure_of(lambda cache: KeepsAnIndex(block, cache), CUT)

    assert {os.path.basename(each.path) for each in result.outcome.schedule} == {"samples.bin"}
    assert "trusted an index or a cache that was built from damaged files" in result.explanation


class Marked(ReadMean):
    """Reads a file that says by its name alone that the others are whole."""

    def __init__(self, folder):
        assert not (folder / "_SUCCESS").read_bytes()
        super().__init__(folder)


def test_a_file_that_is_empty_by_itself_can_only_be_missing(tmp_path):
    write_block(tmp_path)
    (tmp_path / "_SUCCESS").touch()
    results = check_dataset(lambda: Marked(tmp_path), only=NAMES)

    assert [each.passed for each in results] == [True] * len(NAMES)


class MadeAnew(ReadMean):
    def __init__(self, folder):
        write_block(folder)
        super().__init__(folder)


def test_what_a_constructor_rewrites_cannot_be_damaged(tmp_path):
    write_block(tmp_path)
    results = check_dataset(lambda: MadeAnew(tmp_path), only=NAMES)

    assert [each.applies for each in results] == [False] * len(NAMES)
    assert {each.cause for each in results} == {BY_FACTORY}
    for result in results:
        (note,) = result.notes
        assert note.startswith(f"{result.cause} ({tmp_path.name}/samples.bin), so they cannot be")
        assert "for example in a fixture" in note
        assert result.explanation.endswith(note)


def test_other_files_than_those_that_a_run_writes_are_damaged(tmp_path):
    write_block(tmp_path)

    class WithLog(ReadMean):
        def __init__(self, folder):
            (folder / "log").write_text("made")
            self.log = (folder / "log").read_text()
            super().__init__(folder)

    (result,) = check_dataset(lambda: WithLog(tmp_path), only=CUT)

    name = f"{tmp_path.name}/log"
    assert (result.applies, result.passed) == (True, True)
    assert result.notes == (
        f"1 file that each run writes ({name}) cannot be damaged before make_dataset() is called",
    )


class WrittenBack(Records):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        self.paths[index].write_bytes(self.paths[index].read_bytes())
        return sample


def test_files_that_workers_write_are_damaged_in_the_workers(records):
    result = result_of(lambda: WrittenBack(records), CUT)

    assert (result.verdict, result.outcome.before_init) == ("failed_cleanly", False)
    with pytest.raises(UnusableDatasetError, match=BY_WORKERS):
        sweep(lambda: WrittenBack(records), faults=[ReadError()], before_init=True)


def test_a_folder_decides_how_many_samples_there_are(tmp_path):
    write_files(tmp_path)
    result = result_of(lambda: Listed(tmp_path), MISSING)

    note = "the folder decides how many samples there are: 15 of 16 if it lacks a file"
    assert (result.verdict, note in result.notes) == ("failed_cleanly", True)
    assert "tried: in the workers only (failed_cleanly)" in result.explanation


class _Uncounted(Listed):
    """Compares numbers, and says nothing of files."""

    def __init__(self, folder):
        super().__init__(folder)
        if len(self.samples) != COUNT:
            raise ValueError("wrong number")


def test_an_error_after_a_listing_names_no_file_unless_that_is_promised(tmp_path):
    """Nobody asked for the file, so the error has no original one either."""
    write_files(tmp_path)
    assert result_of(lambda: _Uncounted(tmp_path), MISSING).verdict == "failed_cleanly"
    sentence = failure_of(lambda: _Uncounted(tmp_path), MISSING, **MISSES).sentence

    assert sentence.startswith("ValueError does not say that 08.rec is missing. Say in its message")
