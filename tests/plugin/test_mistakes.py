"""What cannot be tested, and mistakes in tests: one sentence, once, at the line of the user."""

import re

import pytest

from support.suites import REPORT, failures_of, items_of, results_of, summary_of

pytestmark = pytest.mark.usefixtures("engine")

DATASETS = """
import os
import pathlib
import signal
import time

import pytest
import torch
from support.plugin_datasets import Numbers
from torch.utils.data import get_worker_info

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error"], deadline=1)

class HangsInWorkers(Numbers):
    def __getitem__(self, index):
        while get_worker_info():
            time.sleep(0.1)
        return torch.tensor(index)

class FailsInWorkers(Numbers):
    def __getitem__(self, index):
        if get_worker_info():
            raise LookupError("not in a worker")
        return torch.tensor(index)

class Stops(Numbers):
    def __getitem__(self, index):
        if get_worker_info():
            os.kill(os.getppid(), signal.SIGSTOP)
        return torch.tensor(index)

def fails():
    raise LookupError("no such folder")

MAKERS = {
    "raises": (fails, {}),
    "hangs": (HangsInWorkers, {}),
    "fails-alone": (FailsInWorkers, {}),
    "option": (Numbers, {"loader": {"batch_size": 0}}),
    "glob": (Numbers, {"files": "*.typo"}),
}

@pytest.mark.parametrize("how", MAKERS)
def test_x(fault_check, how):
    make, options = MAKERS[how]

    def tried():
        with pathlib.Path("tries").open("a") as file:
            print(os.environ["PYTEST_CURRENT_TEST"], file=file)
        return make()

    fault_check(tried, **options)

def test_stops(fault_check):
    fault_check(Stops)
"""
SENTENCES = {
    "raises": "make_dataset() raised LookupError: no such folder at ",
    "hangs": "hung: the epoch neither finished nor raised an exception within 1 s",
    "fails-alone": "fails_without_fault: the loader raised LookupError: not in a worker",
    "option": "DataLoader rejects loader={'batch_size': 0}",
    "glob": "files=('*.typo',) matches nothing that the constructor or the workers read",
}
STOPPED = "the main process (pid N), which iterates the loader, was stopped (SIGSTOP, or a deb"


@pytest.fixture(scope="module")
def ran(run_suite):
    return run_suite(DATASETS, "-rs", "--tb=long", REPORT)


def test_one_item_of_a_test_says_why_its_dataset_cannot_be_tested(ran):
    """No other one tries it."""
    folder, result = ran
    failures, text = failures_of(result), result.stdout.str()
    tries = {line.split()[0] for line in (folder / "tries").read_text("utf-8").splitlines()}
    for cause, sentence in SENTENCES.items():
        section = failures[f"x[workers-agree-{cause}]"]
        assert sentence in section
        assert "pytest_dataloader_faults/" not in section
        nodeid = f"test_inner.py::test_x[workers-agree-{cause}]"
        assert f"cannot be tested: see {nodeid}" in text
        assert {each for each in tries if each.endswith(f"-{cause}]")} == {nodeid}
    results = results_of(folder)
    assert {results[f"x[{cause}]"]["open-error"] for cause in SENTENCES} == {"not_run"}
    assert "Traceback" not in text.partition("test_run")[0]


def test_a_main_process_that_was_stopped_is_one_sentence_and_one_cause(ran):
    folder, result = ran
    failures = {
        name: re.sub(r"pid \d+", "pid N", each) for name, each in failures_of(result).items()
    }
    assert failures["stops[workers-agree]"].startswith(STOPPED)
    assert not [each for each in failures.values() if "pytest_dataloader_faults/_" in each]
    sentences = {each["sentence"] for each in items_of(folder) if each["name"] == "stops"}
    assert all(re.search(r"\(pid \d+\)", each) for each in sentences)


MISTAKES = """
import pytest
from support.datasets import Records
from support.plugin_datasets import Numbers, ZerosOnError
from torch.utils.data import DataLoader

from pytest_dataloader_faults import (
    Contract, check_dataset, explore, faults, inject, run_trial, sweep
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error"])

@pytest.fixture
def narrow():
    pass

@pytest.fixture(scope="session")
def wide(narrow):
    pass

def test_deadline(fault_check):
    fault_check(Numbers, deadline=5)

def test_several(fault_check):
    fault_check(Numbers, only="pickles", seed=1)

def test_contract(fault_check):
    fault_check(Numbers, contract=Contract(may_skip="yes"))

def test_scope(fault_check, wide):
    fault_check(Numbers)

@pytest.mark.parametrize("number", [1, 2])
def test_own_error(fault_check, number):
    raise LookupError(number)

@pytest.fixture
def stream():
    return (number for number in range(3))

def test_value(fault_check, stream):
    fault_check(stream)

def test_nested(records):
    with inject(faults.ReadError("*.rec")):
        with inject(faults.ReadError("*.rec")):
            pass

def test_kind():
    with inject(faults.ReadError):
        pass

def test_count(read_errors):
    read_errors("*.rec", count=2)

def test_no_workers(read_errors, records):
    read_errors("*.rec")
    list(DataLoader(Records(records)))

def fails():
    raise LookupError("no such folder")

@pytest.mark.parametrize("function", [check_dataset, explore, run_trial, sweep])
def test_function(function):
    function(fails)

def test_caught():
    with pytest.raises(UnusableDatasetError, match="no such folder"):
        run_trial(fails)

def test_sweep(records):
    sweep(lambda: ZerosOnError(records), faults=[faults.OpenError()], deadline=44, seed=7)
"""
NOT_ACCEPTED = "fault_check() does not accept"
OF_THE_CHECK = {
    "deadline": "other settings: @pytest.mark.dataloader_faults(only=..., exclude=..., expected",
    "several": f"{NOT_ACCEPTED} only='pickles', seed=1. It accepts a dataset, files=,",
    "contract": "Contract: may_skip='yes' must be True or False",
    "scope": "ScopeMismatch: You tried to access the function scoped fixture narrow",
    "value": ". It is the value of fixture 'stream'",
    "own_error": "LookupError: 1",
}
OF_A_CALL = {
    "nested": "faults are already armed in this process",
    "kind": "ReadError is a class, not a fault. Call it: ReadError()",
    "count": "unexpected keyword argument 'count'",
    "no_workers": "Use num_workers=1 or more",
    "function[check_dataset]": "make_dataset() raised LookupError: no such folder at ",
    "function[explore]": "make_dataset() raised LookupError: no such folder at ",
    "function[run_trial]": "make_dataset() raised LookupError: no such folder at ",
    "function[sweep]": "make_dataset() raised LookupError: no such folder at ",
}
SKIPPED = "not run, because the test failed before its check"


@pytest.fixture(name="mistakes", scope="module")
def _mistakes(run_suite):
    return run_suite(MISTAKES, "-rs", REPORT)


def test_one_item_of_a_test_has_the_mistake(mistakes):
    """A mistake is in the first set of parameters, and in the other."""
    folder, result = mistakes
    failures, results = failures_of(result), results_of(folder)
    for test, text in OF_THE_CHECK.items():
        suffix = "-1" if test == "own_error" else ""
        body = failures[f"{test}[workers-agree{suffix}]"]
        assert text in " ".join(line.removeprefix("E  ").strip() for line in body.split("\n"))
    for name in ("deadline", "scope", "own_error[1]", "own_error[2]"):
        assert results[name] == {"workers-agree": "error", "open-error": "not_run"}
    sentences = {each["sentence"] for each in items_of(folder) if each["status"] == "not_run"}
    assert f"{SKIPPED}: see test_inner.py::test_own_error[workers-agree-2]" in sentences
    result.stdout.fnmatch_lines([f"SKIPPED*{SKIPPED}: see test_inner.py::test_scope[[]*"])


def test_the_frames_are_the_users(mistakes):
    failures = failures_of(mistakes[1])
    for name, text in OF_A_CALL.items():
        assert text in failures[name]
    tests = [*OF_A_CALL, "deadline[workers-agree]", "contract[workers-agree]"]
    for body in map(failures.__getitem__, tests):
        assert "pytest_dataloader_faults/" not in body
        assert "test_inner.py" in body
        assert "???" not in body


def test_a_violation_of_a_sweep_shows_the_evidence(mistakes):
    body = failures_of(mistakes[1])["sweep"]
    lines = [
        "*corrupted: samples 0 to 15 are identical (all zeros), *, and no exception*",
        "  reproduce: sweep(make_dataset, faults=[[]OpenError()[]], max_trials=1*",
        "  reproduce: sweep(*, deadline=44, seed=7)",
        "continue the sweep with faults=[[]OpenError(nth=2)[]]",
    ]
    pytest.LineMatcher(body.splitlines()).fnmatch_lines_random(lines)
    assert not re.search("^(E  |>  )", body, re.MULTILINE)
    assert "test_inner.py" in body


FEW_DESCRIPTORS = """
import os
import resource

import pytest

@pytest.fixture(autouse=True)
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error"])
def test_x(fault_check):
    fault_check([1])
"""


def test_what_the_machine_lacks_is_reported_once(suite):
    """The first item says all, the others where that is; all fail, and none blames the dataset."""
    result = suite.run(FEW_DESCRIPTORS)
    result.assert_outcomes(failed=3)
    failures = failures_of(result)
    assert "ulimit -n 4096" in failures["x[workers-agree]"]
    for check in ("open-error", "read-error"):
        place = "see test_inner.py::test_x[workers-agree]"
        assert f"too few file descriptors: {place}" in failures[f"x[{check}]"]
    assert "3 checks could not be run (see the error above)" in summary_of(result)
    assert "Traceback" not in result.stdout.str()
