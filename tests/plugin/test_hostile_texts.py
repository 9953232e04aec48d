"""Whatever a dataset's files, classes and errors are called, the report is of printable lines."""

import os
import signal

import pytest

from pytest_dataloader_faults import check_dataset, explore
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from support.hostile import TEXT, Zeros, hostile_lines, write_hostile
from support.rows import rows
from support.surveys import survey

SUITE = """
import pytest
from torch.utils.data import DataLoader
from pytest_dataloader_faults.faults import ReadError
from support.hostile import DATASETS, TEXT, Zeros, write_hostile

pytestmark = pytest.mark.dataloader_faults(only="read-error")

@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_hostile(tmp_path_factory.mktemp("data"))

@pytest.mark.parametrize("number", range(len(DATASETS)))
def test_check(fault_check, folder, number):
    fault_check(lambda: DATASETS[number](folder))

def test_parts(fault_check, folder):
    fault_check(lambda: {TEXT: Zeros(folder), f"other{TEXT}": Zeros(folder)})

def test_own_loop(fault_injector, folder):
    fault_injector.inject(ReadError(f"*/none{TEXT}"))
    list(DataLoader(Zeros(folder), num_workers=1))
"""


def test_a_report_is_of_printable_lines(suite):
    """Failures, their short form, set-up errors, parts, faults that never fired; JUnit, too."""
    result = suite.run(SUITE, "--junitxml=j.xml", "-rA", "-v")
    result.assert_outcomes(failed=4, passed=1)
    assert hostile_lines(result.stdout.str()) == []
    assert hostile_lines((suite.path / "j.xml").read_text(encoding="utf-8")) == []


class Dies(Zeros):
    """Prints, and gets a signal, of which torch prints a text that ends in NUL."""

    def _substitute(self, path):
        os.write(2, f"\0{TEXT}\n".encode())
        os.kill(os.getpid(), signal.SIGBUS)


def test_what_workers_printed_is_of_printable_lines(tmp_path):
    folder = write_hostile(tmp_path)
    (result,) = check_dataset(lambda: Dies(folder), only="read-error", on_fail=None)
    exploration = explore(lambda: Dies(folder), max_examples=5, database=None, on_fail=None, seed=0)
    judgement = survey(lambda: Dies(folder)).judge(exploration.outcome)

    for text in (
        result.explanation,
        exploration.failure,
        exploration.describe(),
        judgement.sentence,
    ):
        assert hostile_lines(text) == []
        assert "x00" not in text
    for text in (result.explanation, exploration.failure):
        assert "ERROR: Unexpected bus error" in text
    assert "\0" not in result.outcome.stderr


@rows(
    "arguments",
    [
        {"loader": {TEXT: 1}},
        {"files": f"*/none{TEXT}"},
        {"only": [f"check{TEXT}"]},
        {"expected_failures": {f"check{TEXT}": "a reason"}},
    ],
)
def test_an_argument_is_shown_in_printable_lines(tmp_path, arguments):
    folder = write_hostile(tmp_path / str(len(os.listdir(tmp_path))))
    with pytest.raises(InvalidArgumentError) as refused:
        check_dataset(lambda: Zeros(folder), **{"only": ["open-error"], **arguments})
    assert hostile_lines(str(refused.value)) == []
