"""A cache hides its sources. The battery tells of a new one, and what to do."""

from __future__ import annotations

import functools
import os

import pytest

from pytest_dataloader_faults import check_dataset, sweep
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery.baseline_cache import BaselineCache
from pytest_dataloader_faults.faults import ReadError
from support.corpus.caches import CheckedSpectrograms, Spectrograms
from support.datasets import Records


@pytest.fixture(name="cache")
def _cache(tmp_path):
    folder = tmp_path / "spectrograms"
    folder.mkdir()
    return folder


def _check(make_dataset, only="read-error-first", **options):
    (result,) = check_dataset(make_dataset, only=only, on_fail=None, **options)
    return result


def test_a_new_cache_is_told_of(records, cache):
    """It hides the swallowed error, and the result says so; the python engine sees it, too."""
    result = _check(lambda: Spectrograms(records, cache), engine="python")
    assert (result.verdict, result.passed) == ("failed_cleanly", True)
    (note,) = result.notes
    assert "16 files that the workers read (spectrograms/00.npy, spectrograms/01.npy," in note
    assert "have make_dataset take a folder, and put the cache there" in note
    assert f"\n  {note}.\n" in result.explanation


def test_only_checks_of_files_tell_of_it(records, cache):
    """What a killed worker shows does not depend on a cache; one of an earlier run is any file."""
    make_dataset = functools.partial(Spectrograms, records, cache)
    only = ["read-error-first", "worker-killed-first"]
    error, killed = check_dataset(make_dataset, only=only, on_fail=None)
    assert (len(error.notes), killed.notes) == (1, ())
    assert _check(make_dataset).notes == ()


def test_what_was_there_and_is_changed_is_told_of_as_well(records, tmp_path):
    """A database that each reading touches may be a cache."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    class Counts(Records):
        def __getitem__(self, index):
            counter.write_text(counter.read_text() + "1")
            return super().__getitem__(index)

    result = _check(lambda: Counts(records))
    assert "1 file that the workers read" in result.notes[0]


@pytest.mark.parametrize(
    ("kind", "verdict"), [(Spectrograms, "corrupted"), (CheckedSpectrograms, "failed_cleanly")]
)
def test_without_its_cache_a_dataset_reads_its_sources(records, kind, verdict):
    """A swallowed error is found, and a healthy dataset passes. There is nothing to tell."""
    result = _check(functools.partial(kind, records))
    assert (result.verdict, result.notes) == (verdict, ())


def test_files_that_the_test_has_just_written_are_no_cache(records):
    """Whenever the file system's clock ticks."""
    for path in records.iterdir():
        path.write_bytes(path.read_bytes())
        os.utime(path, (2**31, 2**31))
    assert _check(lambda: Records(records)).notes == ()


def test_what_is_made_and_not_read_is_no_cache(records, tmp_path):
    """As a log is."""
    assert _check(functools.partial(_logging, records, tmp_path / "log"), "open-error").notes == ()


def _logging(records, log):
    log.write_text("made\n")
    return Records(records)


@pytest.mark.parametrize(("engine", "notes"), [("kernel", 0), ("python", 1)])
def test_what_workers_open_may_be_read_by_c(records, tmp_path, engine, notes):
    """The python engine would not see that, and the kernel's sees that a log is not read."""
    log = tmp_path / "log"

    class Logs(Records):
        def __getitem__(self, index):
            log.open("w").close()
            return super().__getitem__(index)

    assert len(_check(lambda: Logs(records), engine=engine).notes) == notes


def test_every_item_of_a_test_tells_of_it(records, cache):
    """Also those that begin with what the first one found."""
    memory = BaselineCache()
    for name in ("read-error-first", "truncated-half"):
        result = memory.ask(
            name,
            lambda: Spectrograms(records, cache),
            Settings(),
            home=None,
            expected=None,
            reproduce="",
        ).result
        assert len(result.notes) == 1


def test_a_sweep_tells_of_it(records, cache):
    """Each of its steps does."""
    swept = sweep(lambda: Spectrograms(records, cache), faults=[ReadError()], max_trials=1)
    assert "16 files that the workers read (spectrograms/00.npy" in swept.steps[0].explanation
