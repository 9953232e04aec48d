"""What may be handed over: data modules, several loaders or datasets, ready ones, one of many."""

import os
import re
import textwrap
from pathlib import Path

import pytest
import torch
import webdataset
from torch.utils.data import DataLoader, TensorDataset

from pytest_dataloader_faults import check_dataset, explore, part_of, run_trial, sweep
from pytest_dataloader_faults._trial.factory import _parts
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.search import replay
from support.datasets import Records
from support.handed_over import Broken, DataModule
from support.plugin_datasets import ZerosOnError
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")
CHECK = {"only": "open-error", "on_fail": None}


def _loader(dataset, **options):
    return DataLoader(dataset, batch_size=4, num_workers=1, **options)


def _refusal(function, *args, **options):
    with pytest.raises(InvalidArgumentError) as refused:
        function(*args, **options)
    return str(refused.value)


def test_a_data_module_is_tested_by_the_lines_of_its_error(records):
    def make():
        return DataModule(records)

    text = _refusal(check_dataset, make)
    lines = re.search(r"outside pytest:\n(.*?)\n(?! )", text, re.DOTALL)[1]
    results = {}

    def check(make_dataset):
        results[str(make_dataset)] = check_dataset(make_dataset, **CHECK)

    names = {"part_of": part_of, "make_dataset": make, "check_dataset": check}
    exec(textwrap.dedent(lines), names)  # noqa: S102  # our own text
    verdicts = {name: result.verdict for name, (result,) in results.items()}
    assert verdicts == {
        "part_of(make_dataset, 'train')": "failed_cleanly",
        "part_of(make_dataset, 'val/0')": "corrupted",
    }
    (result,) = results["part_of(make_dataset, 'val/0')"]
    assert "check_dataset(part_of(make_dataset, 'val/0'), only=" in result.explanation


def test_a_data_module_that_cannot_be_set_up(records):
    with pytest.raises(
        UnusableDatasetError, match=r"make_dataset\(\) raised Attrib.* at .*\.py:\d+"
    ):
        check_dataset(lambda: Broken(records), **CHECK)


@rows("kind, names", [(dict, ["a", "b"]), (list, ["0", "1"]), (tuple, ["0", "1"])])
def test_several_loaders_or_datasets(records, kind, names):
    parts = {"a": _loader(Records(records)), "b": Records(records)}
    several = parts if kind is dict else kind(parts.values())
    for make_dataset in (several, lambda: several):
        text = _refusal(check_dataset, make_dataset, **CHECK)
        assert f"@pytest.mark.parametrize('part', {names})" in text


def test_a_container_of_one_loader_is_that_loader(records):
    one = {"val": [_loader(ZerosOnError(records))]}
    (result,) = check_dataset(lambda: one, **CHECK)
    assert result.verdict == "corrupted"


class Found(Records):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.rec"))

    def __getitem__(self, index):
        return index


def _make_found(folder):
    return Found(folder)


PASSED = "make_dataset was passed a new, empty folder. To use your own data, pass a"
EMPTY = [
    (_make_found, PASSED),
    (lambda: Found("data/trian"), f"fault into. Relative paths start at '{os.getcwd()}'"),
]


@rows("make, text", EMPTY)
def test_an_empty_dataset_is_explained(make, text):
    with pytest.raises(UnusableDatasetError, match="is empty, so there is no sample to") as caught:
        check_dataset(make, only="pickles")
    assert text in str(caught.value)


def test_names_of_what_is_nested():
    dataset = TensorDataset(torch.zeros(8))

    class CombinedLoader:
        def __init__(self):
            self.iterables = {"x": _loader(dataset), "y": [dataset, dataset]}

    assert list(_parts({"a": {"b": dataset}, "c": (dataset,)})) == ["a/b", "c/0"]
    assert list(_parts(CombinedLoader())) == ["x", "y/0", "y/1"]


def test_a_container_with_something_else_in_it():
    parts = {"train": _loader(TensorDataset(torch.zeros(8))), "classes": ["cat"]}
    with pytest.raises(UnusableDatasetError, match=r"but 'classes' in it is \['cat'\]"):
        check_dataset(lambda: parts, **CHECK)


@pytest.mark.parametrize(
    "function", [run_trial, sweep, replay, explore], ids=lambda kind: kind.__name__
)
def test_other_functions_refuse_several_as_well(records, function):
    parts = {"a": Records(records), "b": Records(records)}
    assert _refusal(function, lambda: parts).endswith(", as in part_of(make_dataset, 'a')")


def test_one_of_several(records):
    outcome = run_trial(part_of(lambda: DataModule(records), "val/0"), ReadError("*/03.rec"))
    assert outcome.fired == 1
    assert part_of({"a": Records(records)}, "a")()[3][1] == 3
    with pytest.raises(InvalidArgumentError, match=r"no part 'vla': it returned 'train', 'val/0'"):
        run_trial(part_of(lambda: DataModule(records), "vla"))


def test_a_ready_dataset_or_loader(records):
    dataset = ZerosOnError(records)
    dataset.reads = []
    loader = _loader(dataset)
    for target in (dataset, loader):
        (result,) = check_dataset(target, **CHECK)
        assert result.verdict == "corrupted"
    assert (dataset.reads, loader.num_workers, loader._iterator) == ([], 1, None)


@pytest.mark.slow
def test_a_ready_loader_whose_workers_run(records):
    loader = _loader(Records(records), persistent_workers=True)
    list(loader)
    pids = [each.pid for each in loader._iterator._workers]
    (result,) = check_dataset(loader, only="persistent-workers")
    assert result.passed
    assert len(list(loader)) == 4
    assert [each.pid for each in loader._iterator._workers] == pids
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    loader._iterator._shutdown_workers()


def test_a_dataset_that_wraps_a_loader(records):
    wrapped = webdataset.WebLoader(Records(records), batch_size=4, num_workers=2)
    with pytest.raises(UnusableDatasetError, match=r"lambda: make\(\)\.pipeline\[0\]"):
        check_dataset(lambda: wrapped, **CHECK)
    (result,) = check_dataset(lambda: wrapped.pipeline[0], **CHECK)
    assert result.passed
