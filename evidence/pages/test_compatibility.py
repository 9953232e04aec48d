"""The page about versions has a run on each Python, and on the lower bounds of today."""

from __future__ import annotations

import re

import pytest

from support.scripts import ROOT, load_script

compatibility = load_script("docs/compatibility.py")
PAIRS = compatibility.record()
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
OF_THE_PACKAGE = PROJECT.partition("[project]")[2]  # And not of its build.
BOUNDS = dict(re.findall(r'^    "(\w+)>=([\d.]+)",', OF_THE_PACKAGE, re.MULTILINE))
PYTHONS = re.findall(r"Python :: (3\.\d+)", PROJECT)


def _numbers(version: str) -> list[int]:
    return [*map(int, version.split(".")), 0, 0][:3]


def test_the_page_is_that_of_its_record():
    """It is generated, and not edited; `python docs/compatibility.py` writes it anew."""
    assert compatibility.PAGE.read_text(encoding="utf-8") == compatibility.page(PAIRS)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_was_tried(python):
    """Each that pyproject.toml promises, and no test failed there."""
    counts = [each["suite"] for each in PAIRS if each["python"].startswith(f"{python}.")]
    assert counts
    assert {each["failed"] for each in counts} == {0}
    assert min(each["passed"] for each in counts) > 1000


def test_the_lower_bounds_were_tried():
    """Together, on the lowest Python, and tox has the same."""
    lowest = {name: PAIRS[0][name] for name in BOUNDS}
    assert {name: _numbers(bound) for name, bound in BOUNDS.items()} == {
        name: _numbers(version) for name, version in lowest.items()
    }
    tox = re.findall(r"py310-lowest: (\w+)==([\d.]+)", (ROOT / "tox.ini").read_text("utf-8"))
    assert dict(tox) == lowest
    assert PAIRS[0]["python"].startswith(f"{PYTHONS[0]}.")


CASES = {
    "passed": "",
    "failed": "<failure message='no'/>",
    "skipped": "<skipped message='no GPU'/>",
}


def _junit(path, **cases):
    every = [
        f'<testcase classname="tests.of" name="{name}">{CASES[result]}</testcase>'
        for name, result in cases.items()
    ]
    text = f'<testsuite timestamp="2026-11-22T22:00:00">{"".join(every)}</testsuite>'
    path.write_text(f"<testsuites>{text}</testsuites>")
    return path


def test_a_run_that_failed_would_be_seen(tmp_path):
    """The counts are those of pytest's own file; a test that ran again counts as it did then."""
    run = _junit(tmp_path / "1.xml", one="passed", two="failed", three="failed", four="skipped")
    again = _junit(tmp_path / "2.xml", two="passed")
    found = compatibility._suite([run, again])
    assert [found[name] for name in ("passed", "failed", "skipped")] == [2, 1, 1]
    assert found["date"] == "2026-11-22"
