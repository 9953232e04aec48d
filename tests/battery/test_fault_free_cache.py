"""What items of one test share: the fault-free run, verified where it may be out of date."""

from functools import partial

import pytest
import torch

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery import fault_free_cache
from pytest_dataloader_faults.battery.fault_free_cache import FaultFreeCache
from pytest_dataloader_faults.outcomes import Absence, Position, Reason
from support.datasets import SIZE, Records, write_records
from support.random_samples import OwnNoise
from support.specimens import ZerosOnError

REFERENCE, FAULT_FREE, ALONE = 1, 1, 1
"""Processes that make a dataset; the last is the trial's."""
WHOLE, VERIFIED = REFERENCE + FAULT_FREE + ALONE, REFERENCE + ALONE


class Asked:
    """A memory, and how many processes each check has cost."""

    def __init__(self, log):
        self.memory = FaultFreeCache()
        self.log = log
        log.touch()

    def __call__(self, make_dataset, name="open-error", home=None, call=None, **settings):
        size = len(self.log.read_text())
        settings.setdefault("loader", {"num_workers": 1, "batch_size": 4})
        options = {"home": home, "call": call, "expected_failures": {}, "reproduce": "again"}
        result, _ = self.memory.run_check(name, make_dataset, Settings(**settings), **options)
        return result, len(self.log.read_text()) - size


@pytest.fixture(name="run_check")
def _run_check(tmp_path):
    return Asked(tmp_path / "log")


def _made(kind, folder, log):
    with log.open("a") as file:
        file.write("x")
    return kind(folder)


def _factory(folder, log, kind=Records):
    return lambda: _made(kind, folder, log)


def test_the_reference_is_taken_again_where_a_file_was_touched(records, run_check):
    factory = _factory(records, run_check.log)
    run_check(factory)
    (records / "00.rec").touch()
    assert run_check(factory)[1] == VERIFIED


def test_the_fault_free_epoch_of_random_samples_is_not_repeated(records, run_check):
    (_, first_result), (result, second) = [
        run_check(_factory(records, run_check.log, OwnNoise)) for _ in range(2)
    ]

    assert result.passed
    assert (first_result > WHOLE, second) == (True, ALONE)


def test_findings_move_with_the_folder_of_the_item(tmp_path, run_check):
    for name, expected in (("item_1", WHOLE), ("item_2", VERIFIED), ("item_10", ALONE)):
        folder = write_records(tmp_path / name / "records")
        result, cost = run_check(_factory(folder, run_check.log), home=str(tmp_path / name))
        paths = {each.path for facts in result.outcome.faults for each in facts.firings}
        assert (result.passed, cost) == (True, expected)
        assert {path.rpartition("/")[0] for path in paths} == {str(folder)}


@pytest.mark.parametrize("change", ["content", "another file"])
def test_other_files_in_the_folder_of_the_item_are_read_first(tmp_path, run_check, change):
    for name, expected in (("item_1", WHOLE), ("item_2", VERIFIED), ("item_3", VERIFIED)):
        folder = write_records(tmp_path / name / "records")
        if name == "item_3":
            _change(folder, change)
        result, cost = run_check(
            _factory(folder, run_check.log, FirstRecords), home=str(tmp_path / name)
        )
        assert (result.passed, cost) == (True, expected)


class FirstRecords(Records):
    """Has the same samples, whatever else is in the folder and in the last file."""

    def __init__(self, folder):
        super().__init__(folder)
        self.paths = self.paths[:8]

    def __getitem__(self, index):
        path = self.paths[index]
        return torch.tensor(list(path.read_bytes()[:SIZE]), dtype=torch.uint8)


def _change(folder, change):
    path = folder / "00.rec"
    if change == "content":
        path.write_bytes(path.read_bytes() + b"more")
    else:
        (folder / "16.rec").touch()


def test_a_large_file_is_not_read(tmp_path, run_check, monkeypatch):
    monkeypatch.setattr(fault_free_cache, "_MOST_BYTES", 100)
    for name, expected in (("item_1", WHOLE), ("item_2", VERIFIED), ("item_3", VERIFIED)):
        folder = write_records(tmp_path / name / "records")
        _, cost = run_check(_factory(folder, run_check.log), home=str(tmp_path / name))
        assert cost == expected


@pytest.mark.parametrize(("calls", "cost"), [("aaa", 0), ("aab", WHOLE - ALONE)])
def test_a_skipped_check_is_recalled_within_one_test(tmp_path, run_check, calls, cost):
    for name, call in zip(("item_1", "item_2", "item_3"), calls, strict=True):
        folder = write_records(tmp_path / name / "records")
        factory = _factory(folder, run_check.log)
        result, spent = run_check(factory, "connect-error", home=str(tmp_path / name), call=call)
        assert not result.applies
    assert spent == cost


def test_a_guess_that_was_wrong_fails_no_check(records, run_check):
    factory = _factory(records, run_check.log)
    run_check(factory)
    for path in records.iterdir():
        path.write_bytes(bytes(reversed(path.read_bytes())))
    costs = [run_check(factory, "read-error-transient") for _ in range(2)]
    assert [(result.passed, cost) for result, cost in costs] == [
        (True, REFERENCE + WHOLE),
        (True, WHOLE),
    ]


def test_a_failure_is_confirmed_without_another_control(records, run_check):
    factory = _factory(records, run_check.log, ZerosOnError)
    run_check(factory, "worker-killed-first")
    result, cost = run_check(factory)
    assert (result.verdict, result.failed, cost) == ("corrupted", True, REFERENCE + 2 * ALONE)


BEFORE_INIT = "truncated-before-init"
FOLLOWED, AFTER = 1, 1
"""The epoch without a fault that is followed from the constructor on, and the recovery."""


def test_the_epoch_followed_from_the_constructor_on_is_made_once(records, run_check):
    factory = _factory(records, run_check.log)
    run_check(factory)
    costs = [
        run_check(factory, name)[1] for name in (BEFORE_INIT, BEFORE_INIT, "missing-before-init")
    ]

    assert costs == [FOLLOWED + ALONE + AFTER, ALONE + AFTER, ALONE + AFTER]


def test_a_trial_for_two_checks_is_run_once(records, run_check):
    factory = _factory(records, run_check.log)
    run_check(factory)
    costs = [run_check(factory, name)[1] for name in ("resource-growth", "abandoned-epoch")]

    assert costs == [ALONE, 0]


def test_the_followed_epoch_moves_with_the_folder_of_the_item(tmp_path, run_check):
    costs = {}
    for name, check in (("item_1", "open-error"), ("item_2", BEFORE_INIT), ("item_3", BEFORE_INIT)):
        folder = write_records(tmp_path / name / "records")
        factory = _factory(folder, run_check.log)
        result, costs[name] = run_check(factory, check, home=str(tmp_path / name))
        paths = {each.path for facts in result.outcome.faults for each in facts.firings}
        assert (result.passed, {path.rpartition("/")[0] for path in paths}) == (True, {str(folder)})

    assert costs["item_2"] - costs["item_3"] == REFERENCE + FOLLOWED


SCALE = {"by": 1}


class Scaled(Records):
    """Its samples depend on a global variable."""

    def __getitem__(self, index):
        data, _ = super().__getitem__(index)
        return data.to(torch.int64) * SCALE["by"], index


def test_a_change_that_no_file_shows_fails_no_check(records, run_check, monkeypatch):
    factory = _factory(records, run_check.log, Scaled)
    run_check(factory)
    monkeypatch.setitem(SCALE, "by", 2)
    result, cost = run_check(factory, "read-error-transient")
    assert (result.passed, cost) == (True, 2 * ALONE + REFERENCE + WHOLE)


class RemembersWhatFailed(Records):
    """Gives zeros for what it could not read, and does so for good: it writes down the names."""

    def __init__(self, folder):
        super().__init__(folder)
        self.failed = folder.parent / "failed.txt"
        if not self.failed.exists():
            self.failed.touch()

    def __getitem__(self, index):
        path = self.paths[index]
        try:
            if path.name not in self.failed.read_text():
                return super().__getitem__(index)
        except OSError:
            with self.failed.open("a") as file:
                file.write(path.name)
        return torch.zeros(SIZE, dtype=torch.uint8), index


def test_a_change_by_a_fault_does_not_outdate_a_run(records, run_check):
    factory = _factory(records, run_check.log, RemembersWhatFailed)
    run_check(factory, "worker-killed-first", files="*.rec")
    result, _ = run_check(factory, "open-error", files="*.rec")
    assert (result.verdict, result.failed) == ("corrupted", True)


def test_a_dataset_that_is_broken_without_a_fault_is_not_remembered(records, run_check):
    factory = _factory(records, run_check.log, _Broken)
    verdicts = [run_check(factory, "workers-agree") for _ in range(2)]
    assert {result.verdict for result, _ in verdicts} == {"fails_without_fault"}
    assert len({cost for _, cost in verdicts}) == 1


class _Broken(Records):
    """Works in the main process only."""

    def __getitem__(self, index):
        from torch.utils.data import get_worker_info

        if get_worker_info():
            raise OSError("not here")
        return super().__getitem__(index)


def test_nothing_is_repeated_where_no_file_has_changed(records, run_check):
    for options in ({}, {"loader": {"batch_size": 2}}):
        assert run_check(_factory(records, run_check.log), **options)[1] == WHOLE
    result, cost = run_check(_factory(records, run_check.log), "read-error")
    assert (result.passed, cost) == (True, ALONE)


def test_unidentified_factories_are_not_recalled(records, run_check):
    class Place:
        folder = records

    place = Place()
    for factory in (
        lambda: _made(Records, place.folder, run_check.log),
        partial(lambda place: _made(Records, place.folder, run_check.log), place),
    ):
        assert [run_check(factory)[1] for _ in range(2)] == [WHOLE, WHOLE]


class NamesItsFiles(Records):
    """Has the path of its file in each sample, and zeros where that cannot be read."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)[0], str(self.paths[index])
        except OSError:
            return torch.zeros(SIZE, dtype=torch.uint8), str(self.paths[index])


def test_samples_that_name_their_files_hide_no_failure(tmp_path, run_check):
    for number, name in enumerate(
        ("open-error", "read-error-before-init", "read-error-before-init")
    ):
        home = tmp_path / str(number)
        factory = _factory(write_records(home / "records"), run_check.log, NamesItsFiles)
        result, _ = run_check(factory, name, home=str(home), call="a")
        assert (result.applies, result.verdict) == (True, "corrupted")


def test_what_is_moved_to_another_folder_keeps_its_kind():
    """Paths change. Members of enumerations stay what they are, since they may be str, too."""
    results = {
        "path": "/a/x",
        "reason": Reason.FINISHED,
        "absence": Absence(1, Reason.GONE, Position(1, 2)),
    }
    moved = fault_free_cache._Mover("/a", "/b")(results)

    assert moved == {**results, "path": "/b/x"}
    assert moved["reason"] is Reason.FINISHED
    assert moved["absence"].reason is Reason.GONE
