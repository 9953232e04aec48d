"""A search that fails prints a test that can be copied from pytest's output, and is complete."""

import re

import pytest

from support.datasets import write_records
from support.suites import failures_of

pytestmark = pytest.mark.usefixtures("engine")

MINE = """
from pathlib import Path

from support.planted import Zeros

def make():
    return Zeros(Path(__file__).parent / "kept")

class Mine:
    @staticmethod
    def make():
        return make()

def shown(sample):
    return repr(sample)
"""
SUITE = """
import pytest
from hypothesis import given, settings, strategies as st
from mine import Mine, make, shown

from pytest_dataloader_faults import Contract, explore, faults
from pytest_dataloader_faults.search import replay

HOW = {"kinds": [faults.OpenError], "max_examples": 5, "database": None, "seed": 0}
ONE = {"max_faults": 1, "max_epochs": 1, "loader": {"num_workers": 1, "batch_size": 4}}

def test_contract():
    explore(Mine.make, contract=Contract(key=shown, detects_corruption=True), **HOW, **ONE)

def test_lambda():
    explore(lambda: make(), **HOW, **ONE)

@settings(max_examples=3, database=None, derandomize=True, deadline=None)
@given(st.just("a falsifying example"))
def test_given(word):
    replay(make, faults.OpenError("*/00.rec", times=1))
"""
CODE = re.compile(r"^  reproduce: \n(.*?\n    replay\(.*?\)\n)", re.DOTALL | re.MULTILINE)
VERDICT = re.compile(r"^(?:not deterministic.*\n)?(\w+): .*\n", re.MULTILINE)


@pytest.fixture
def run_texts(suite):
    """A suite that has run: what pytest printed of each test, by its name."""
    write_records(suite.path / "kept")
    suite.pytester.makepyfile(mine=MINE)

    def run(*arguments):
        return failures_of(suite.run(SUITE, "-p", "_hypothesis_pytestplugin", *arguments))

    return run


def test_what_is_printed_fails_alike_in_a_file_of_its_own(suite, run_texts):
    text = run_texts("-k", "contract")["contract"]
    result = suite.run(CODE.findall(text)[0])  # In a CI job, the summary has it once more.
    result.assert_outcomes(failed=1)
    again = failures_of(result)["again"]
    assert [VERDICT.match(each)[1] for each in (text, again)] == ["corrupted", "corrupted"]


def test_the_line_of_the_test_and_the_example_of_hypothesis_are_shown(run_texts):
    (text,) = run_texts("-k", "given").values()
    assert "\nE  " not in text
    assert re.search(r"-- raised at test_inner\.py:\d+ --", text)
    assert text.index("reproduce: ") < text.index("word='a falsifying example'")
    (traceback,) = run_texts("-k", "given", "--showlocals").values()
    assert "\nE  " in traceback
    assert "replay(make, faults.OpenError(" in traceback
