"""What to do about a failure, where the trial shows which library or format is concerned."""

from __future__ import annotations

import csv
import os
import re
import tarfile
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge import advice, causes, ranks, resume, starts
from support.datasets import COUNT, SIZE, Records, RecordStream


def _ask(make_dataset: Any, only: str, **options: Any) -> Any:
    (found,) = check_dataset(make_dataset, only=only, on_fail=None, **options)
    return found


def _causes() -> list[Cause]:
    """Each likely cause that a module of the judge has."""
    values = [each for home in (causes, starts) for each in vars(home).values()]
    tables = (ranks.CAUSES, resume.CAUSES, causes._OF_EPOCH, causes._BY_ACTIVITY)
    values += [each for table in tables for each in table.values()]
    phrases = [*causes._BY_VERDICT.values(), causes._HANDLE]
    return [each for each in values if isinstance(each, Cause)] + [Cause(each) for each in phrases]


def test_each_likely_cause_has_a_fix():
    """It is one imperative sentence, which a summary shows on its own line."""
    assert sorted({each.phrase for each in _causes()} - advice.FIXES.keys()) == []
    texts = [*advice.FIXES.values(), *(each.fix for each in advice.HINTS)]
    assert [each for each in texts if not each or each.endswith(".") or "\n" in each] == []


class Pictures(Dataset[Any]):
    """Decodes by Pillow, which *accepts* truncated files or does not."""

    def __init__(self, folder: Any, *, accepts: bool) -> None:
        self.paths, self.accepts = sorted(folder.iterdir()), accepts

    def __len__(self) -> int:
        return len(self.paths)

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


@pytest.mark.parametrize("check", ["truncated-half", "corrupted-file", "truncated-at-rest"])
def test_pillow_that_accepts_truncated_images_is_named(pictures, check):
    """The worker has the setting, which the trial notes; the advice of the check gives way."""
    found = _ask(lambda: Pictures(pictures, accepts=True), check)
    if check == "corrupted-file" and found.passed:
        return  # Damaged bytes need not be noticed.
    assert found.fix == "remove PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True"
    assert "Pillow accepts truncated images because LOAD_TRUNCATED_IMAGES is set" in (
        found.explanation
    )
    assert "instead of catching it" not in found.explanation


def test_pillow_as_it_is_passes(pictures):
    """Its error reaches the loader, and the setting is off."""
    found = _ask(lambda: Pictures(pictures, accepts=False), "truncated-half")
    assert (found.passed, found.fix) == (True, "")
    assert not any(each.settings for each in found.outcome.workers)


class TarStream(IterableDataset[Any]):
    """Reads members until there are no more."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __iter__(self) -> Any:
        with tarfile.open(self.path) as archive:
            for member in archive:
                yield torch.tensor(list(archive.extractfile(member).read()))


def test_a_tar_archive_that_ends_between_members_is_named(records, tmp_path):
    """What it lacks is its end-of-archive block."""
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as archive:
        for each in sorted(records.iterdir()):
            archive.add(each, each.name)
    found = _ask(lambda: TarStream(path), "truncated-tail", loader={"num_workers": 1})
    assert (
        found.fix == "check that the tar archive ends with 1,024 zero bytes, or count its members"
    )


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
    """Its twin counts them."""
    path = tmp_path / "table.csv"
    path.write_text("".join(f"{row:02},{row:02}\n" for row in range(COUNT)))
    found = _ask(lambda: Table(path), "truncated-at-rest")
    assert "compare the number of rows with the number of features" in found.fix
    assert _ask(lambda: CountedTable(path), "truncated-at-rest").passed


class FromFile(Records):
    """np.fromfile drops the error of a read."""

    def __getitem__(self, index: int) -> Any:
        values = np.fromfile(self.paths[index], np.uint8)
        if list(values) != list(range(index, index + SIZE)):
            raise RuntimeError("no sample")
        return torch.from_numpy(values)


def test_a_reader_that_drops_errors_is_named_where_no_error_came_before(records):
    """There is no original exception to raise from."""
    found = _ask(lambda: FromFile(records), "read-error-first")
    assert found.verdict == "failed_unclearly"
    assert "If there is no original exception, the reader drops it, as np.fromfile" in (
        found.sentence
    )


class GoesOn(Records):
    """Prints the error, and goes on without what it should have read."""

    def __getitem__(self, index: int) -> Any:
        try:
            content = self.paths[index].read_bytes()
        except OSError as error:
            print(error)  # noqa: T201  # as people do
        return torch.tensor(list(content))


def test_code_that_goes_on_after_an_error_is_told_so(records):
    """Nobody raises an UnboundLocalError."""
    found = _ask(lambda: GoesOn(records), "read-error-first")
    assert "The error was caught, and the code went on without the value" in found.sentence
    assert "raise ... from" not in found.sentence


class FailsAlone(Records):
    """Raises an error in each second process, whatever the check does."""

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            message = "the server said no \\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10"
            raise ValueError(message)
        return super().__getitem__(index)


def test_an_error_without_a_fault_has_no_advice_of_its_check(records, monkeypatch):
    """Two epochs have no part in it; and what cannot be printed is cut."""
    from pytest_dataloader_faults.battery import asking
    from pytest_dataloader_faults.outcomes.judge.repeats import Trial

    found = _ask(lambda: FailsAlone(records), "workers-agree")
    assert found.verdict == "broken"
    assert "characters of binary" in found.sentence
    trial = Trial(found.outcome, found.outcome.judge(_reference(records)))
    for name in ("two-epochs", "leftovers", "abandoned-epoch", "persistent-workers"):
        assert CHECKS[name].advice
        assert asking._advice(name, trial, Cause("fails without a fault")) == ()
    assert asking._advice("used-before", trial, Cause("")) != ()


def _reference(records: Any) -> Any:
    from pytest_dataloader_faults._trial import take_reference

    return take_reference(lambda: Records(records))


class BeginsAgain(RecordStream):
    """Begins anew after an error."""

    def __iter__(self) -> Any:
        for _ in range(2):
            try:
                yield from super().__iter__()
            except OSError:
                continue
            return


def test_a_stream_that_was_started_again_is_told_so(records):
    """No other sample came in place of the one that could not be read."""
    found = _ask(lambda: BeginsAgain(records), "read-error-transient")
    assert (found.verdict, found.cause) == ("corrupted", "starts the stream again after an error")
    assert "in place of" not in found.explanation.split("fault:")[0]


class KeepsScratch(Records):
    """Copies each file to a temporary one first, which stays."""

    def __getitem__(self, index: int) -> Any:
        file, path = tempfile.mkstemp(suffix=".scratch")
        with os.fdopen(file, "wb") as copy:
            copy.write(self.paths[index].read_bytes())
        with open(path, "rb") as copy:
            content = copy.read()
        if len(content) != SIZE:
            message = f"{self.paths[index]} has {len(content)} bytes, expected {SIZE}"
            raise ValueError(message)
        return torch.tensor(list(content))


def test_a_temporary_file_that_stays_is_no_data_file(records, tmp_path, monkeypatch):
    """Another trial has others."""
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for check in ("file-missing", "truncated-empty"):
        found = _ask(lambda: KeepsScratch(records), check)
        assert found.verdict == "failed_cleanly", found.explanation
        assert not re.search("scratch", str(found.outcome.schedule))
