"""A cache hides its sources. The battery tells of a new one, and what to do."""

from __future__ import annotations

import functools
import os
import shutil

import pytest
import torch

from pytest_dataloader_faults import check_dataset, run_trial, sweep
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery.baseline_cache import BaselineCache
from pytest_dataloader_faults.battery.checks._at_rest import AT_REST
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ReadError, TruncatedFile
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


_AT_REST = [each.name for each in AT_REST]


class _Checked(Records):
    """Raises an error for a file of the wrong size, or if files are missing: healthy."""

    def __init__(self, folder):
        super().__init__(folder)
        self.paths = sorted(folder.glob("*.bin"))
        if len(self.paths) != _COUNT:
            message = f"{folder} has {len(self.paths)} files, expected {_COUNT}"
            raise ValueError(message)

    def __getitem__(self, index):
        content = self.paths[index].read_bytes()
        if len(content) != _SIZE:
            message = f"{self.paths[index]} has {len(content)} bytes, expected {_SIZE}"
            raise ValueError(message)
        return torch.tensor(list(content))


class _KeepsSizes(_Checked):
    """Writes the sizes of its files next to them once, and believes what is there."""

    def __init__(self, folder):
        super().__init__(folder)
        kept = folder / "sizes"
        if not kept.exists():
            kept.write_text(" ".join(str(len(each.read_bytes())) for each in self.paths))
        if set(kept.read_text().split()) != {str(_SIZE)}:
            message = f"{kept}: a file is truncated"
            raise ValueError(message)


_COUNT, _SIZE = 8, 64


@pytest.fixture(name="sources")
def _sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(_COUNT):
        (folder / f"{number}.bin").write_bytes(bytes([number + 1] * _SIZE))
    return folder


def _verdicts(make_dataset, **options):
    results = check_dataset(make_dataset, only=_AT_REST, on_fail=None, **options)
    return {each.check: (each.verdict, each.cause) for each in results}


def _checked(folder):
    return _Checked(folder)


@pytest.mark.parametrize("make_dataset", [_checked, _Checked])
def test_a_sound_dataset_passes_all_checks_at_rest_on_a_copy(sources, make_dataset):
    """The files of the copy are what is bad, and the copy itself was made before."""
    before = sorted(os.listdir(sources))
    results = check_dataset(make_dataset, only=_AT_REST, copy=sources)
    assert all(each.applies and each.outcome.fired for each in results)
    assert not any(str(sources) in str(each.outcome.schedule) for each in results)
    assert sorted(os.listdir(sources)) == before


def test_a_cache_next_to_its_sources_that_is_poisoned_fails_on_a_copy(sources):
    """The sizes are kept while files are truncated, and the user's folder stays as it was."""
    found = _verdicts(_KeepsSizes, copy=sources)
    poisoned = ("poisoned", "keeps what it made of bad files")
    assert {found["truncated-at-rest"], found["empty-at-rest"]} == {poisoned}
    assert found["missing-at-rest"][0] == "failed_cleanly"
    assert not (sources / "sizes").exists()


def _copies(sources, folder):
    return _Checked(shutil.copytree(sources, folder / "copy"))


def test_a_factory_that_copies_cannot_be_called_again_with_its_folder(sources):
    """That is no poisoned cache, and a run without a fault shows it."""
    results = check_dataset(lambda folder: _copies(sources, folder), only=_AT_REST, on_fail=None)
    assert {(each.verdict, each.cause) for each in results} == {
        ("broken", "cannot be made twice in the same folder")
    }
    for each in results:
        first, advice, *_ = each.explanation.splitlines()
        assert "called again with the same folder by a new process, raised FileExists" in first
        assert "pass copy=FOLDER to the check" in advice
        assert "The file was like this" not in advice


def test_a_factory_that_copies_once_is_told_of_copy(sources):
    """The copy is what was damaged, and stays so."""

    def make_dataset(folder):
        return _copies(sources, folder) if not os.listdir(folder) else _Checked(folder / "copy")

    result = _check(make_dataset, "truncated-at-rest")
    assert (result.verdict, result.cause) == ("poisoned", "copies damaged files in make_dataset")
    assert "pass copy=FOLDER to the check" in result.explanation


def test_a_copy_is_for_one_trial_and_before_its_faults(sources):
    """Each trial has its own; links in it are files, and what is cut off are its files."""
    (sources / "0.bin").rename(sources.parent / "elsewhere")
    (sources / "0.bin").symlink_to(sources.parent / "elsewhere")
    outcome = run_trial(_Checked, TruncatedFile("*/0.bin", keep=0.5), from_start=True, copy=sources)
    assert "0.bin has 32 bytes" in outcome.exception.message
    assert outcome.recovery.complete
    with pytest.raises(InvalidArgumentError, match="needs a make_dataset that takes the copy"):
        run_trial(lambda: _Checked(sources), copy=sources)
    with pytest.raises(InvalidArgumentError, match="copy='/no/such' must be a folder that exists"):
        run_trial(_Checked, copy="/no/such")


def test_a_copy_that_cannot_be_made_is_no_verdict(sources):
    """A FIFO is no file that could be copied."""
    os.mkfifo(sources / "pipe.bin")
    with pytest.raises(InvalidArgumentError, match=r"pipe\.bin is neither a file nor a folder"):
        run_trial(_Checked, copy=sources)


def test_another_item_believes_a_run_on_a_copy_only_of_the_same_files(sources):
    """A file that was changed meanwhile gives another sample, which is no corruption."""
    memory = BaselineCache()
    settings = Settings(copy=sources)

    def ask(name):
        return memory.ask(name, _Checked, settings, home=None, expected=None, reproduce="").result

    assert ask("workers-agree").passed
    (sources / "3.bin").write_bytes(bytes([99] * _SIZE))
    assert ask("two-epochs").passed
