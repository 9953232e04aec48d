"""What items of one test share: the fault-free run, verified where it may be out of date."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery import baseline_cache
from pytest_dataloader_faults.battery.baseline_cache import BaselineCache
from pytest_dataloader_faults.outcomes.stages import Absence, Reason, Step
from support.corpus.state import Noisy
from support.datasets import SIZE, Records, write_records
from support.random_samples import OwnNoise
from support.specimens import ZerosOnError

REFERENCE, FAULT_FREE, ALONE = 1, 1, 1
"""Processes that make a dataset; the last is the trial's."""
WHOLE, VERIFIED = REFERENCE + FAULT_FREE + ALONE, REFERENCE + ALONE


class Asked:
    """A memory, and how many processes each check has cost."""

    def __init__(self, log):
        self.memory = BaselineCache()
        self.log = log
        log.touch()

    def __call__(self, make_dataset, name="open-error", home=None, call=None, **settings):
        """The result, and the cost."""
        before = len(self.log.read_text())
        options = {"home": home, "call": call, "expected": None, "reproduce": "again"}
        result = self.memory.ask(name, make_dataset, Settings(**settings), **options).result
        return result, len(self.log.read_text()) - before


@pytest.fixture(name="asked")
def _asked(tmp_path):
    return Asked(tmp_path / "log")


def _made(kind, folder, log):
    with log.open("a") as file:
        file.write("x")
    return kind(folder)


def _factory(folder, log, kind=Records):
    return lambda: _made(kind, folder, log)


def test_other_kinds_of_factories_are_recalled_as_well(records, asked):
    """A functools.partial of a function is known by its arguments."""
    factory = partial(_made, Records, records, asked.log)
    assert [asked(factory)[1] for _ in range(2)] == [WHOLE, ALONE]


def test_the_reference_is_taken_again_where_a_file_was_touched(records, asked):
    """The fault-free epoch is not repeated: the samples show that nothing else is different."""
    factory = _factory(records, asked.log)
    asked(factory)
    (records / "00.rec").touch()
    assert asked(factory)[1] == VERIFIED


@pytest.mark.parametrize("kind", [Noisy, OwnNoise])
def test_the_fault_free_epoch_of_random_samples_is_not_repeated(kind, records, asked):
    """Nor is it found out again how to compare them."""
    (_, first), (result, second) = [asked(_factory(records, asked.log, kind)) for _ in range(2)]

    assert result.passed
    assert (first > WHOLE, second) == (True, ALONE)


def test_findings_move_with_the_folder_of_the_item(tmp_path, asked):
    """Each item has one of its own, with the same files, and the fault befalls those."""
    for name, expected in (("item_1", WHOLE), ("item_2", VERIFIED), ("item_10", ALONE)):
        folder = write_records(tmp_path / name / "records")
        result, cost = asked(_factory(folder, asked.log), home=str(tmp_path / name))
        paths = {each.path for facts in result.outcome.faults for each in facts.firings}
        assert (result.passed, cost) == (True, expected)
        assert {path.rpartition("/")[0] for path in paths} == {str(folder)}


@pytest.mark.parametrize("change", ["content", "name", "another file"])
def test_other_files_in_the_folder_of_the_item_are_read_first(tmp_path, asked, change):
    """What another item found out does not hold for them."""
    for name, expected in (("item_1", WHOLE), ("item_2", VERIFIED), ("item_3", VERIFIED)):
        folder = write_records(tmp_path / name / "records")
        if name == "item_3":
            _change(folder, change)
        result, cost = asked(_factory(folder, asked.log, FirstRecords), home=str(tmp_path / name))
        assert (result.passed, cost) == (True, expected)


class FirstRecords(Records):
    """Has the same samples, whatever else is in the folder and in the last file."""

    def __init__(self, folder):
        super().__init__(folder)
        self.paths = self.paths[:8]

    def __getitem__(self, index):
        path = self.paths[index]
        return torch.tensor(list(path.read_bytes()[:SIZE]), dtype=torch.uint8)


def _change(folder, what):
    first = folder / "00.rec"
    if what == "content":
        first.write_bytes(first.read_bytes() + b"more")
    elif what == "name":
        first.rename(folder / "000.rec")
    else:
        (folder / "99.rec").touch()


def test_a_large_file_is_not_looked_at(tmp_path, asked, monkeypatch):
    """The reference is taken instead, which reads some samples only."""
    monkeypatch.setattr(baseline_cache, "_MOST_BYTES", 100)
    for name, expected in (("item_1", WHOLE), ("item_2", VERIFIED), ("item_3", VERIFIED)):
        folder = write_records(tmp_path / name / "records")
        _, cost = asked(_factory(folder, asked.log), home=str(tmp_path / name))
        assert cost == expected


@pytest.mark.parametrize(("calls", "cost"), [("aaa", 0), ("aab", WHOLE - ALONE)])
def test_what_does_not_apply_is_believed_within_one_test(tmp_path, asked, calls, cost):
    """It compares nothing, so another test finds out for itself."""
    for name, call in zip(("item_1", "item_2", "item_3"), calls, strict=True):
        folder = write_records(tmp_path / name / "records")
        factory = _factory(folder, asked.log)
        result, found = asked(factory, "connect-error", home=str(tmp_path / name), call=call)
        assert not result.applies
    assert found == cost


def test_a_guess_that_was_wrong_fails_no_check(records, asked):
    """Other data from another item: the fault-free epoch is repeated, and no guess made again."""
    factory = _factory(records, asked.log)
    asked(factory)
    for path in records.iterdir():
        path.write_bytes(bytes(reversed(path.read_bytes())))
    costs = [asked(factory, "read-error-transient") for _ in range(2)]
    assert [(result.passed, cost) for result, cost in costs] == [
        (True, REFERENCE + WHOLE),
        (True, WHOLE),
    ]


def test_a_failure_is_confirmed_without_another_control(records, asked):
    """The reference is taken after it, and tells that the dataset is the one that is known."""
    factory = _factory(records, asked.log, ZerosOnError)
    asked(factory, "worker-killed-first")
    result, cost = asked(factory)
    assert (result.verdict, result.failed, cost) == ("corrupted", True, REFERENCE + 2 * ALONE)


AT_REST = "truncated-at-rest"
FOLLOWED, AFTER = 1, 1
"""The epoch without a fault that is followed from the constructor on, and the recovery."""


def test_the_epoch_followed_from_the_constructor_on_is_made_once(records, asked):
    """The first check of files at rest needs it, and others of the test have it from there."""
    factory = _factory(records, asked.log)
    asked(factory)
    costs = [asked(factory, name)[1] for name in (AT_REST, AT_REST, "missing-at-rest")]

    assert costs == [FOLLOWED + ALONE + AFTER, ALONE + AFTER, ALONE + AFTER]


def test_the_followed_epoch_moves_with_the_folder_of_the_item(tmp_path, asked):
    """The first item that needs it has another folder than the one that came before it."""
    costs = {}
    for name, check in (("item_1", "open-error"), ("item_2", AT_REST), ("item_3", AT_REST)):
        folder = write_records(tmp_path / name / "records")
        factory = _factory(folder, asked.log)
        result, costs[name] = asked(factory, check, home=str(tmp_path / name))
        paths = {each.path for facts in result.outcome.faults for each in facts.firings}
        assert (result.passed, {path.rpartition("/")[0] for path in paths}) == (True, {str(folder)})

    assert costs["item_2"] - costs["item_3"] == REFERENCE + FOLLOWED


SCALE = {"by": 1}


class Scaled(Records):
    """Its samples depend on a global variable."""

    def __getitem__(self, index):
        data, _ = super().__getitem__(index)
        return data.to(torch.int64) * SCALE["by"], index


def test_a_change_that_no_file_shows_fails_no_check(records, asked, monkeypatch):
    """The samples are not as recalled: so the reference is taken again, and then all of it."""
    factory = _factory(records, asked.log, Scaled)
    asked(factory)
    monkeypatch.setitem(SCALE, "by", 2)
    result, cost = asked(factory, "read-error-transient")
    assert (result.passed, cost) == (True, 2 * ALONE + REFERENCE + WHOLE)


class RemembersWhatFailed(Records):
    """Gives zeros for what it could not read, and does so for good: it writes down the names."""

    def __init__(self, folder, *, touches=True):
        super().__init__(folder)
        self.failed = folder.parent / "failed.txt"
        if touches or not self.failed.exists():
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


@pytest.mark.parametrize("touches", [True, False])
def test_what_a_fault_left_on_the_disk_excuses_nothing(records, asked, touches):
    """That the dataset gives other samples after the trial does not make it another one."""
    factory = _factory(records, asked.log, partial(RemembersWhatFailed, touches=touches))
    asked(factory, "worker-killed-first", files="*.rec")
    result, _ = asked(factory, "open-error", files="*.rec")
    assert (result.verdict, result.failed) == ("corrupted", True)


def test_a_dataset_that_is_broken_without_a_fault_is_not_remembered(records, asked):
    """What its workers do is no ground for a guess."""
    factory = _factory(records, asked.log, _Broken)
    verdicts = [asked(factory, "workers-agree") for _ in range(2)]
    assert {result.verdict for result, _ in verdicts} == {"broken"}
    assert len({cost for _, cost in verdicts}) == 1


class _Broken(Records):
    """Works in the main process only."""

    def __getitem__(self, index):
        from torch.utils.data import get_worker_info

        if get_worker_info():
            raise OSError("not here")
        return super().__getitem__(index)


def test_nothing_is_repeated_where_no_file_has_changed(records, asked):
    """The second item of a test believes what the first one found, if asked in the same way."""
    others = [{"seed": 1}, {"loader": {"batch_size": 2}}, {"contract": Contract(names_file=True)}]
    for options in ({}, *others):
        assert asked(_factory(records, asked.log), **options)[1] == WHOLE
    result, cost = asked(_factory(records, asked.log), "read-error-first")
    assert (result.passed, cost) == (True, ALONE)


def test_what_cannot_be_told_is_not_recalled(records, asked):
    """An object may have changed: each item looks for itself."""

    class Place:
        folder = records

    place = Place()
    for factory in (
        lambda: _made(Records, place.folder, asked.log),
        partial(lambda place: _made(Records, place.folder, asked.log), place),
    ):
        assert [asked(factory)[1] for _ in range(2)] == [WHOLE, WHOLE]


class NamesItsFiles(Records):
    """Has the path of its file in each sample, and zeros where that cannot be read."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)[0], str(self.paths[index])
        except OSError:
            return torch.zeros(SIZE, dtype=torch.uint8), str(self.paths[index])


def test_samples_that_name_their_files_hide_no_failure(tmp_path, asked):
    """Files of the same content in another folder make other samples then."""
    for number, name in enumerate(("open-error", "read-error-at-rest", "read-error-at-rest")):
        home = tmp_path / str(number)
        factory = _factory(write_records(home / "records"), asked.log, NamesItsFiles)
        result, _ = asked(factory, name, home=str(home), call="a")
        assert (result.applies, result.verdict) == (True, "corrupted")


def test_what_is_moved_to_another_folder_keeps_its_kind():
    """Paths change. Members of enumerations stay what they are, since they may be str, too."""
    found = {
        "path": "/a/x",
        "reason": Reason.FINISHED,
        "absence": Absence(1, Reason.GONE, Step(1, 2)),
    }
    moved = baseline_cache._Mover("/a", "/b")(found)

    assert moved == {**found, "path": "/b/x"}
    assert moved["reason"] is Reason.FINISHED
    assert moved["absence"].reason is Reason.GONE
