"""Whatever comes to a process of the harness, nothing is left behind and no verdict is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from chaos import __main__ as campaign
from chaos import roles
from chaos.results import Result, Table, longest
from chaos.rounds import ROLES, SHORTAGES, SIGNALS, Limits, Round, draw

SHORT, LONG = 8, 600
"""Rounds."""
AIMED = 200
"""Kills of each kind of process, within its first 0.8 s."""
ANY = Limits()
CALM = Round(0, "trial", "careful", "fork", "kill", "warden", 0.0)


@pytest.fixture(autouse=True)
def _namespaces():
    if why := campaign.refusal():
        pytest.skip(f"this machine gives no namespaces: {why}")


def _run(seed, count, limits=ANY):
    table = Table()
    for result in campaign.run(seed, 0, count, limits):
        table.add(result)
    print(*table.lines(), sep="\n")  # what a slow run is for
    return table


def test_a_fork_server_may_import_torch_first():
    """It is told from the workers that it has forked: those may not take so long."""
    # One write(2) each, or two processes mix their lines.
    code = "import os, time; os.write(1, b'%d\\n' % os.fork()); time.sleep(600)"
    command = [sys.executable, "-c", code, "process.fork_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout
        forked = max(int(server.stdout.readline()), int(server.stdout.readline()))
        processes = roles.processes()
        os.kill(forked, signal.SIGKILL)
        server.kill()
    assert roles.is_server(processes[server.pid])
    assert not roles.is_server(processes[forked])
    assert longest(only_servers=True) > 8 > longest(only_servers=False)


@pytest.mark.timeout(600)
def test_a_short_campaign():
    """Random subjects, random hurts; most of them come in time."""
    table = _run(11, SHORT)
    assert table.violations == []
    assert sum(row["hurt"] for row in table.counts.values()) > SHORT // 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_campaign():
    """The same for much longer; prints the table."""
    assert _run(1, LONG).violations == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("subject", ["trial", "inject"])
@pytest.mark.parametrize("role", [role for role in ROLES if role != "runner"])
def test_nothing_outlives_a_kill(role, subject):
    """Also of processes that start just then."""
    if subject == "inject" and role in ("warden", "root"):
        pytest.skip(f"{subject} has no such process")
    table = _run(2, AIMED, Limits(("kill",), (role,), (subject,), ("fork",)))
    assert table.violations == []


@pytest.mark.timeout(300)
def test_what_is_left_is_seen():
    """A subject that leaves a process, two files and a changed sample is reported four times."""
    (result,) = campaign.run(0, 0, 1, Limits(acts=("nothing",), subjects=("litter",)))
    violations = "\n".join(result.violations())
    assert "left: process" in violations
    assert "left: /dev/shm/litter" in violations
    assert "/temporary/litter" in violations
    assert "/data/records/00.rec" in violations
    assert len(list(result.violations())) == len(violations.split("\n"))


@pytest.mark.parametrize(
    ("words", "ended", "expected"),
    [
        (("failed_cleanly",), "status 0", []),
        (("HarnessError: it was hurt",), "status 0", []),
        (("hung",), "status 0", ["word: hung"]),
        (("corrupted",), "status 0", ["word: corrupted"]),
        ((), "stuck", ["stuck"]),
    ],
)
def test_a_wrong_word_is_a_violation(words, ended, expected):
    """A refusal is none, and a verdict that the dataset has earned is none."""
    result = Result(CALM, acted=True, words=words, ended=ended, clean_after=0.0)
    assert list(result.violations()) == expected


def test_a_campaign_is_drawn_from_its_seed():
    """The same rounds again, and all acts, roles and subjects sooner or later."""
    drawn = [draw(3, number, Limits()) for number in range(2000)]
    assert drawn[:50] == [draw(3, number, Limits()) for number in range(50)]
    assert {each.act for each in drawn} == {*SIGNALS, "pause", *SHORTAGES}
    assert {each.role for each in drawn} == {*ROLES, ""}
