"""A dataset that cannot be tested: one item of its test says so, in one sentence, and once."""

import re
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError
from pytest_dataloader_faults.plugin._failures import report_shortage_once
from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")

CANNOT_BE_TRIED = """
import os
import pathlib
import time

import pytest
import torch
from support.datasets import Records
from support.plugin_datasets import Numbers
from torch.utils.data import IterableDataset

few = pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "worker-killed-first"])


def tried(make):
    with pathlib.Path("tries").open("a") as file:
        print(os.environ["PYTEST_CURRENT_TEST"], file=file)
    return make()


class Stuck(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.1)
        yield


class Incomparable(Numbers):
    def __getitem__(self, index):
        return (each for each in ())


class Unread(Numbers):
    def __getitem__(self, index):
        raise LookupError("no such sample")


class HangsInWorkers(Numbers):
    def __getitem__(self, index):
        while torch.utils.data.get_worker_info():
            time.sleep(0.1)
        return torch.tensor(index)


class FailsInWorkers(Numbers):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info():
            raise LookupError("not in a worker")
        return torch.tensor(index)


def fails():
    raise LookupError("no such folder")


MAKERS = {
    "raises": (fails, {}),
    "empty": (lambda: torch.utils.data.TensorDataset(torch.zeros(0)), {}),
    "no-sample": (Unread, {}),
    "stuck": (Stuck, {}),
    "incomparable": (Incomparable, {"loader": {"batch_size": None}}),
    "hangs": (HangsInWorkers, {}),
    "fails-alone": (FailsInWorkers, {}),
    "option": (Numbers, {"loader": {"batch_size": 0}}),
    "glob": (Numbers, {"files": "*.typo"}),
}


@few
@pytest.mark.parametrize("how", MAKERS)
def test_x(fault_check, how):
    make, options = MAKERS[how]
    fault_check(lambda: tried(make), **options)
"""

SENTENCES = {
    "raises": "make_dataset() raised LookupError: no such folder at ",
    "empty": "TensorDataset is empty",
    "no-sample": "Unread[0] failed without a fault: LookupError('no such sample')",
    "stuck": "no reference after 2 s, without faults or workers.",
    "incomparable": "a generator, which has no fingerprint",
    "hangs": "hung: the epoch neither finished nor raised an exception within 2 s",
    "fails-alone": "fails_without_fault: the loader raised LookupError: not in a worker",
    "option": "DataLoader rejects loader={'batch_size': 0}",
    "glob": "files=('*.typo',) matches nothing that the workers read",
}
QUICK = "--dataloader-faults-deadline=2"


ALONE = ("raises", "fails-alone", "hangs")


@pytest.fixture(scope="module", params=["long", slow("native")])
def everything(request, run_suite):
    """A run of all of them, with either style of traceback; and who tried, line by line."""
    folder, result = run_suite(CANNOT_BE_TRIED, "-rs", QUICK, f"--tb={request.param}")
    return result, (folder / "tries").read_text(encoding="utf-8").splitlines()


def _section(text, item):
    """What is told about one failed *item*."""
    return text.partition(f"_ test_x[{item}] _")[2].partition("\n____")[0].partition("= short")[0]


def test_nothing_of_ours_is_shown(everything):
    result, _ = everything
    count = len(SENTENCES)
    result.assert_outcomes(failed=count, skipped=2 * count)
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize("cause", SENTENCES)
def test_one_item_fails_with_a_sentence(everything, cause):
    result, tries = everything
    text = result.stdout.str()
    section = _section(text, f"workers-agree-{cause}")
    assert SENTENCES[cause] in section
    assert "pytest_dataloader_faults/" not in section
    nodeid = f"test_inner.py::test_x[workers-agree-{cause}]"
    assert f"cannot be tested: see {nodeid}" in text
    assert {each for line in tries if (each := line.split()[0]).endswith(f"-{cause}]")} == {nodeid}


@pytest.fixture(scope="module")
def alone(run_suite):
    """A run of one item each."""
    chosen = f"open-error and ({' or '.join(ALONE)})"
    return run_suite(CANNOT_BE_TRIED, "-k", chosen, QUICK)[1]


@pytest.mark.parametrize("cause", ALONE)
def test_an_item_that_is_selected_alone_says_it_in_full(alone, cause):
    alone.assert_outcomes(failed=len(ALONE), deselected=3 * len(SENTENCES) - len(ALONE))
    assert SENTENCES[cause] in _section(alone.stdout.str(), f"open-error-{cause}")


MENDED = """
import pathlib

import pytest
from support.datasets import Records


def make(records):
    if not pathlib.Path("mended").exists():
        raise LookupError("no such folder")
    return Records(records)


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error"])
@pytest.mark.parametrize("number", [1, 2])
def test_x(fault_check, records, number):
    fault_check(lambda: make(records))
    assert number
"""


def test_each_test_reports_for_itself(suite):
    result = suite.run(MENDED)
    result.assert_outcomes(failed=2, skipped=2)
    (suite.path / "mended").touch()
    suite.again().assert_outcomes(passed=4)


INJECTED = """
import pytest
from pytest_dataloader_faults import check_dataset, explore, run_trial, sweep
from pytest_dataloader_faults.exceptions import UnusableDatasetError


def fails():
    raise LookupError("no such folder")


@pytest.mark.parametrize("function", [check_dataset, explore, run_trial, sweep])
def test_function(function):
    function(fails)


def test_caught():
    with pytest.raises(UnusableDatasetError, match="no such folder"):
        run_trial(fails)
"""


@pytest.mark.parametrize("style", ["long", *map(slow, ("short", "native"))])
def test_functions_that_refuse_a_dataset_show_no_frame_of_their_own(suite, style):
    result = suite.run(INJECTED, f"--tb={style}")
    result.assert_outcomes(failed=4, passed=1)
    text = result.stdout.str()
    sections = re.split(r"\n_+ test_\w+.*? _+\n", text)[1:]
    assert len(sections) == 4
    for section in sections:
        assert "make_dataset() raised LookupError: no such folder at " in section
        called = section.partition("test_inner.py")[2] if style == "native" else section
        assert "pytest_dataloader_faults/" not in called


def test_a_shortage_is_known_by_what_is_lacking():
    config = SimpleNamespace(stash=pytest.Stash())
    errors = []
    for nodeid, text in (("a.py::one", "Room: 7 KiB left"), ("a.py::two", "6 KiB left: no room")):
        node = SimpleNamespace(config=config, nodeid=nodeid)
        with pytest.raises(pytest.fail.Exception) as failed, report_shortage_once(node):
            raise UnusableEnvironmentError(text, "no room for files")
        errors.append(str(failed.value))
    assert errors == ["Room: 7 KiB left", "no room for files: see a.py::one. No dataset was judged"]
