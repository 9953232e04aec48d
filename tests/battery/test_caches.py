"""A cache hides its sources, and races about it are provoked by waits, which may be in vain."""

import os
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import TruncatedFile
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes.repeats import run_without_vain_waits
from support.corpus.caches import CacheSeenEarly, Spectrograms
from support.datasets import Records
from support.protection import changes, contents
from support.results import failure_of, failures_of, result_of


@pytest.fixture(name="cache")
def _cache(tmp_path):
    folder = tmp_path / "spectrograms"
    folder.mkdir()
    return folder


def _check(make_dataset, only="open-error", **options):
    return result_of(make_dataset, only, **options)


def test_a_new_cache_is_noted(records, cache):
    result = _check(lambda: Spectrograms(records, cache))
    assert (result.verdict, result.passed) == ("failed_cleanly", True)
    (note,) = result.notes
    assert "16 files that the workers read (spectrograms/00.npy, spectrograms/01.npy," in note
    assert "let make_dataset take a folder, and put the cache there" in note
    assert f"\n  {note}.\n" in result.explanation


def test_writes_of_a_cache_that_is_complete_do_not_fail(records, cache):
    before = contents(records)
    result = _check(lambda: Spectrograms(records, cache), "write-error")
    assert not result.applies
    assert "found the files that the fault-free run had written" in result.explanation
    assert "Let make_dataset take a folder" in result.explanation
    assert changes(before, contents(records)) == []


class _Logs(Records):
    def __init__(self, folder, log):
        super().__init__(folder)
        self.log = log

    def __getitem__(self, index):
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


def test_writes_outside_the_folder_of_a_trial_do_not_fail(records, tmp_path):
    result = _check(lambda: _Logs(records, tmp_path / "log"), "write-error")
    assert not result.applies
    assert f"its workers write {tmp_path / 'log'}, but writes only fail" in result.explanation


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


def test_a_cache_next_to_its_sources_that_is_poisoned_fails_on_a_copy(sources):
    checks = ["truncated-file", "empty-file"]
    assert {
        (each.verdict, each.cause) for each in failures_of(_KeepsSizes, checks, copy=sources)
    } == {("poisoned", "keeps an index or a cache built from damaged files")}
    missing = _check(_KeepsSizes, "missing-file", copy=sources)
    assert missing.verdict == "failed_cleanly"
    assert not (sources / "sizes").exists()


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


def test_a_cache_that_is_seen_early_is_not_a_matter_of_luck(records):
    result = failure_of(lambda folder: CacheSeenEarly(records, folder), "workers-agree")

    assert (result.verdict, result.failed) == ("corrupted", True)
    assert result.cause == "reads a file while another worker still writes it"
    assert "created all.bin, and another opened it" in result.explanation


def test_files_that_the_test_has_just_written_are_no_cache(records):
    for path in records.iterdir():
        path.write_bytes(path.read_bytes())
        os.utime(path, (2**31, 2**31))
    assert _check(lambda: Records(records)).notes == ()


def _repeat(vain_waits, passes=()):
    """What is left out of each trial, if all fail but those that *passes* numbers."""
    trials = []

    def run(unprovoked):
        trials.append(unprovoked)
        number = len(trials)
        return SimpleNamespace(vain_waits=vain_waits(number), has_failed=number not in passes)

    run_without_vain_waits(run, lambda outcome: outcome.has_failed)
    return trials


def test_each_repeat_leaves_out_more_waits_and_the_last_one_all():
    trials = _repeat(lambda number: [f"/data/{'abcde'[number]}.txt"])

    assert trials == [
        (),
        ("/data/b.txt",),
        ("/data/b.txt", "/data/c.txt"),
        ("/data/b.txt", "/data/c.txt", "*"),
    ]


@pytest.mark.parametrize(
    ("repeats", "case"),
    [
        (0, {"vain_waits": lambda _: []}),
        (0, {"vain_waits": lambda _: ["/a"], "passes": [1]}),
        (1, {"vain_waits": lambda number: ["/a"][: number == 1]}),
        (1, {"vain_waits": lambda _: ["/a"], "passes": [2]}),
    ],
)
def test_only_a_failure_after_a_vain_wait_is_repeated(repeats, case):
    assert len(_repeat(**case)) == 1 + repeats


@pytest.mark.parametrize(
    ("name", "next_name", "is_left_out"),
    [
        ("/data/all.4711.tmp", "/data/all.4712.tmp", True),
        ("/data/all.4711.tmp", "/data/all.bin", False),
        ("/data/[a]*.tmp", "/data/[a]*.tmp", True),
        ("/data/[a]*.tmp", "/data/abc.tmp", False),
        ("a connection to ::1:80", "a connection to ::1:81", True),
    ],
)
def test_the_process_id_in_a_name_may_differ(name, next_name, is_left_out):
    (_, globs) = _repeat(lambda _: [name], passes=[2])

    assert GlobMatcher(globs).means(next_name) == is_left_out
