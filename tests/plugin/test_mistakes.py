"""A mistake in a test is reported once: one item has it in full, the others say where."""

import json
import re
from collections import Counter

import pytest

pytestmark = pytest.mark.usefixtures("engine")

MISTAKES = """
import pytest
from support.plugin_datasets import Numbers

from pytest_dataloader_faults import Contract

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "pickles"])


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


def test_unknown(fault_check):
    fault_check(Numbers, workers=2)


def test_misspelt(fault_check):
    fault_check(Numbers, deadlin=5)


def test_contract(fault_check):
    fault_check(Numbers, contract=Contract(may_skip="yes"))


def test_scope(fault_check, wide):
    fault_check(Numbers)


def test_own_error(fault_check):
    raise LookupError("no such folder")


def test_never_called(fault_check):
    pass


@pytest.mark.parametrize("number", [1, 2])
def test_parametrized(fault_check, number):
    raise LookupError(number)
"""
TESTS = re.findall(r"def (test_\w+)", MISTAKES)
GIVEN = "only='pickles', seed=1"
SKIPPED = "not run, because the test failed before its check"
MARKER = "Pass it to the marker: @pytest.mark.dataloader_faults"


@pytest.fixture(name="mistakes", scope="module")
def _mistakes(run_suite):
    """What the suite of mistakes prints, and the items of its report."""
    report = "--dataloader-faults-report=r.json"
    folder, result = run_suite(MISTAKES, "-rs", "-p", "no:cacheprovider", report)
    return result, json.loads((folder / "r.json").read_text(encoding="utf-8"))["items"]


@pytest.fixture(name="result", scope="module")
def _result(mistakes):
    return mistakes[0]


def _printed(result, test):
    """The lines of the failures of *test*, from their title on."""
    text = "\n".join(result.outlines)
    parts = re.split(r"\n_+ ((?:ERROR at setup of )?test_\S+) _+\n", text.partition("= short")[0])
    return {
        title: body
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
        if title.rpartition(" ")[2].startswith(f"{test}[")
    }


@pytest.mark.parametrize("test", TESTS)
def test_one_item_tells_it(mistakes, test):
    result, items = mistakes
    sets = 2 if test == "test_parametrized" else 1
    assert len(_printed(result, test)) == sets
    of_test = [each for each in items if each["test"].startswith(f"test_inner.py::{test}")]
    assert Counter(each["status"] for each in of_test) == {"error": sets, "not_run": 2 * sets}
    first_items = {each["test"]: each["nodeid"] for each in of_test if each["status"] == "error"}
    for item in of_test:
        see = f"{SKIPPED}: see {first_items[item['test']]}"
        assert item["status"] == "error" or item["sentence"] == see
    result.stdout.fnmatch_lines([f"SKIPPED*{SKIPPED}: see test_inner.py::{test}[[]*"])


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_deadline", f"fault_check() does not accept deadline=5. {MARKER}(deadline=5)"),
        (
            "test_several",
            f"fault_check() does not accept {GIVEN}. {MARKER.replace('it', 'them')}({GIVEN})",
        ),
        ("test_unknown", "fault_check() does not accept workers=2. It accepts a dataset, files=,"),
        ("test_misspelt", "fault_check() does not accept deadlin=5. Did you mean 'deadline'? It"),
    ],
)
def test_an_argument_of_the_marker(result, test, text):
    (body,) = _printed(result, test).values()
    assert text in " ".join(line.removeprefix("E  ").strip() for line in body.split("\n"))
    assert ">       fault_check(" in body


@pytest.mark.parametrize("test", ["test_deadline", "test_contract"])
def test_no_frame_is_ours(result, test):
    (body,) = _printed(result, test).values()
    assert "???" not in body
    assert "<string>" not in body
    assert "pytest_dataloader_faults/" not in body
