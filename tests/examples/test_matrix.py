"""Every cell of the examples' matrix, dataset by dataset and check by check.

Two checks of one dataset are in every run; `demo.py` and `demo.py --all` have the others.
"""

import functools
import inspect
from pathlib import Path

import pytest

import data
import demo
import example_datasets
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.runner import run_check
from pytest_dataloader_faults.report.model import Item

NAMES = list(demo.examples(Path()))
IN_EVERY_RUN = [("FromFile", name) for name in ("workers-agree", "open-error")]
EXPECTED = demo.read_matrix(demo.EXPECTED.read_text())
CELLS = {(name, check): cell for name, row in EXPECTED.items() for check, cell in row.items()}
CLEAN = [each for each, cell in CELLS.items() if cell == "failed_cleanly"]
HIT = [
    (name, check)
    for (name, check), cell in CELLS.items()
    if check.startswith(("open-", "read-error", "truncated-", "closed-")) and cell != "-"
]
GOOD = {"survived", "failed_cleanly", "-"}
CLASSES = list(dict.fromkeys(name.partition("-")[0] for name in NAMES))


def _marked(cells):
    """The same, as parameters, most of them slow."""
    return [
        pytest.param(*cell, marks=[] if cell in IN_EVERY_RUN else pytest.mark.slow)
        for cell in cells
    ]


@pytest.fixture(name="data_dir", scope="module")
def _data_dir(tmp_path_factory):
    """The folder of the files that the examples read."""
    return data.build(tmp_path_factory.mktemp("examples"))


@pytest.fixture(name="ask", scope="module")
def _ask(data_dir):
    """A function that asks one check of one example, once in this module."""
    factories = demo.examples(data_dir)
    battery = functools.cache(lambda name: Battery(factories[name]))
    return functools.cache(lambda name, check: run_check(battery(name), check))


@pytest.mark.parametrize(("name", "check"), _marked(CELLS))
def test_cell(name, check, ask):
    result = ask(name, check)

    assert EXPECTED[name][check] == demo.word(result), result.explanation


@pytest.mark.parametrize(("name", "check"), _marked(HIT))
def test_fault_hits_the_data(name, check, ask, data_dir):
    faults = ask(name, check).outcome.faults
    paths = {Path(firing.path) for fault in faults for firing in fault.firings}

    assert paths
    assert [path for path in paths if not path.is_relative_to(data_dir)] == []


@pytest.mark.parametrize(("name", "check"), _marked(CLEAN))
def test_clean_means_that_it_works_again(name, check, ask):
    recovery = ask(name, check).outcome.recovery

    assert (recovery.complete, recovery.exception) == (True, None)


@pytest.mark.parametrize("of", CLASSES)
def test_docstring_tells_the_verdict(of):
    rows = [row for name, row in EXPECTED.items() if name.partition("-")[0] == of]
    fails = not {cell for row in rows for cell in row.values()} <= GOOD
    doc = inspect.getdoc(getattr(example_datasets, of))

    assert (fails, not fails) == ("\nFlaw: " in doc, "\nHealthy" in doc)


def test_matrix_holds_every_example():
    assert list(EXPECTED) == NAMES


def test_matrix_is_written_as_the_demo_prints_it():
    items = [
        Item(
            nodeid=f"{name}::{check}",
            test=name,
            file="examples/demo.py",
            line=1,
            check=check,
            status="not_applicable" if cell == "-" else "passed",
            verdict="not_exercised" if cell == "-" else cell,
            sentence="",
            explanation="",
        )
        for (name, check), cell in CELLS.items()
    ]
    assert demo.table(items) == demo.EXPECTED.read_text()
    assert max(map(len, demo.table(items).splitlines())) <= 100
