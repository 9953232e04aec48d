"""What cannot be tried, or is no argument, is refused in words: what it was, and what to do."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial.factory import takes_folder
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.loaders import make_loader
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from support import troublemakers
from support.datasets import Records
from support.refusals import battery, both_entries, missing_parts, refusal
from support.rows import rows
from support.troublemakers import Trouble


class Empty(Records):
    def __init__(self) -> None:
        self.paths = []


class EmptyStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class LengthLess:
    def __getitem__(self, index: int) -> Any:
        return index


class Prefetching:
    """Prepares the batches of a loader, as timm's PrefetchLoader does."""

    def __init__(self) -> None:
        self.loader = DataLoader([torch.zeros(3)], num_workers=2)

    def __iter__(self) -> Any:
        return (batch * 2 for batch in self.loader)


class Sized(Records):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error


class Samples(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class FailingStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.zeros(1)
        raise LookupError("no such record")


class FailingSampler:
    def __iter__(self) -> Any:
        raise LookupError("no such index")


class Silent(IterableDataset[Any]):
    def __iter__(self) -> Any:
        threading.Event().wait()
        yield torch.zeros(1)


def test_an_error_within_a_library():
    text = refusal(UnusableDatasetError, battery, lambda: Samples(json.loads))
    user_line = Samples.__getitem__.__code__.co_firstlineno + 1

    problem = "Samples[0] raised TypeError"
    assert missing_parts(text, problem, "json/__init__.py:") == []
    assert f", called at {__file__}:{user_line}" in text


def _fails(_: int) -> Any:
    raise LookupError("no such sample")


def _raises(error: BaseException) -> Any:
    raise error


def _yields() -> Any:
    yield Records


UNFIT = {
    "None": (lambda: None, "is not a dataset", "map-style or iterable dataset"),
    "raises": (lambda: _raises(LookupError("no such dataset")), "LookupError", "no such dataset"),
    "empty, in a loader": (lambda: DataLoader(Empty(), sampler=[]), "Empty is empty"),
    **{
        f"length raises {type(error).__name__}": (
            *(lambda error=error: Sized(error), "len(Sized) raised"),
            *(f"{type(error).__name__}: {error}", "No fault was armed"),
        )
        for error in (LookupError("nowhere"), SystemExit(3), TypeError("no"))
    },
}
"""What no entry can use: a factory, and what is said. The golden file has more."""


@both_entries
@pytest.mark.parametrize("case", UNFIT)
def test_what_is_no_usable_dataset(entry, case):
    make_dataset, *texts = UNFIT[case]
    assert missing_parts(refusal(UnusableDatasetError, entry, make_dataset), *texts) == []


SPLIT = ["collating samples of Samples", "No fault was armed", "collate_fn"]
ENDS = ["Samples[0]", "No fault was armed"]
FAILING = {
    "empty stream": (EmptyStream, {}, "EmptyStream is empty"),
    "no batch of None": (lambda: Samples(lambda _: None), {}, *SPLIT, "NoneType"),
    "no fingerprint": (
        lambda: Samples(lambda _: (each for each in ())),
        {"loader": {"batch_size": None, "num_workers": 1}},
        *("Samples", "a generator, which has no fingerprint"),
    ),
    "fails": (lambda: Samples(_fails), {}, *ENDS, "LookupError", "no such sample"),
    "stops": (
        lambda: Samples(lambda _: next(iter(()))),
        {},
        *("Samples[0]", "StopIteration", "for the end of the epoch"),
    ),
    "stream": (
        FailingStream,
        {},
        "iterating FailingStream",
        "no such record",
        "No fault was armed",
    ),
    "silent": (
        Silent,
        {"deadline": 2},
        *("no reference after 2 s", "Make the stream finite", "raise the deadline"),
    ),
    "sampler": (
        lambda: Samples(torch.tensor),
        {"loader": {"sampler": FailingSampler(), "num_workers": 1}},
        *("the sampler", "no such index", "No fault was armed"),
    ),
}
"""What the battery finds out as it reads: a factory, options, and what is said."""


@pytest.mark.parametrize("case", FAILING)
def test_what_fails_by_itself(case):
    make_dataset, options, *texts = FAILING[case]
    assert (
        missing_parts(refusal(UnusableDatasetError, battery, make_dataset, **options), *texts) == []
    )


@both_entries
@rows("factory", [None, 3, "Records"], ids=repr)
def test_a_factory_that_cannot_be_called(entry, factory):
    text = refusal(InvalidArgumentError, entry, factory)
    assert missing_parts(text, f"make_dataset={factory!r}", "callable") == []


@both_entries
@pytest.mark.parametrize(
    ("loader", "says"),
    [
        ({"num_workers": -1}, "DataLoader"),
        ({"batch_size": "4"}, "DataLoader"),
        ({"num_worker": 2}, "Did you mean 'num_workers'"),
        ({"multiprocessing_context": "no-such-method"}, "DataLoader"),
    ],
    ids=str,
)
def test_an_option_that_the_loader_refuses(entry, records, loader, says):
    """The options are shown with torch's own reason; beside a ready loader, none may stand."""
    text = refusal(InvalidArgumentError, entry, lambda: Records(records), loader=loader)
    assert missing_parts(text, repr(loader), says) == []
    if "batch_size" in loader:
        ready = DataLoader(Records(records))
        text = refusal(InvalidArgumentError, entry, lambda: ready, loader=loader)
        assert missing_parts(text, repr(loader), "ready DataLoader", "Return the dataset") == []


@pytest.mark.parametrize(
    ("trouble", "ending"),
    [
        (troublemakers.exit_silently, "(exit status 3)"),
        (troublemakers.raise_real_time_signal, f"(signal {signal.SIGRTMIN + 5})"),
    ],
)
def test_a_dataset_that_ends_its_process(records, trouble, ending):
    def make_dataset():
        return Trouble(records, lambda: (os.write(1, b"good bye"), trouble()), "loader")

    text = refusal(UnusableDatasetError, battery, make_dataset)
    assert missing_parts(text, f"died {ending}", "without faults", "good bye") == []
    assert "threads or locks" in text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_end_of_the_interpreter_is_a_fact_of_a_trial(error):
    def end(_):
        raise error

    outcome = run_trial(lambda: Samples(end), loader={"num_workers": 0})
    assert outcome.exception.type == type(error).__name__


def test_advice_of_the_loader_is_no_failure(records):
    """More workers than cores: torch warns, pytest makes that an error, and the trial goes on."""
    workers = len(os.sched_getaffinity(0)) + 1
    outcome = run_trial(lambda: Records(records), loader={"num_workers": workers})
    assert (outcome.exception, len(outcome.workers)) == (None, workers)


def _fits_one(returned: Any) -> str:
    with pytest.raises((UnusableDatasetError, InvalidArgumentError)) as refused:
        make_loader(
            Job(make_dataset=lambda: returned() if isinstance(returned, type) else returned)
        )
    text = re.sub(r"<[\w.]+\.(\w+ object)", r"<\1", str(refused.value))
    return re.sub(r" at \S+\.py:\d+", " at FILE.py:1", re.sub(r" at 0x\w+", "", text))


def test_complete_texts(golden):
    empty = TensorDataset(torch.zeros(0))
    returned = {
        "nothing": None,
        "an iterator": iter(DataLoader(TensorDataset(torch.zeros(2)))),
        "a generator": _yields(),
        "a wrapped loader": Prefetching(),
        "an empty dataset": empty,
        "an error in len": Sized(LookupError("nowhere")),
        "no length": LengthLess,
        "several": {"train": TensorDataset(torch.zeros(2)), "val": empty},
        "classes": [Records, Records],
        "a class": {"train": Records},
        "functions": [battery],
        "something else": {"train": empty, "names": ["cat"]},
    }
    texts = {title: _fits_one(source) for title, source in returned.items()}
    required = refusal(InvalidArgumentError, takes_folder, lambda split, size: (split, size))
    golden("make_dataset", {**texts, "parameters": required})
