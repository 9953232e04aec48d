"""Trials and pytest's own capture leave each other alone."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import logging
import os
import sys

import pytest
from support.plugin_datasets import Chatty

one = pytest.mark.dataloader_faults(only="worker-killed-first")


@one
def test_loud(fault_check, records):
    print("BEFORE")
    fault_check(lambda: Chatty(records))
    print("AFTER")
    assert not os.environ.get("FAIL_LOUD")


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


@pytest.mark.parametrize(
    "capture",
    [
        "--capture=fd",
        pytest.param("--capture=no", marks=pytest.mark.slow),
        pytest.param("--capture=sys", marks=pytest.mark.slow),
        pytest.param("--capture=tee-sys", marks=pytest.mark.slow),
    ],
)
def test_what_a_trial_prints_stays_in_the_trial(suite, monkeypatch, capture):
    """Nothing of it is in pytest's output, whatever captures it; the test's own prints are."""
    monkeypatch.setenv("FAIL_LOUD", "1")
    result = suite.run(SUITE, capture, "-k", "test_loud", "-rA")
    result.assert_outcomes(failed=1, deselected=3)
    text = result.stdout.str() + result.stderr.str()
    assert "BEFORE\n" in text
    assert "AFTER\n" in text
    assert "LEAK" not in text


def test_pytests_own_fixtures_are_unharmed(suite):
    """capsys, capfd, caplog, tmp_path and monkeypatch work on, and so does the next test."""
    result = suite.run(SUITE, "-v")
    result.assert_outcomes(passed=4)
    assert "LEAK" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(("-o", "log_cli=true"), id="live", marks=pytest.mark.slow),
        pytest.param(
            ("-o", "log_cli=true", "-o", "log_cli_level=INFO", "-s"),
            id="live, -s",
            marks=pytest.mark.slow,
        ),
        pytest.param(("--log-file=all.log",), id="file"),
    ],
)
def test_what_a_trial_logs_stays_in_the_trial(suite, log):
    """Handlers that pytest put on the root logger are pytest's, not the trial's."""
    result = suite.run(SUITE, "-k", "test_loud", "-rA", *log)
    result.assert_outcomes(passed=1, deselected=3)
    written = "".join(each.read_text() for each in suite.path.glob("all.log"))
    assert "LEAK" not in result.stdout.str() + result.stderr.str() + written
