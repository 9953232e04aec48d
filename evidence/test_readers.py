"""What readers of formats and of servers make of faults: a page has a table of it."""

import json
import re
import sys
import traceback

import pytest

from pages import matrix
from pages.servers import SERVED, serve
from paths import ROOT
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    HungRead,
)
from pytest_dataloader_faults.outcomes.error_text import explains_fault
from pytest_dataloader_faults.outcomes.fault_facts import occurrences
from support.epochs import alone
from support.readers import CONTENT, documented, usable
from support.rows import slow
from support.tries import Tries
from support.waiting import until

RECORD = json.loads((ROOT / "docs/evidence/readers.json").read_text(encoding="utf-8"))
OUTCOMES = {
    key: {name: cell["outcome"] for name, cell in row.items()}
    for key, row in RECORD["readers"].items()
}
IN_ONE_READ = {("pillow_png", matrix.LATER)} if sys.version_info >= (3, 14) else set()
"""The cells of files that are smaller than a buffer: there is no later read."""
CUT = "TruncatedFile(keep=0.5)"


@pytest.fixture(name="cells", scope="module")
def _cells(tmp_path_factory):
    return matrix.all_cells(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("key", usable())
def test_the_page_says_what_each_reader_does(cells, key):
    """Under each fault; `python evidence readers` writes it anew."""
    on_the_page = {
        name: outcome for name, outcome in OUTCOMES[key].items() if (key, name) not in IN_ONE_READ
    }
    outcomes = {name: cells[each, name].outcome for each, name in cells if each == key}
    assert outcomes == on_the_page


def test_every_fault_happens_to_every_reader(cells):
    assert {place for place, cell in cells.items() if not cell.fired} == set()
    assert {key for key, _ in cells} == set(usable())
    assert set(documented()) == set(OUTCOMES)


def test_a_file_that_is_really_shorter_has_the_same_effect(tmp_path):
    cells = matrix.cells_of_short_files(tmp_path, CUT)

    assert {key: cell.outcome for key, cell in cells.items()} == {
        key: OUTCOMES[key][CUT] for key in cells
    }


PAGE = ROOT / "docs/explanation/why.md"
FAULTS = {
    "connection refused": ConnectError(),
    "reset before the response": ConnectionReset(),
    "reset within it": ConnectionReset(after=4000),
    "closed within it": ConnectionClosed(after=4000),
    "no response": HungRead("tcp://*"),
}
QUICK = ("requests_get", "fsspec_http", "webdataset_pipe")
SLOW = tuple(key for key in SERVED if key not in QUICK)
CELLS = [
    *((QUICK, fault) for fault in ("connection refused", "reset within it", "no response")),
    *(slow(QUICK, fault) for fault in ("reset before the response", "closed within it")),
    *(slow(SLOW, fault) for fault in FAULTS),
]


@pytest.fixture(name="urls", scope="module")
def _urls(tmp_path_factory):
    """The URL of each reader's object."""
    with serve(tmp_path_factory.mktemp("served")) as folders:
        yield {key: f"{folders[reader.server]}/{reader.file}" for key, reader in SERVED.items()}


def _table():
    """The rows of the page: what each reader does, by fault."""
    section = PAGE.read_text("utf-8").partition("### Readers of servers\n")[2].partition("\n## ")[0]
    lines = [
        line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    ]
    heading, rows = lines[0][1:], lines[2:]
    return {row[0]: dict(zip(heading, row[1:], strict=True)) for row in rows}


def test_the_page_has_a_row_for_each_reader():
    table = _table()
    assert [reader.shown for reader in SERVED.values()] == [*table]
    assert all([*FAULTS] == [*row] for row in table.values())


@pytest.mark.filterwarnings("ignore")  # Those of other people's libraries.
@pytest.mark.parametrize(("readers", "fault"), CELLS)
def test_readers_do_what_the_page_says(urls, readers, fault):
    table = _table()
    with inject(FAULTS[fault], require_fired=False) as injection:
        outcomes = {key: _outcome(injection, urls[key], SERVED[key].read) for key in readers}
    assert {key: table[SERVED[key].shown][fault] for key in readers} == outcomes


def _with_traceback(read):
    """*read*, whose error is told as torch tells it, with those that it was raised from."""

    def read_or_format_error(url):
        try:
            return read(url)
        except Exception:  # noqa: BLE001  # whatever it is, it is the finding
            return traceback.format_exc()

    return read_or_format_error


def _outcome(injection, url, read):
    """What comes of it, in the words of the page."""
    (earlier,), earlier_waits = injection.faults, _count_unlimited_waits(injection)
    gave = _deliver(injection, alone(Tries([url], _with_traceback(read)), timeout=60))
    (facts,) = injection.faults
    assert facts.fired > earlier.fired, gave
    if gave is None:
        is_unlimited = _count_unlimited_waits(injection) > earlier_waits
        return "waits, without a limit" if is_unlimited else "waits"
    if isinstance(gave, str):
        return "error" if explains_fault(gave, occurrences([facts])) else "*unclear error*"
    assert CONTENT.startswith(gave)
    return "right data" if gave == CONTENT else f"**{'short' if gave else 'no'} data**"


def _deliver(injection, loader):
    """What the sample is; None if the loader waits for it in vain, once its answer hangs."""
    (earlier,), iterator = injection.faults, iter(loader)
    if isinstance(earlier.fault, HungRead):
        assert until(lambda: injection.fired > earlier.fired)
        iterator._timeout = 1.0
    try:
        return next(iterator).gave
    except RuntimeError as error:
        assert "timed out" in str(error)  # noqa: PT017  # a sample is expected as well
        return None
    finally:
        iterator._shutdown_workers()


def _count_unlimited_waits(injection):
    return sum(len(each.counts_of("unlimited_waits")) for each in injection.workers)
