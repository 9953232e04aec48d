"""What each library makes of each fault is what the page about readers says."""

import json
import sys
from pathlib import Path

import pytest

from support import reader_matrix
from support.readers import documented, usable

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "docs/evidence/readers.json").read_text(encoding="utf-8"))
OUTCOMES = {
    key: {name: cell["outcome"] for name, cell in row.items()}
    for key, row in RECORD["readers"].items()
}
IN_ONE_READ = {("pillow_png", reader_matrix.LATER)} if sys.version_info >= (3, 14) else set()
"""The cells of files that are smaller than a buffer: there is no later read."""
CUT = [name for name in reader_matrix.FAULTS if name.startswith("TruncatedFile")]


@pytest.fixture(name="cells", scope="module")
def _cells(tmp_path_factory):
    return reader_matrix.matrix(tmp_path_factory.mktemp("matrix"))


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


@pytest.mark.parametrize("name", [CUT[0], pytest.param(CUT[1], marks=pytest.mark.slow)])
def test_a_file_that_is_really_shorter_has_the_same_effect(tmp_path, name):
    cells = reader_matrix.cells_of_short_files(tmp_path, name)

    assert {key: cell.outcome for key, cell in cells.items()} == {
        key: OUTCOMES[key][name] for key in cells
    }
