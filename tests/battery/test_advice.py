"""What to do about a failure, where the trial shows which library or format is concerned.

Libraries whose advice test_causes.py shows by facts are slow.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import tarfile
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.battery import runner
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes.contract import SUBSTITUTES, Cause
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from support.datasets import COUNT, SIZE, Records, RecordStream, Substitutes, decode
from support.judging import judge_trial
from support.results import failure_of, result_of
from support.rows import slow
from support.specimens import ZerosOnError


class Pictures(Records):
    """Decodes by Pillow, which *accepts* truncated files or does not."""

    def __init__(self, folder: Any, *, accepts: bool) -> None:
        super().__init__(folder)
        self.accepts = accepts

    def __getitem__(self, index: int) -> Any:
        from PIL import Image, ImageFile

        ImageFile.LOAD_TRUNCATED_IMAGES = self.accepts
        with Image.open(self.paths[index]) as picture:
            return torch.from_numpy(np.asarray(picture).copy())


@pytest.fixture(name="pictures")
def _pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(8):
        pixels = draw.integers(0, 255, (96, 96, 3), np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.jpg")
    return folder


@pytest.mark.parametrize("check", ["truncated-half", slow("truncated-before-init")])
def test_pillow_that_accepts_truncated_images_is_named(pictures, check):
    result = failure_of(lambda: Pictures(pictures, accepts=True), check)
    assert result.fix == "remove PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True"
    assert "Pillow accepts truncated images because LOAD_TRUNCATED_IMAGES is set" in (
        result.explanation
    )
    assert "instead of catching it" not in result.explanation


def test_pillow_as_it_is_passes(pictures):
    result = result_of(lambda: Pictures(pictures, accepts=False), "truncated-half")
    assert (result.passed, result.fix) == (True, "")
    settings = {name for each in result.outcome.workers for name in each.settings}
    assert "PIL.ImageFile.LOAD_TRUNCATED_IMAGES" not in settings


class TarStream(IterableDataset[Any]):
    """Reads members until there are no more."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __iter__(self) -> Any:
        with tarfile.open(self.path) as archive:
            for member in archive:
                yield torch.tensor(list(archive.extractfile(member).read()))


def test_a_tar_archive_that_ends_between_members_is_named(records, tmp_path):
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as archive:
        for record in sorted(records.iterdir()):
            archive.add(record, record.name)
    result = failure_of(lambda: TarStream(path), "truncated-tail", loader={"num_workers": 1})
    assert (
        result.fix == "check that the tar archive ends with 1,024 zero bytes, or count its members"
    )


@pytest.mark.slow
def test_a_handler_that_continues_is_named(tmp_path):
    """It caught an error, so the end of the archive is not the cause.

    If it skips all archives of a worker, webdataset raises an error of its own. So a part of each
    has to be left.
    """
    webdataset = pytest.importorskip("webdataset")
    paths = [str(tmp_path / f"{number}.tar") for number in range(2)]
    for path in paths:
        with webdataset.TarWriter(path) as archive:
            for number in range(8):
                archive.write({"__key__": f"{number}", "txt": f"{path} {number}" * 100})

    def make(handler):
        return webdataset.WebDataset(paths, shardshuffle=False, handler=handler)

    result = failure_of(lambda: make(webdataset.ignore_and_continue), "truncated-half")
    assert result.cause == "skips samples without an error"
    assert (
        result.fix == "raise the error: with webdataset, remove handlers such as warn_and_continue"
    )
    assert "1,024" not in result.explanation
    assert result_of(lambda: make(webdataset.reraise_exception), "truncated-half").passed


class Chunks(Dataset[Any]):
    """A chunk of a Zarr array per sample, from what *open_store* makes of its path."""

    def __init__(self, path: Any, open_store: Any) -> None:
        self.path, self.open_store = path, open_store

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        zarr = pytest.importorskip("zarr")
        return torch.from_numpy(zarr.open_array(self.open_store(self.path), mode="r")[index])


def _strict_store(path: Any) -> Any:
    storage = pytest.importorskip("zarr.storage")

    class RaisesForMissingChunks(storage.LocalStore):  # type: ignore[misc, name-defined]
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            value = await super().get(key, prototype, byte_range)
            if value is None and key.startswith("c/"):
                raise FileNotFoundError(f"{path}/{key}")
            return value

    return RaisesForMissingChunks(path, read_only=True)


@pytest.mark.slow
def test_a_missing_chunk_of_zarr_is_named(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "x.zarr"
    array = zarr.create_array(str(path), shape=(COUNT, SIZE), chunks=(1, SIZE), dtype="u1")
    array[:] = np.arange(COUNT * SIZE, dtype=np.uint8).reshape(COUNT, SIZE) % 250 + 1
    result = failure_of(lambda: Chunks(path, str), "file-missing")
    assert result.fix.startswith("read Zarr through a store whose get() raises an error")
    strict = result_of(lambda: Chunks(path, _strict_store), "file-missing")
    assert (strict.verdict, strict.fix) == ("failed_cleanly", ""), strict.explanation


def test_an_array_that_zarr_does_not_read_has_no_advice_of_zarr(records, monkeypatch):
    monkeypatch.delitem(sys.modules, "zarr.storage", raising=False)
    folder = records.rename(records.with_suffix(".zarr"))
    result = failure_of(lambda: ZerosOnError(folder), "file-missing")

    assert result.cause == SUBSTITUTES
    assert "zarr.storage" not in result.explanation


@pytest.mark.slow
@pytest.mark.parametrize("loads", ["load_dataset", "load_from_disk"])
def test_the_advice_for_mapped_rows_holds_for_each_function(tmp_path, monkeypatch, loads):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [[row] * 100 for row in range(16)]})
    rows.save_to_disk(tmp_path / "rows")
    rows.to_json(tmp_path / "rows.jsonl")
    cache = str(tmp_path / "cache")

    def make(*, in_memory):
        if loads == "load_from_disk":
            return datasets.load_from_disk(tmp_path / "rows", keep_in_memory=in_memory)
        path = str(tmp_path / "rows.jsonl")
        options = {"data_files": path, "split": "train", "cache_dir": cache}
        return datasets.load_dataset("json", keep_in_memory=in_memory, **options)

    make(in_memory=False)  # Fills the cache.
    result = failure_of(lambda: make(in_memory=False), "read-error-before-init")
    assert (result.verdict, result.fix) == (
        "crashed",
        "load the dataset with keep_in_memory=True",
    )
    assert result_of(lambda: make(in_memory=True), "read-error-before-init").passed


class Table(Dataset[Any]):
    """Has the rows that its table has."""

    def __init__(self, path: Any) -> None:
        with open(path, newline="") as file:
            self.rows = [list(map(float, row)) for row in csv.reader(file)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.rows[index])


class CountedTable(Table):
    """Knows how many rows there are to be."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        if len(self.rows) != COUNT:
            message = f"{path} has {len(self.rows)} rows, expected {COUNT}"
            raise ValueError(message)


def test_a_table_with_fewer_rows_is_named(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("".join(f"{row:02},{row:02}\n" for row in range(COUNT)))
    result = failure_of(lambda: Table(path), "truncated-before-init")
    assert "compare the number of rows with the number of samples" in result.fix
    assert result_of(lambda: CountedTable(path), "truncated-before-init").passed


class FromFile(Records):
    """np.fromfile drops the error of a read."""

    def __getitem__(self, index: int) -> Any:
        values = np.fromfile(self.paths[index], np.uint8)
        if list(values) != list(range(index, index + SIZE)):
            raise RuntimeError("no sample")
        return torch.from_numpy(values)


def test_a_reader_that_drops_errors_is_named_where_no_error_arrived_before(records):
    result = failure_of(lambda: FromFile(records), "read-error")
    assert result.verdict == "failed_unclearly"
    assert "If there is no original exception, the reader ignores read errors, as" in (
        result.sentence
    )


class GoesOn(Records):
    """Prints the error, and goes on without what it should have read."""

    def __getitem__(self, index: int) -> Any:
        try:
            content = self.paths[index].read_bytes()
        except OSError as error:
            print(error)  # noqa: T201  # as people do
        return torch.tensor(list(content))


def test_code_that_continues_after_an_error_is_named(records):
    result = failure_of(lambda: GoesOn(records), "read-error")
    assert "The error was caught, and the code continued without the value" in result.sentence
    assert "raise ... from" not in result.sentence


class FailsAlone(Records):
    """Raises an error in each second process, whatever the check does."""

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            message = "the server said no \\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10"
            raise ValueError(message)
        return super().__getitem__(index)


def test_an_error_without_a_fault_has_no_advice_of_its_check(records):
    result = failure_of(lambda: FailsAlone(records), "workers-agree")
    assert result.verdict == "fails_without_fault"
    assert "characters of binary" in result.sentence
    reference = take_reference(lambda: Records(records))
    trial = JudgedTrial(result.outcome, judge_trial(result.outcome, reference))
    for name in ("two-epochs", "leftover-files", "abandoned-epoch", "persistent-workers"):
        assert CHECKS[name].advice
        assert runner._advice(name, trial, Cause("fails without a fault")) == ()
    assert runner._advice("read-before-fork", trial, Cause("")) != ()


class BeginsAgain(RecordStream):
    """Begins anew after an error."""

    def __iter__(self) -> Any:
        for _ in range(2):
            try:
                yield from super().__iter__()
            except OSError:
                continue
            return


def test_a_stream_that_was_started_again_is_named(records):
    result = failure_of(lambda: BeginsAgain(records), "read-error-transient")
    assert (result.verdict, result.cause) == ("corrupted", "restarts the stream after an error")
    assert "in place of" not in result.explanation.split("fault:")[0]


class KeepsScratch(Records):
    """Copies each file to a temporary one first, which stays."""

    def __getitem__(self, index: int) -> Any:
        file, path = tempfile.mkstemp(suffix=".scratch")
        with os.fdopen(file, "wb") as copy:
            copy.write(self.paths[index].read_bytes())
        with open(path, "rb") as copy:
            return decode(copy.read(), self.paths[index])


def test_a_temporary_file_that_stays_is_no_data_file(records, tmp_path, monkeypatch):
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    checks = ["file-missing", "truncated-empty"]
    for result in check_dataset(lambda: KeepsScratch(records), only=checks):
        assert result.verdict == "failed_cleanly", result.explanation
        assert not re.search("scratch", str(result.outcome.schedule))


class Hdf5(Records):
    """Opens its data by a *mode* of h5py."""

    def __init__(self, folder: Any, mode: str) -> None:
        super().__init__(folder)
        self.mode = mode

    def __getitem__(self, index: int) -> Any:
        with pytest.importorskip("h5py").File(self.paths[index], self.mode) as file:
            return torch.from_numpy(file["x"][:])


class Mapped(Hdf5):
    """Opens its data by a *mode* of np.memmap, which fills a short file if that is "r+"."""

    def __getitem__(self, index: int) -> Any:
        values = np.memmap(self.paths[index], np.uint8, self.mode, shape=(SIZE,))
        return torch.from_numpy(np.array(values))


@pytest.fixture(name="hdf5")
def _hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    folder = tmp_path / "hdf5"
    folder.mkdir()
    for number in range(8):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["x"] = np.arange(40) + number
    return folder


OPENS_FOR_WRITING = ("opens its data for writing", "open data read-only (mode='r')")


def test_hdf5_data_that_is_opened_for_writing_is_named(hdf5):
    result = failure_of(lambda: Hdf5(hdf5, "a"), "truncated-empty")
    assert (result.verdict, result.cause, result.fix) == ("failed_unclearly", *OPENS_FOR_WRITING)
    assert "The dataset opened the file for writing, and wrote to it" in result.sentence
    (note,) = result.notes
    assert note.startswith("the workers read and write 8 files (hdf5/0.h5, ")
    assert "like a cache" not in note


def test_mapped_data_that_is_opened_for_writing_is_named(records):
    result = failure_of(lambda: Mapped(records, "r+"), "truncated-half")
    assert (result.verdict, result.cause, result.fix) == ("corrupted", *OPENS_FOR_WRITING)


@pytest.mark.slow
def test_data_that_is_opened_for_reading_passes(hdf5, records):
    for result in (
        result_of(lambda: Hdf5(hdf5, "r"), "truncated-empty"),
        result_of(lambda: Mapped(records, "r"), "truncated-half"),
    ):
        assert (result.verdict, result.cause, result.fix) == ("failed_cleanly", "", ""), result
        assert result.notes == ()


class ZerosForBadHdf5(Substitutes, Hdf5):
    """Has another defect, which is worse: it catches each error."""

    errors = (OSError, KeyError)

    def substitute(self, _index: int, _error: Exception) -> Any:
        return torch.zeros(40, dtype=torch.int64)


def test_an_error_that_is_caught_comes_before_the_mode(hdf5):
    """Zeros for a file that cannot be opened are zeros in any mode."""
    result = failure_of(lambda: ZerosForBadHdf5(hdf5, "a"), "truncated-empty")
    assert (result.verdict, result.cause) == ("corrupted", SUBSTITUTES)
