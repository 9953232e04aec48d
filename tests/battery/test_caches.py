"""A cache hides its sources. The battery tells of a new one, and tries the dataset without it."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest

from pytest_dataloader_faults import check_dataset, explore, sweep
from pytest_dataloader_faults._engine.system import private_view
from pytest_dataloader_faults.battery._baseline_cache import BaselineCache
from pytest_dataloader_faults.faults import ReadError
from support import private_views
from support.corpus.caches import CheckedSpectrograms, Spectrograms
from support.datasets import SIZE, Records
from support.private_views import needs_view


@pytest.fixture(name="cache")
def _cache(tmp_path):
    folder = tmp_path / "spectrograms"
    folder.mkdir()
    return folder


def _check(make_dataset, only="read-error-first", **options):
    (result,) = check_dataset(make_dataset, only=only, on_fail=None, **options)
    return result


@pytest.fixture(name="no_view")
def _no_view(monkeypatch):
    """As in a container that forbids to mount."""
    monkeypatch.setattr(private_view, "_get_own_mounts", private_views.forbid)


@needs_view
@pytest.mark.parametrize(
    ("kind", "verdict"), [(Spectrograms, "corrupted"), (CheckedSpectrograms, "failed_cleanly")]
)
def test_each_trial_begins_without_the_cache_of_the_first_reading(records, cache, kind, verdict):
    """So the swallowed error is found. The user's folder has what the reading made, and no more."""
    result = _check(lambda: kind(records, cache))
    assert result.verdict == verdict
    (note,) = result.notes
    assert "reading the dataset made files (00.npy, " in note
    assert f"\n  {note}.\n" in result.explanation
    assert len(private_views.contents(cache)) == 16
    for index, path in enumerate(sorted(records.iterdir())):
        wave = np.frombuffer(path.read_bytes(), np.uint8)
        kept = np.load(cache / f"{index:02}.npy")
        assert np.array_equal(kept, np.abs(np.fft.rfft(wave, SIZE)))


@needs_view
def test_a_folder_that_the_reading_made_is_gone_in_a_trial(records, tmp_path):
    """With all that is in it."""

    class MakesFolder(CheckedSpectrograms):
        def __getitem__(self, index):
            self.cache.mkdir(parents=True, exist_ok=True)
            return super().__getitem__(index)

    (result,) = check_dataset(
        lambda: MakesFolder(records, tmp_path / "a" / "b"), only="read-error-first", on_fail=None
    )
    assert (result.verdict, result.passed) == ("failed_cleanly", True)
    assert "made files (a), as a cache is" in result.notes[0]


@pytest.mark.usefixtures("no_view")
@pytest.mark.parametrize("engine", ["kernel", "python"])
def test_a_new_cache_is_told_of(records, cache, engine):
    """Where there can be no view, it hides the swallowed error, and the result says so."""
    result = _check(lambda: Spectrograms(records, cache), engine=engine)
    assert (result.verdict, result.passed) == ("failed_cleanly", True)
    (note,) = result.notes
    assert "16 files that the workers read (spectrograms/00.npy, spectrograms/01.npy," in note
    assert "no private view of" in note
    assert f"\n  {note}.\n" in result.explanation


def test_what_was_there_and_is_changed_is_no_cache_to_remove(records, tmp_path):
    """A database that each reading touches is there in each trial."""
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


def test_a_cache_of_an_earlier_run_looks_like_any_file(records, cache):
    """So nothing is said of it."""
    _check(lambda: Spectrograms(records, cache))
    assert _check(lambda: Spectrograms(records, cache)).notes == ()


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


def test_only_checks_of_files_tell_of_it(records, cache):
    """What a killed worker shows does not depend on a cache."""
    assert _check(lambda: Spectrograms(records, cache), "worker-killed-first").notes == ()


def test_every_item_of_a_test_tells_of_it(records, cache):
    """Also those that begin with what the first one found."""
    memory = BaselineCache()
    for name in ("read-error-first", "truncated-half"):
        result = memory.ask(
            name,
            lambda: Spectrograms(records, cache),
            home=None,
            expected=None,
            reproduce="",
            engine="auto",
        ).result
        assert len(result.notes) == 1


@needs_view
def test_later_items_of_a_test_begin_without_it_too(records, cache):
    """Also after an item that does not apply, for which the dataset is looked at anew."""
    memory, one_batch = BaselineCache(), {"batch_size": 16, "num_workers": 1}
    results = {}
    for name in ("worker-killed-first", "worker-killed-middle", "write-error", "read-error-first"):
        results[name] = memory.ask(
            name,
            lambda: CheckedSpectrograms(records, cache),
            home=None,
            expected=None,
            reproduce="",
            engine="auto",
            loader=one_batch,
        ).result
    assert not results["worker-killed-middle"].applies
    assert results["write-error"].outcome.fired, results["write-error"].explanation
    assert "reading the dataset made files" in results["read-error-first"].explanation


@needs_view
def test_a_cache_behind_a_symbolic_link(records, cache):
    """It is one file by two names, and told of once."""
    link = cache.parent / "link"
    link.symlink_to(cache)
    result = _check(lambda: CheckedSpectrograms(records, link))
    assert [note[:30] for note in result.notes] == ["reading the dataset made files"]
    assert result.passed


@needs_view
def test_a_sweep_tells_of_it(records, cache):
    """Each of its steps does."""
    swept = sweep(lambda: Spectrograms(records, cache), faults=[ReadError()], max_trials=1)
    assert "reading the dataset made files (00.npy" in swept.steps[0].explanation


@needs_view
def test_a_search_reads_the_sources_again(records, cache):
    """Each of its trials begins without the cache."""
    found = explore(
        lambda: Spectrograms(records, cache), kinds=[ReadError], max_examples=10, on_fail=None
    )
    assert found.failure is not None
