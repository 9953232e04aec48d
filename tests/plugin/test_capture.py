"""Trials and pytest's own capture leave each other alone."""

import pytest

from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import logging
import os
import sys

import pytest
from support.plugin_datasets import Chatty

one = pytest.mark.dataloader_faults(only="worker-killed-sending")

@one
def test_loud(fault_check, records):
    print("BEFORE")
    fault_check(lambda: Chatty(records))
    print("AFTER")

@one
def test_fixtures_of_pytest(fault_check, records, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setenv("MARK", "mine")
    (tmp_path / "mine.txt").write_text("mine")
    print("one")
    fault_check(lambda: Chatty(records))
    print("two")
    print("three", file=sys.stderr)
    logging.getLogger("mine").warning("four")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("one\\ntwo\\n", "three\\n")
    assert [record.getMessage() for record in caplog.records] == ["four"]
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["mine.txt", "records"]
    assert os.environ["MARK"] == "mine"

@one
def test_capfd(fault_check, records, capfd):
    os.write(1, b"one\\n")
    fault_check(lambda: Chatty(records))
    os.write(1, b"two\\n")
    os.write(2, b"three\\n")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("one\\ntwo\\n", "three\\n")

def test_follows(capsys, tmp_path):
    print("mine")
    assert capsys.readouterr().out == "mine\\n"
    assert not os.listdir(tmp_path)
"""


WAYS = [("--capture=fd", "--log-file=all.log"), slow(("--capture=no", "-k", "test_loud"))]


@pytest.mark.parametrize("options", WAYS)
def test_a_trial_and_what_captures_leave_each_other_alone(suite, options):
    """What a trial prints and logs stays in it; the test's own prints are shown.

    capsys, capfd, caplog, tmp_path and monkeypatch work on, and so does the next test.
    """
    result = suite.run(SUITE, *options, "-rA")
    result.assert_outcomes(**({"passed": 1, "deselected": 3} if "-k" in options else {"passed": 4}))
    text = result.stdout.str()
    assert "BEFORE\n" in text
    assert "AFTER\n" in text
    written = "".join(each.read_text() for each in suite.path.glob("all.log"))
    assert "LEAK" not in text + result.stderr.str() + written
