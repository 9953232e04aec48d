"""What may be handed over: data modules, several loaders or datasets, ready ones, one of many."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import webdataset
from torch.utils.data import DataLoader, TensorDataset

from pytest_dataloader_faults import check_dataset, explore, part_of, run_trial, sweep
from pytest_dataloader_faults._trial.factory import require_one
from pytest_dataloader_faults.battery.checking import about, excused, summed_up
from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    SeveralLoadersError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import CheckResult, Verdict
from pytest_dataloader_faults.search import survey
from support.datasets import Records
from support.handed_over import Broken, DataModule
from support.plugin_datasets import ZerosOnError

pytestmark = pytest.mark.usefixtures("engine")
CHECK = {"only": "open-error", "on_fail": None}


def _loader(dataset, **options):
    return DataLoader(dataset, batch_size=4, num_workers=1, **options)


def _passed(results):
    return {each.part: each.passed for each in results}


def _names(made):
    with pytest.raises(SeveralLoadersError) as refused:
        require_one(made)
    return refused.value.parts


def test_a_data_module_is_tried_loader_by_loader(records):
    """It is set up as a trainer does it. The result says which loader it is about."""
    results = check_dataset(lambda: DataModule(records), **CHECK)
    assert _passed(results) == {"train": True, "val/0": False}
    assert results[1].explanation.startswith("val/0: corrupted: sample")
    assert "check_dataset(part_of(make_dataset, 'val/0'), only=" in results[1].explanation


def test_the_sentence_is_about_the_part_that_decides():
    """Where one part fails once of three trials and another each time, it is that one's."""
    once = CheckResult("pickles", Verdict.CORRUPTED, False, "a.", "corrupted: a.", reproduced=False)
    always = CheckResult("pickles", Verdict.HUNG, False, "b.", "hung: b.")
    found = summed_up([about("train", once), about("val", always)])
    assert (found.verdict, found.sentence) == ("hung", "val: b.")
    assert found.explanation.splitlines() == ["train: corrupted: a.", "val: hung: b."]


def test_a_data_module_that_cannot_be_set_up(records):
    """The method is named that raised."""
    with pytest.raises(UnusableDatasetError, match=r"Broken\.train_dataloader\(\) raised Attrib"):
        check_dataset(lambda: Broken(records), **CHECK)


@pytest.mark.parametrize(
    ("kind", "is_ready"),
    [
        (dict, True),
        (list, False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((dict, False), (list, True), (tuple, True), (tuple, False))
        ),
    ],
)
def test_several_loaders_or_datasets(records, kind, is_ready):
    """Each has a result of its own, named by its key or its place."""
    made = {"a": _loader(Records(records)), "b": ZerosOnError(records)}
    names = list(made) if kind is dict else ["0", "1"]
    several = made if kind is dict else kind(made.values())
    results = check_dataset(several if is_ready else lambda: several, **CHECK)
    assert _passed(results) == dict(zip(names, [True, False], strict=True))


def test_an_expected_failure_of_one_part(records):
    """It is enough that one of them fails as expected; if all pass, that is news."""
    how = {"only": "open-error", "expected_failures": {"open-error": "issue 7"}, "on_fail": None}
    results = check_dataset([Records(records), ZerosOnError(records)], **how)
    assert [each.failed for each in results] == [False, False]
    passed = replace(results[0], expected="issue 7")
    assert [each.failed for each in excused([passed, passed])] == [True, True]


def test_the_splits_of_a_dataset_dict():
    """A DatasetDict of Hugging Face is a dict of datasets."""
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_dict({"x": list(range(8))})
    assert _names(datasets.DatasetDict({"train": one, "test": one})) == ("train", "test")
    stream = one.to_iterable_dataset()
    assert _names(datasets.IterableDatasetDict({"train": stream})) == ("train",)


def test_a_part_that_cannot_be_tried_is_named(records):
    """One of several loaders has no samples."""
    made = {"train": Records(records), "val": DataLoader([])}
    with pytest.raises(UnusableDatasetError, match=r"^val: list is empty"):
        check_dataset(made, **CHECK)


class Samples(dict):
    """A map-style dataset that is a dict."""


@pytest.mark.parametrize(
    "samples",
    [
        [torch.tensor(each) for each in range(8)],
        tuple((torch.tensor(each), each) for each in range(8)),
        Samples({each: torch.tensor(each) for each in range(8)}),
        [{"x": torch.tensor(each)} for each in range(8)],
    ],
    ids=["list", "tuple", "dict", "dicts"],
)
def test_a_container_of_samples_is_one_dataset(samples):
    """A list or a dict is a map-style dataset, unless it has nothing but loaders or datasets."""
    (result,) = check_dataset(samples, only="workers-agree")
    assert (result.part, result.passed) == (None, True)


def test_names_of_what_is_nested():
    """A dict in a dict, a list in a dict, and Lightning's CombinedLoader."""
    one = TensorDataset(torch.zeros(8))

    class CombinedLoader:
        def __init__(self):
            self.iterables = {"x": _loader(one), "y": [one, one]}

    assert _names({"a": {"b": one}, "c": (one,)}) == ("a/b", "c/0")
    assert _names(CombinedLoader()) == ("x", "y/0", "y/1")


def test_a_container_with_something_else_in_it():
    """A loader is no sample: what does not fit is named."""
    made = {"train": _loader(TensorDataset(torch.zeros(8))), "classes": ["cat"]}
    with pytest.raises(UnusableDatasetError, match=r"but 'classes' in it is \['cat'\]"):
        check_dataset(lambda: made, **CHECK)


@pytest.mark.parametrize(
    "function",
    [run_trial, sweep, survey, explore],
    ids=lambda each: each.__name__,
)
def test_what_needs_one_loader_refuses_several(records, function):
    """And says how to choose one of them."""
    made = {"a": Records(records), "b": Records(records)}
    with pytest.raises(InvalidArgumentError, match=r"choose it, as by part_of\(make_dataset, 'a'"):
        function(lambda: made)


def test_one_of_several(records):
    """It can be chosen wherever a dataset is asked for."""
    outcome = run_trial(part_of(lambda: DataModule(records), "val/0"), ReadError("*/03.rec"))
    assert outcome.fired == 1
    assert part_of({"a": Records(records)}, "a")()[3][1] == 3
    with pytest.raises(InvalidArgumentError, match=r"no part 'vla' .*: it gave 'train', 'val/0'"):
        run_trial(part_of(lambda: DataModule(records), "vla"))


def test_a_ready_dataset_or_loader(records):
    """It is tried as it is; trials leave the object alone."""
    dataset = ZerosOnError(records)
    dataset.reads = []
    loader = _loader(dataset)
    for each in (dataset, loader):
        (result,) = check_dataset(each, **CHECK)
        assert result.verdict == "corrupted"
    assert (dataset.reads, loader.num_workers, loader._iterator) == ([], 1, None)


def test_a_ready_loader_whose_workers_run(records):
    """A trial starts workers of its own; those of the test go on."""
    loader = _loader(Records(records), persistent_workers=True)
    list(loader)
    pids = [each.pid for each in loader._iterator._workers]
    (result,) = check_dataset(loader, only="persistent-workers")
    assert result.passed
    assert len(list(loader)) == 4
    assert [each.pid for each in loader._iterator._workers] == pids
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    loader._iterator._shutdown_workers()


def test_a_ready_loader_without_workers(records):
    """Data modules have such loaders by default. The battery gives them two workers."""
    (result,) = check_dataset(
        DataLoader(Records(records), batch_size=4), only="read-error-first", on_fail=None
    )
    assert result.verdict == "failed_cleanly"
    assert len(result.outcome.workers) == 2


def test_a_dataset_that_wraps_a_loader(records):
    """As webdataset's WebLoader does: the loader in it can be tried."""
    wrapped = webdataset.WebLoader(Records(records), batch_size=4, num_workers=2)
    with pytest.raises(UnusableDatasetError, match=r"lambda: make\(\)\.pipeline\[0\]"):
        check_dataset(lambda: wrapped, **CHECK)
    (result,) = check_dataset(lambda: wrapped.pipeline[0], **CHECK)
    assert result.passed
