"""The page about places has each of them, and what came of it."""

from __future__ import annotations

import pytest

from support.places import PLACES
from support.scripts import load_script

environments = load_script("docs/environments.py")
RECORD = environments.record()


def test_the_page_is_that_of_its_record():
    """It is generated, and not edited; `python docs/environments.py --page` writes it again."""
    assert environments.PAGE.read_text(encoding="utf-8") == environments.page(RECORD)


def test_every_row_is_short():
    """A row has one place, and one word in each cell of results; what is longer is a note below."""
    page = environments.PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(RECORD)
    assert max(map(len, rows)) <= 120
    assert all(len(cell) <= 12 for row in rows for cell in row.split(" | ")[1:])


def test_every_place_of_the_tests_is_there_and_no_other():
    """A place is on the page if it was tried, and is tried by the tests."""
    assert RECORD.keys() == PLACES.keys()


@pytest.mark.parametrize("name", PLACES)
def test_nothing_was_wrong_there(name):
    """The engine is the expected one, its reason is told, and its verdicts are the usual ones."""
    place, found = PLACES[name], RECORD[name]
    engine = "no" if place.engine == "none" else place.engine
    assert f"dataloader-faults: {engine} engine" in found["auto"]["header"]
    for asked in environments.ENGINES:
        assert place.says in found[asked]["header"] or asked == place.engine == "python"
        assert found[asked]["left"] == []
        assert environments.result(place, name, asked, RECORD) in {
            ("same", ""),
            ("skipped", ""),
            ("failed", ""),
            ("no verdict", place.refuses),
        }
