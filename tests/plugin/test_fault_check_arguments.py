"""What ``fault_check`` can be called with: a ready DataLoader, loader=, files=, contract=."""

import pytest

pytestmark = pytest.mark.usefixtures("engine")

ACCEPTED = """
import pytest
from support.datasets import Records, RecordStream
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract

pytestmark = pytest.mark.dataloader_faults(only="read-error")


def workers(result):
    return {each.worker for each in result.outcome.workers}


def test_ready_loader(fault_check, records):
    result = fault_check(lambda: DataLoader(Records(records), num_workers=1, batch_size=2))
    assert workers(result) == {0}
    assert result.outcome.epochs[0].drawn[0] == (0, 1)


def test_loader_options(fault_check, records):
    result = fault_check(lambda: Records(records), loader={"num_workers": 3, "batch_size": 5})
    assert workers(result) == {0, 1, 2}
    assert result.outcome.epochs[0].drawn[0] == (0, 1, 2, 3, 4)


def test_iterable(fault_check, records):
    assert fault_check(lambda: RecordStream(records)).outcome.kind == "iterable"


def test_files(fault_check, records):
    result = fault_check(lambda: Records(records), files="*/05.rec")
    assert {each.path for each in result.outcome.faults[0].firings} == {str(records / "05.rec")}


@pytest.mark.dataloader_faults(only="open-error")
def test_names_file(fault_check, records):
    assert fault_check(lambda: Records(records), contract=Contract(names_file=True)).passed
"""

REFUSED = """
import pytest
from support.datasets import Records
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract

pytestmark = pytest.mark.dataloader_faults(only="read-error")


def test_names_file(fault_check, records):
    fault_check(lambda: Records(records), contract=Contract(names_file=True))


def test_files(fault_check, records):
    fault_check(lambda: Records(records), files="*.jpg")


def test_one_of_the_files(fault_check, records):
    fault_check(lambda: Records(records), files=["*/05.rec", "*.jpg"])


def test_raises(fault_check):
    fault_check(lambda: 1 / 0)


def test_iterator(fault_check, records):
    fault_check(iter(DataLoader(Records(records), num_workers=1)))


@pytest.fixture
def stream():
    return (number for number in range(3))


def test_fixture(fault_check, stream):
    fault_check(stream)


def test_classes(fault_check):
    fault_check([Records, Records])


def test_class_in_a_dict(fault_check, records):
    fault_check({"train": Records(records), "val": Records})


def test_functions(fault_check, records):
    fault_check([lambda: Records(records)])


def test_functions_in_a_dict(fault_check, records):
    fault_check(lambda: {"train": lambda: Records(records)})
"""

MESSAGES = {
    "test_names_file": "failed_unclearly: OSError does not name the file, as the contract*",
    "test_files": "*files=('*.jpg',) matches nothing that the workers read. They read: *00.rec*",
    "test_one_of_the_files": "*'*.jpg' in files=('*/05.rec', '*.jpg') matches nothing*",
    "test_iterator": (
        "make_dataset=<*DataLoaderIter *> is not a dataset: *An iterator is exhausted after one"
        " epoch: pass the loader or the dataset itself, without iter(). *It was passed at"
        " test_inner.py:*"
    ),
    "test_classes": (
        "make_dataset returned a list that contains classes: Records, Records. Create instances,"
        " as in Records(...). It was passed at test_inner.py:*"
    ),
    "test_class_in_a_dict": (
        "make_dataset returned a dict that contains a class *: Records. Create *, as in Records(*"
    ),
    "test_functions": (
        "make_dataset returned a list of functions instead of their results. Call them in it,"
        " as in lambda: [MyDataset(...)]. It was passed at test_inner.py:*"
    ),
    "test_functions_in_a_dict": "make_dataset returned a dict of functions instead of *",
    "test_fixture": (
        "make_dataset=<generator *> is not a dataset: *A function with yield *It was passed at"
        " test_inner.py:*, the value of fixture 'stream'"
    ),
    "test_raises": "*make_dataset() raised ZeroDivisionError: division by zero*",
}


def test_arguments_reach_the_trial(suite):
    suite.run(ACCEPTED).assert_outcomes(passed=5)


def test_a_stricter_contract_and_unusable_arguments_fail(suite):
    result = suite.run(REFUSED)
    result.assert_outcomes(failed=len(MESSAGES))
    sections = result.stdout.str().partition("= FAILURES =")[2]
    for name, message in MESSAGES.items():
        section = sections.partition(f" {name}[read-error] _")[2].partition("\n____")[0]
        pytest.LineMatcher(section.splitlines()).fnmatch_lines([message.replace("[", "[[]")])


UNPARAMETRIZED = """
import unittest

import pytest


class TestCase(unittest.TestCase):
    @pytest.mark.usefixtures("fault_check")
    def test_method(self):
        pass


def test_late(request):
    request.getfixturevalue("fault_check")
"""


def test_a_test_that_cannot_be_parametrized_fails_with_advice(suite):
    result = suite.run(UNPARAMETRIZED)
    output = result.stdout.str()
    assert output.count("fault_check must be a parameter of the test function") >= 2
    assert "call check_dataset() in the method" in output
    assert "AttributeError" not in output
    assert result.ret == 1


SEVERAL = """
import pytest
from support.handed_over import DataModule

from pytest_dataloader_faults import part_of

few = pytest.mark.dataloader_faults(only=["open-error", "pickles"])


@few
def test_all(fault_check, records):
    fault_check(lambda: DataModule(records))


@few
@pytest.mark.parametrize("part", ["train", "val/0"])
def test_one(fault_check, records, part):
    fault_check(part_of(lambda: DataModule(records), part))
"""


def test_a_data_module(suite):
    result = suite.run(SEVERAL)
    result.assert_outcomes(passed=3, failed=2, skipped=1)
    lines = (
        "make_dataset must return one loader or dataset, but it returned several. *:",
        "    @pytest.mark.parametrize('part', ['train', 'val/0'])",
        "    fault_check(part_of(make_dataset, part))",
        "corrupted: samples 0 to 15 *",
    )
    result.stdout.fnmatch_lines([each.replace("[", "[[]") for each in lines])
