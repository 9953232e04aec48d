"""The campaign reports every deviation and every error, and a short one has neither."""

from __future__ import annotations

import os
import shutil

import psutil
import pytest

import campaign

pytestmark = pytest.mark.usefixtures("engine")
BATTERIES = [
    pytest.param(name, load, marks=pytest.mark.slow)
    for name in campaign.DATASETS
    for load in ("idle", "busy")
]


def _last_line(capsys):
    """The sums, without the seconds."""
    return capsys.readouterr().out.splitlines()[-1].rpartition(", ")[0]


def test_nothing_to_tell(capsys):
    """Where each verdict is the expected one the sums are all there is, and the status is 0."""
    arguments = ["--datasets", "OpensPerItem", "--checks", "workers-agree", "read-before-fork"]

    assert campaign.main(["--batteries", "2", *arguments]) == 0
    assert _last_line(capsys) == "2 batteries, 4 checks, 0 demos, 0 deviations, 0 errors"


def test_deviation(capsys, tmp_path):
    """The campaign reports an unexpected verdict with its evidence, and the status is 1."""
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("  OpensPerItem\nworkers-agree  hung\n")
    arguments = [
        "--datasets",
        "OpensPerItem",
        "--checks",
        "workers-agree",
        "--expected",
        str(wrong),
    ]

    assert campaign.main(arguments) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(
        "DEVIATION OpensPerItem workers-agree: got survived, wanted hung: survived: every sample"
    )
    assert ", 1 deviations, 0 errors, " in printed


def test_error(capsys):
    """The campaign reports a battery that cannot begin with its traceback, and the status is 1."""
    assert campaign.main(["--datasets", "OpensPerItem", "--deadline", "0.001"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("ERROR OpensPerItem before the first check: Traceback")
    assert "\n1 batteries, 0 checks, 0 demos, 0 deviations, 1 errors, " in printed


def test_load_ends():
    """There is a busy loop for each core, and none is left behind."""
    children = psutil.Process().children()
    with campaign.load("busy"):
        assert len(psutil.Process().children()) - len(children) == len(os.sched_getaffinity(0))
    assert psutil.Process().children() == children


@pytest.mark.timeout(600)  # Of a battery that takes 15 s alone, on machines with more to do.
@pytest.mark.parametrize(("name", "load"), BATTERIES)
def test_batteries(name, load, capsys):
    """A whole battery comes to what is expected, whatever else the machine does."""
    assert campaign.main(["--datasets", name, "--load", load]) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("option", campaign.REPEATED)
def test_repeated(option, capsys):
    """One check of one dataset comes to the same each time."""
    assert campaign.main([f"--{option}", "40"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_demo_in_a_clone(capsys):
    """The demo runs in a fresh clone of the repository."""
    if not shutil.which("git") or not (campaign.ROOT / ".git").exists():
        pytest.skip("needs git, and a checkout of it to clone")

    assert campaign.main(["--demo", "1", "--datasets", "OpensPerItem"]) == 0
    assert _last_line(capsys) == "0 batteries, 0 checks, 1 demos, 0 deviations, 0 errors"
