"""Arguments that cannot be used are refused in words: the value, and what is allowed."""

from __future__ import annotations

import math
import os

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from support.datasets import Records
from support.refusals import battery, both, lacks, refusal
from support.rows import rows


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


@both
@rows("deadline", [-1, 0, 0.0, -0.5, math.nan, math.inf, "30", True, [1]])
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
