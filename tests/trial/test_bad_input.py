"""What cannot be tried, or is no argument, is refused in words: what it was, and what to do."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset

from pytest_dataloader_faults import Contract, Verdict, check_dataset, run_trial
from pytest_dataloader_faults.battery.checking import select_checks
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support import troublemakers
from support.datasets import Records, RecordStream
from support.refusals import battery, both, lacks, refusal
from support.rows import rows
from support.troublemakers import Trouble


class Empty(Records):
    """Has no sample."""

    def __init__(self) -> None:
        self.paths = []


class EmptyStream(IterableDataset[Any]):
    """Ends at once."""

    def __iter__(self) -> Any:
        return iter(())


class Random(Records):
    """Augments without a seed of its own."""

    def __getitem__(self, index: int) -> Any:
        data, _ = super().__getitem__(index)
        return data + random.randrange(200), torch.rand(3)


class RandomStream(RecordStream):
    """The same, as a stream."""

    def __iter__(self) -> Any:
        return ((data, torch.rand(2)) for data, _ in super().__iter__())


class Failing(Records):
    """Fails with no fault armed."""

    def __getitem__(self, index: int) -> Any:
        message = f"no such key: {index}"
        raise KeyError(message)


class LengthLess:
    """Map-style without ``__len__``."""

    def __getitem__(self, index: int) -> Any:
        return index


class Sized(Records):
    """Has a length that cannot be told."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error


class Samples(Dataset[Any]):
    """Gives what it is told to."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class FailingStream(IterableDataset[Any]):
    """Gives a sample and fails."""

    def __iter__(self) -> Any:
        yield torch.zeros(1)
        raise LookupError("no such record")


class FailingSampler:
    """Fails with its first index."""

    def __iter__(self) -> Any:
        raise LookupError("no such index")


class Sampler:
    """Has no length, which torch allows."""

    def __iter__(self) -> Any:
        return iter(range(6))


def test_a_glob_that_matches_nothing_is_no_pass(records, reference):
    """The fault was not exercised: the verdict says so and does not pass."""
    judgement = run_trial(lambda: Records(records), ReadError("*.jpg")).judge(reference)
    assert (judgement.verdict, judgement.passed) == (Verdict.NOT_EXERCISED, False)
    assert lacks(judgement.sentence, "no fault fired") == []


def test_an_error_within_a_library():
    """The line of the dataset that called the library is named beside that of the error."""
    text = refusal(UnusableDatasetError, battery, lambda: Samples(json.loads))
    own = Samples.__getitem__.__code__.co_firstlineno + 1

    assert (
        lacks(text, "Samples[0] failed with no fault armed: TypeError", "json/__init__.py:") == []
    )
    assert f", called at {__file__}:{own}" in text


def test_an_error_of_the_dataset_itself():
    """Its line is named once."""
    text = refusal(UnusableDatasetError, battery, lambda: Samples(_fails))

    assert f" at {__file__}:{_fails.__code__.co_firstlineno + 2}" in text
    assert "called at" not in text


def _fails(_: int) -> Any:
    """Fails here."""
    raise LookupError("no such sample")


@both
def test_a_factory_with_yield(entry):
    """The advice is what to write in its place."""

    def make_dataset():
        yield Records

    text = refusal(UnusableDatasetError, entry, make_dataset)
    advice = (
        "write return in place of yield, or yield the samples in __iter__ of an IterableDataset"
    )
    assert lacks(text, "generator object", advice) == []


@both
def test_a_factory_that_raises(entry):
    """Its exception is named, and that no fault was armed."""

    def make_dataset():
        raise LookupError("no such dataset")

    text = refusal(UnusableDatasetError, entry, make_dataset)
    assert lacks(text, "LookupError", "no such dataset", "no fault armed") == []


@both
@pytest.mark.parametrize(
    "made", [None, Records, 42, pytest.param(object(), id="object"), {1, 2}, print], ids=repr
)
def test_a_factory_that_returns_no_dataset(entry, made):
    """What it returned is shown, and what it should return is said."""
    text = refusal(UnusableDatasetError, entry, lambda: made)
    assert lacks(text, repr(made), "is no dataset", "map-style or iterable dataset") == []


@both
@pytest.mark.parametrize("make_dataset", [Empty, lambda: DataLoader(Empty(), sampler=[])])
def test_an_empty_map_dataset(entry, make_dataset):
    """There is no sample that a fault could hit."""
    assert lacks(refusal(UnusableDatasetError, entry, make_dataset), "Empty is empty") == []


def test_an_empty_stream_is_refused_by_the_battery():
    """The reference has no sample to compare with."""
    assert lacks(refusal(UnusableDatasetError, battery, EmptyStream), "EmptyStream is empty") == []


def test_an_empty_stream_exercises_nothing():
    """Alone in a trial, it is a run in which no fault fired and nothing came."""
    outcome = run_trial(EmptyStream, ReadError("*"))
    assert (outcome.fired, outcome.delivered) == (0, ())


@pytest.mark.parametrize("kind", [Random, RandomStream])
def test_samples_that_are_not_as_promised(records, kind):
    """The first sample that differs is named, what differs in it, and the cure."""
    contract = Contract(deterministic=True)
    text = refusal(UnusableDatasetError, battery, lambda: kind(records), contract=contract)
    parts = ["deterministic=True", "sample 0", "differs from the first reading"]
    assert lacks(text, *parts, "Seed samples by their index") == []


def test_a_dataset_that_fails_by_itself(records):
    """The sample and the error are named, and that no fault was armed."""
    text = refusal(UnusableDatasetError, battery, lambda: Failing(records))
    assert lacks(text, "Failing[0]", "KeyError", "no such key: 0", "no fault armed") == []


@pytest.mark.parametrize(
    ("trouble", "how"),
    [
        (troublemakers.leave, "(exit status 3)"),
        (troublemakers.leave_in_peace, "(exit status 0)"),
        (troublemakers.touch_a_missing_page, "(signal 7 (SIGBUS))"),
        (troublemakers.send_a_real_time_signal, f"(signal {signal.SIGRTMIN + 5})"),
    ],
)
def test_a_dataset_that_ends_its_process(records, trouble, how):
    """How the process ended is said, and that it was no fault of ours, and what it printed."""

    def make_dataset():
        return Trouble(records, lambda: (os.write(1, b"good bye"), trouble()), "loader")

    text = refusal(UnusableDatasetError, battery, make_dataset)
    assert lacks(text, f"died {how}", "no fault armed", "good bye") == []
    assert ("threads or locks" in text) == (trouble is not troublemakers.leave_in_peace)


@both
@pytest.mark.parametrize("error", [LookupError("nowhere"), SystemExit(3), ValueError("no")])
def test_a_length_that_raises(entry, error):
    """The error is named, and that no fault was armed."""
    text = refusal(UnusableDatasetError, entry, lambda: Sized(error))
    assert lacks(text, "len(Sized)", repr(error), "no fault armed") == []


@both
def test_a_stream_whose_length_is_none_of_its_business(entry, records):
    """ChainDataset has ``__len__`` and raises TypeError from it: a stream without a length."""
    entry(lambda: ChainDataset([RecordStream(records)]), ReadError("*.rec"))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda _: None, "NoneType"),
        (lambda _: object(), "object"),
        (lambda index: torch.zeros(index + 1), "stack expects each tensor to be equal size"),
    ],
    ids=["none", "object", "ragged"],
)
def test_samples_that_cannot_be_collated(make, told):
    """What the collate function says is told, and what to give instead."""
    text = refusal(UnusableDatasetError, battery, lambda: Samples(make))
    assert lacks(text, "collating samples of Samples", told, "no fault armed", "collate_fn") == []


def test_samples_that_have_no_fingerprint():
    """What cannot be compared is named."""
    options = {"loader": {"batch_size": None, "num_workers": 1}}
    made = Samples(lambda _: (each for each in ()))
    text = refusal(UnusableDatasetError, battery, lambda: made, **options)
    assert lacks(text, "Samples", "a generator, which has no fingerprint") == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_sample_that_ends_the_interpreter(error):
    """It is the dataset's error, and nothing of the harness."""

    def end(_):
        raise error

    text = refusal(UnusableDatasetError, battery, lambda: Samples(end))
    assert lacks(text, "Samples[0]", repr(error), "no fault armed") == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_end_of_the_interpreter_is_a_fact_of_a_trial(error):
    """In the loader's own process it ends the epoch, as it ends a script."""

    def end(_):
        raise error

    outcome = run_trial(lambda: Samples(end), loader={"num_workers": 0})
    assert outcome.exception.type == type(error).__name__


def test_a_stream_that_fails_by_itself():
    """Its error is named, and that no fault was armed."""
    text = refusal(UnusableDatasetError, battery, FailingStream)
    assert lacks(text, "iterating FailingStream", "no such record", "no fault armed") == []


class Silent(IterableDataset[Any]):
    """Never gives a sample."""

    def __iter__(self) -> Any:
        threading.Event().wait()
        yield torch.zeros(1)


def test_a_stream_without_a_sample():
    """What to do about it is said, and where it was when time was up."""
    text = refusal(UnusableDatasetError, battery, Silent, deadline=2)
    assert lacks(text, "no reference within 2 s", "Give a stream an end", "raise deadline") == []


def test_a_sampler_that_fails_by_itself(records):
    """Its error is named, and that no fault was armed."""
    loader = {"sampler": FailingSampler(), "num_workers": 1}
    text = refusal(UnusableDatasetError, battery, lambda: Records(records), loader=loader)
    assert lacks(text, "the sampler", "no such index", "no fault armed") == []


@both
def test_a_dataset_without_a_length(entry):
    """Map-style datasets need one."""
    text = refusal(UnusableDatasetError, entry, LengthLess)
    assert lacks(text, "LengthLess has no length") == []


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_sampler_without_a_length_is_not_the_datasets_fault(records, option):
    """A loader needs no length to iterate, so neither does a trial."""
    batches = [[0, 1], [2, 3]]
    given = Sampler() if option == "sampler" else iter_of(batches)
    outcome = run_trial(lambda: Records(records), loader={option: given, "num_workers": 1})
    assert len(outcome.delivered) == 2
    assert outcome.exception is None


def iter_of(batches: list[list[int]]) -> Any:
    """A sampler of *batches* that has no length."""

    class Batches:
        def __iter__(self) -> Any:
            return iter(batches)

    return Batches()


def test_a_worker_that_is_not_there(records, reference):
    """A fault for a worker that the loader has not does not fire, which is no pass."""
    outcome = run_trial(lambda: Records(records), WorkerKilled(worker=2))
    assert outcome.judge(reference).verdict is Verdict.NOT_EXERCISED


def test_files_that_match_nothing_arerefusal(records):
    """The battery names the globs and the files that were read."""
    text = refusal(InvalidArgumentError, battery, lambda: Records(records), files="*.jpg")
    assert lacks(text, "('*.jpg',)", "matches nothing", str(records / "00.rec")) == []


@both
@rows("given", [None, 3, "Records"], ids=repr)
def test_a_factory_that_cannot_be_called(entry, given):
    """A dataset in place of a function that makes one is shown as such."""
    text = refusal(InvalidArgumentError, entry, given)
    assert lacks(text, f"make_dataset={given!r}", "callable") == []


@rows("argument", ["only", "exclude", "expected_failures"])
@rows(("name", "near"), [("read-error-frist", "read-error-first"), ("worker-killed", "worker-kil")])
def test_an_unknown_check(records, argument, name, near):
    """The name is shown with those that are nearest to it."""
    given = {name: "slow"} if argument == "expected_failures" else [name]
    text = refusal(
        InvalidArgumentError, check_dataset, lambda: Records(records), **{argument: given}
    )
    assert lacks(text, argument, repr(name), "Did you mean", near) == []


class Stops(Records):
    """Lets a StopIteration out where it has no sample."""

    def __getitem__(self, index: int) -> Any:
        return next(iter(()))


def test_a_stop_iteration_with_no_fault_armed(records):
    """A loop over the loader would take it for the end of the epoch, so that is said."""
    text = refusal(UnusableDatasetError, battery, lambda: Stops(records))
    assert lacks(text, "Stops[0]", "StopIteration", "for the end of the epoch") == []


@both
def test_a_misspelt_option_of_the_loader(entry, records):
    """The nearest option of torch's is named."""
    options = {"num_worker": 2}
    text = refusal(InvalidArgumentError, entry, lambda: Records(records), loader=options)
    assert lacks(text, repr(options), "Did you mean 'num_workers'") == []


@rows("argument", ["only", "exclude"])
@rows("names", ["growth, abandoned-epoch", " growth,abandoned-epoch,", ["growth,abandoned-epoch"]])
def test_names_of_checks_in_one_text(argument, names):
    """Commas separate names, as in the options of the command line."""
    two = ["growth", "abandoned-epoch"]
    expected = two if argument == "only" else [name for name in CHECKS if name not in two]
    assert select_checks(**{argument: names}) == expected


@rows("argument", ["only", "exclude"])
@rows("names", ["", ", ", [""]])
def test_a_text_without_a_name(argument, names):
    """It is shown, and a text with names."""
    text = refusal(InvalidArgumentError, select_checks, **{argument: names})
    assert lacks(text, f"{argument}={names!r} names no check", "as in 'pickles, open-error'") == []


def test_an_expected_failure_is_one_check():
    """Its reason is for one, so commas separate no names."""
    names = "growth, pickles"
    text = refusal(InvalidArgumentError, select_checks, expected_failures={names: "slow"})
    assert lacks(text, "expected_failures", repr(names)) == []


@both
@rows("deadline", [-1, 0, 0.0, -0.5, math.nan, math.inf, 10**400, "30", True, [1]])
def test_a_deadline_that_cannot_pass(entry, records, deadline):
    """Negative, zero, not a number, without end, of another type: each is shown."""
    text = refusal(InvalidArgumentError, entry, lambda: Records(records), deadline=deadline)
    assert lacks(text, f"deadline={deadline!r}", "positive number of seconds") == []


def test_a_trial_has_a_deadline(records):
    """Only a check may leave it to the epoch without a fault."""
    text = refusal(InvalidArgumentError, run_trial, lambda: Records(records), deadline=None)
    assert lacks(text, "deadline=None", "positive number of seconds") == []


def test_no_workers_for_the_battery(records):
    """The battery is about workers."""
    loader = {"num_workers": 0}
    text = refusal(InvalidArgumentError, battery, lambda: Records(records), loader=loader)
    assert lacks(text, "num_workers=0", "num_workers=1 or more") == []


@both
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_workers", -1),
        ("batch_size", 0),
        ("batch_size", "4"),
        ("no_such_option", 1),
        ("prefetch_factor", -2),
        ("multiprocessing_context", "no-such-method"),
    ],
)
def test_an_option_that_the_loader_refuses(entry, records, option, value):
    """The options are shown with torch's own reason."""
    loader = {option: value}
    text = refusal(InvalidArgumentError, entry, lambda: Records(records), loader=loader)
    assert lacks(text, repr(loader), "DataLoader") == []


def test_advice_of_the_loader_is_no_failure(records):
    """More workers than cores: torch warns, pytest makes that an error, and the trial goes on."""
    workers = len(os.sched_getaffinity(0)) + 1
    outcome = run_trial(lambda: Records(records), loader={"num_workers": workers})
    assert (outcome.exception, len(outcome.workers)) == (None, workers)


@both
def test_options_beside_a_ready_loader(entry, records):
    """One of the two has to go."""
    loader = {"batch_size": 2}
    text = refusal(InvalidArgumentError, entry, lambda: DataLoader(Records(records)), loader=loader)
    assert lacks(text, repr(loader), "ready DataLoader", "Return the dataset") == []


@rows("epochs", [0, -1, 1.5, "2", None, True])
def test_epochs_that_cannot_be_run(records, epochs):
    """A count is one or more."""
    text = refusal(InvalidArgumentError, run_trial, lambda: Records(records), epochs=epochs)
    assert lacks(text, f"epochs={epochs!r}", "1 or more") == []


@rows("given", ["ReadError", None, OSError("disk"), OSError], ids=repr)
def test_what_is_no_fault(records, given):
    """What was given is shown, with an example of a fault."""
    text = refusal(InvalidArgumentError, run_trial, lambda: Records(records), given)
    assert lacks(text, repr(given), "is no fault", "ReadError('*.jpg')") == []


@both
@rows("engine", ["pyhton", "", None, 1])
def test_an_unknown_engine(entry, records, engine):
    """The choices are listed."""
    text = refusal(InvalidArgumentError, entry, lambda: Records(records), engine=engine)
    assert lacks(text, f"engine={engine!r}", "one of auto, kernel, python") == []


@rows("on_fail", ["raises", False, 0])
def test_an_unknown_way_to_fail(records, on_fail):
    """The choices are listed."""
    text = refusal(InvalidArgumentError, check_dataset, lambda: Records(records), on_fail=on_fail)
    assert lacks(text, f"on_fail={on_fail!r}", "'raise'", "'warn'", "None") == []


@rows("seed", [-1, 1.5, "0", None, 2**32, 2**64])
@both
def test_a_seed_that_is_none(entry, records, seed):
    """A seed is an int that torch, random and numpy take."""
    text = refusal(InvalidArgumentError, entry, lambda: Records(records), seed=seed)
    assert lacks(text, f"seed={seed!r}") == []
