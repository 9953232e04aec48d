"""A cache hides its sources. The battery tells of a new one, and what to do."""

import os
import shutil
import time

import pytest
from torch.utils.data import get_worker_info

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery import fault_free_run
from pytest_dataloader_faults.battery.batteries import Batteries
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import CheckFailedError, InvalidArgumentError
from pytest_dataloader_faults.faults import TruncatedFile
from pytest_dataloader_faults.outcomes.repeats import run_without_vain_waits
from pytest_dataloader_faults.search import explore, replay
from support.corpus.caches import (
    CacheLockedByName,
    CacheRenamed,
    CacheRenamedTwice,
    CacheSeenEarly,
    Spectrograms,
)
from support.datasets import Records
from support.results import failure_of, failures_of, result_of
from support.surveys import survey


@pytest.fixture(name="cache")
def _cache(tmp_path):
    folder = tmp_path / "spectrograms"
    folder.mkdir()
    return folder


def _check(make_dataset, only="read-error", **options):
    return result_of(make_dataset, only, **options)


def test_a_new_cache_is_noted(records, cache):
    result = _check(lambda: Spectrograms(records, cache))
    assert (result.verdict, result.passed) == ("failed_cleanly", True)
    (note,) = result.notes
    assert "16 files that the workers read (spectrograms/00.npy, spectrograms/01.npy," in note
    assert "let make_dataset take a folder, and put the cache there" in note
    assert f"\n  {note}.\n" in result.explanation


def test_files_that_the_test_has_just_written_are_no_cache(records):
    for path in records.iterdir():
        path.write_bytes(path.read_bytes())
        os.utime(path, (2**31, 2**31))
    assert _check(lambda: Records(records)).notes == ()


def test_a_log_that_workers_write_is_no_cache(records, tmp_path):
    log = tmp_path / "log"

    class Logs(Records):
        def __getitem__(self, index):
            log.open("w").close()
            return super().__getitem__(index)

    assert _check(lambda: Logs(records)).notes == ()


class _Checked(Records):
    """Raises an error for a file of the wrong size, or if files are missing: healthy."""

    def __init__(self, folder):
        super().__init__(folder)
        self.paths = sorted(folder.glob("*.bin"))
        if len(self.paths) != _COUNT:
            message = f"{folder} has {len(self.paths)} files, expected {_COUNT}"
            raise ValueError(message)

    def __getitem__(self, index):
        return super().__getitem__(index)[0]


class _KeepsSizes(_Checked):
    """Writes the sizes of its files next to them once, and believes what is there."""

    def __init__(self, folder):
        super().__init__(folder)
        index = folder / "sizes"
        if not index.exists():
            index.write_text(" ".join(str(len(each.read_bytes())) for each in self.paths))
        if set(index.read_text().split()) != {str(_SIZE)}:
            message = f"{index}: a file is truncated"
            raise ValueError(message)


_COUNT, _SIZE = 8, 64


@pytest.fixture(name="sources")
def _sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(_COUNT):
        (folder / f"{number}.bin").write_bytes(bytes([number + 1] * _SIZE))
    return folder


def _checked(folder):
    return _Checked(folder)


def test_a_cache_next_to_its_sources_that_is_poisoned_fails_on_a_copy(sources):
    checks = ["truncated-before-init", "empty-before-init"]
    assert {
        (each.verdict, each.cause) for each in failures_of(_KeepsSizes, checks, copy=sources)
    } == {("poisoned", "keeps an index or a cache built from damaged files")}
    missing = _check(_KeepsSizes, "missing-before-init", copy=sources)
    assert missing.verdict == "failed_cleanly"
    assert not (sources / "sizes").exists()


def _copies(sources, folder):
    return _Checked(shutil.copytree(sources, folder / "copy"))


def test_a_factory_that_copies_cannot_be_called_again_with_its_folder(sources):
    checks = ["truncated-before-init", "missing-before-init"]
    results = failures_of(lambda folder: _copies(sources, folder), checks)
    assert {(each.verdict, each.cause) for each in results} == {
        ("fails_without_fault", "cannot be created twice in the same folder")
    }
    for result in results:
        headline, advice, *_ = result.explanation.splitlines()
        assert "make_dataset with the same folder, in a new process, raised FileExists" in headline
        assert "pass copy=FOLDER to the check" in advice
        assert CHECKS[result.check].preface not in advice


def test_a_copy_is_for_one_trial_and_before_its_faults(sources):
    (sources / "0.bin").rename(sources.parent / "elsewhere")
    (sources / "0.bin").symlink_to(sources.parent / "elsewhere")
    outcome = run_trial(
        _Checked, TruncatedFile("*/0.bin", keep=0.5), before_init=True, copy=sources
    )
    assert "0.bin: 32 bytes" in outcome.exception.message
    assert outcome.recovery.complete
    with pytest.raises(InvalidArgumentError, match="needs a make_dataset that accepts the copy"):
        run_trial(lambda: _Checked(sources), copy=sources)
    with pytest.raises(InvalidArgumentError, match="copy='/no/such' must be an existing folder"):
        run_trial(_Checked, copy="/no/such")


def test_another_item_accepts_a_run_on_a_copy_only_of_the_same_files(sources):
    batteries = Batteries()
    settings = Settings(copy=sources)

    def run_check(name):
        result, _ = batteries.run_check(
            name, _Checked, settings, call=1, expected_failures={}, reproduce=""
        )
        return result

    assert run_check("workers-agree").passed
    (sources / "3.bin").write_bytes(bytes([99] * _SIZE))
    assert run_check("two-epochs").passed


@pytest.mark.slow
def test_searches_and_replays_work_on_copies(sources):
    cut = TruncatedFile("*/3.bin", keep=0.5)
    assert replay(_Checked, cut, before_init=True, copy=sources) == "failed_cleanly"
    assert replay(_checked, cut, copy=sources) == "failed_cleanly"
    with pytest.raises(CheckFailedError, match=rf"replay\((?s:.)+copy='{sources}'"):
        replay(_KeepsSizes, cut, before_init=True, copy=sources)
    profile = survey(_Checked, before_init=True, copy=sources)
    assert [each for each in profile.files.count("opens") if each.endswith("3.bin")]
    outcome = profile.run_trial(cut)
    assert f"copy='{sources}'" in outcome.reproduce()
    assert profile.judge(outcome).passed
    result = explore(
        _Checked,
        kinds=[TruncatedFile],
        loader={"num_workers": 1},
        max_examples=2,
        before_init=True,
        copy=sources,
        database=None,
    )
    assert result.failure is None
    assert sorted(each.name for each in sources.iterdir()) == [f"{n}.bin" for n in range(_COUNT)]


def test_a_cache_that_is_seen_early_is_not_a_matter_of_luck(records):
    result = failure_of(lambda folder: CacheSeenEarly(records, folder), "workers-agree")

    assert (result.verdict, result.failed) == ("corrupted", True)
    assert result.cause == "reads a file while another worker still writes it"
    assert "created all.bin, and another opened it" in result.explanation


class _LookedForByAll(CacheSeenEarly):
    """Creates it only when both workers have missed it, as they do when they start at once."""

    def fill(self):
        self.cache.with_name(f"looked-{os.getpid()}").touch()
        count = info.num_workers if (info := get_worker_info()) else 0
        while len([*self.cache.parent.glob("looked-*")]) < count:
            time.sleep(0.001)
        super().fill()


class _LookedForByAllAndRenamed(_LookedForByAll, CacheRenamed):
    """Each worker writes its own file, and names it when it is whole: healthy."""


def test_a_cache_that_two_workers_create_at_once_is_emptied_while_it_is_read(records, monkeypatch):
    def check():
        return _check(lambda folder: _LookedForByAll(records, folder), "workers-agree")

    result = check()
    assert (result.verdict, result.failed) == ("corrupted", True)
    assert result.cause == "reads a file while another worker still writes it"
    monkeypatch.setattr(fault_free_run, "run_in_both_orders", run_without_vain_waits)
    assert check().passed


def test_caches_that_workers_create_at_once_and_rename_pass(records):
    result = _check(lambda folder: _LookedForByAllAndRenamed(records, folder), "workers-agree")

    assert result.passed


def test_workers_that_share_a_temporary_name_are_told_to_add_theirs(records):
    result = _check(lambda folder: CacheRenamedTwice(records, folder), "workers-agree")

    assert (result.verdict, result.failed) == ("fails_without_fault", True)
    assert result.cause == "writes the same temporary file in several workers"
    assert "as in f'all.tmp.{os.getpid()}'" in result.explanation


def test_a_cache_that_is_seen_whole_passes(records):
    result = _check(lambda folder: CacheLockedByName(records, folder), "workers-agree")

    assert result.passed
