"""Errors of the package's own code are never the dataset's, and those of the dataset always are."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.worker.session import WorkerSession
from pytest_dataloader_faults._trial import driver
from pytest_dataloader_faults._trial.samples.draws import draws_of
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import WorkerKilled
from support.datasets import Records
from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")


def _broken() -> Any:
    """A function of the package that has a bug."""
    names: dict[str, Any] = {}
    exec(compile("def broken(*args): [][0]", driver.__file__, "exec"), names)  # noqa: S102
    return names["broken"]


class Numbers(IterableDataset[Any]):
    """A stream whose iterator is of C, and raises a ValueError there."""

    def __iter__(self) -> Any:
        return map(int, ["0", "1", "x", "3"])


class ForC(DataLoader[Any]):
    """A loader whose iterator is of C, and raises a ValueError there."""

    def __iter__(self) -> Any:
        return zip(super().__iter__(), [1], strict=True)


class Wrapping(DataLoader[Any]):
    """A loader that raises an error of its own for each error of its iterator."""

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        except Exception as error:
            message = "no batch"
            raise RuntimeError(message) from error


def _without_arguments() -> None:
    pass


USERS = {
    "an index of a list": (lambda: DataLoader([torch.ones(1)], sampler=[0, 7]), "IndexError"),
    "an iterator of C": (lambda: DataLoader(Numbers(), num_workers=1), "ValueError"),
    "an iterator of C without workers": (lambda: DataLoader(Numbers()), "ValueError"),
    "a loader of C": (lambda: ForC([torch.ones(1)] * 3), "ValueError"),
    "a worker_init_fn that takes nothing": (
        lambda: DataLoader([1, 2], num_workers=1, worker_init_fn=_without_arguments),
        "TypeError",
    ),
    "a collate_fn of C": (lambda: DataLoader([1, 2], num_workers=1, collate_fn=int), "TypeError"),
    "a batch sampler of C": (
        lambda: DataLoader([1, 2], batch_sampler=map(len, [[0], 1])),
        "TypeError",
    ),
}


@pytest.mark.parametrize("factory", USERS.values(), ids=USERS)
def test_an_error_that_c_raises_for_the_dataset(factory):
    make, kind = factory
    assert kind == run_trial(make, loader=None).exception.type


@pytest.mark.parametrize(
    ("owner", "name", "kind"),
    [
        (driver.LoaderDriver, "on_batch", Wrapping),
        (driver.LoaderDriver, "_write_batch", DataLoader),
        (WorkerSession, "begin", DataLoader),
        slow(WorkerSession, "begin", Wrapping),
    ],
)
def test_an_error_of_the_package(records, monkeypatch, owner, name, kind):
    monkeypatch.setattr(owner, name, _broken())
    with pytest.raises(HarnessError, match=r"own code failed(?s:.*)IndexError"):
        run_trial(lambda: kind(Records(records), batch_size=4, num_workers=2))


def test_a_sampler_that_is_left_early_has_not_failed(capsys):
    draws = draws_of(DataLoader(range(8), batch_size=4))
    assert next(draws).names == (0, 1, 2, 3)
    draws.close()
    other_draws = draws_of(DataLoader(range(8)))
    next(other_draws)
    del other_draws
    assert capsys.readouterr().err == ""


def test_a_limit_of_tracebacks_does_not_hide_whose_error_it_is(monkeypatch, records):
    monkeypatch.setattr(sys, "tracebacklimit", 3, raising=False)
    outcome = run_trial(lambda: Records(records), WorkerKilled(at=2))
    assert "exited unexpectedly" in outcome.exception.message
