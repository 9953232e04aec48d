"""Which faults of connections reach which readers, and what they make of them: a table."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    HungRead,
)
from pytest_dataloader_faults.outcomes.error_text import explains_fault
from pytest_dataloader_faults.outcomes.fault_facts import occurrences
from support.epochs import alone, epoch
from support.server_readers import CONTENT, READERS, places
from support.tries import Tries

PAGE = Path(__file__).parents[3] / "docs/evidence/readers.md"
FAULTS = {
    "connection refused": ConnectError(),
    "reset before the answer": ConnectionReset(),
    "reset within it": ConnectionReset(after=4000),
    "closed within it": ConnectionClosed(after=4000),
    "no answer": HungRead("tcp://*"),
}
QUICK = ("`requests.get`", "`fsspec.open` of http", "`webdataset.WebDataset` of `pipe:curl`")


@pytest.fixture(name="where", scope="module")
def _where(tmp_path_factory):
    with places(tmp_path_factory.mktemp("served")) as found:
        yield found


def _table():
    """The rows of the page: what each reader does, by fault."""
    section = PAGE.read_text("utf-8").partition("## Readers of servers\n")[2].partition("\n## ")[0]
    lines = [
        line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    ]
    heading, rows = lines[0][1:], lines[2:]
    return {row[0]: dict(zip(heading, row[1:], strict=True)) for row in rows}


def test_the_page_has_a_row_for_each_reader():
    """And a column for each fault."""
    table = _table()
    assert [*READERS] == [*table]
    assert all([*FAULTS] == [*row] for row in table.values())


@pytest.mark.filterwarnings("ignore")  # Those of other people's libraries.
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "reader", [pytest.param(key, marks=[] if key in QUICK else pytest.mark.slow) for key in READERS]
)
def test_reader_does_what_the_page_says(where, reader, fault):
    """It meets the fault, whatever it makes of it."""
    assert _table()[reader][fault] == _outcome(where, READERS[reader], FAULTS[fault])


def _with_traceback(read):
    """*read*, whose error is told as torch tells it, with those that it was raised from."""

    def told(where):
        try:
            return read(where)
        except Exception:  # noqa: BLE001  # whatever it is, it is the finding
            return traceback.format_exc()

    return told


def _outcome(where, read, fault):
    timeout = 3 if isinstance(fault, HungRead) else 60
    with inject(fault, require_fired=False) as injection:
        found = epoch(alone(Tries([where], _with_traceback(read)), timeout=timeout))
    assert injection.fired, found
    if not found.batches:
        return "waits, without a limit" if injection.workers[0].unlimited_waits else "waits"
    gave = found.batches[0].gave
    if isinstance(gave, str):
        is_clear = explains_fault(gave, occurrences(injection.faults))
        return "error" if is_clear else "*unclear error*"
    assert CONTENT.startswith(gave)
    return "right data" if gave == CONTENT else f"**{'short' if gave else 'no'} data**"
