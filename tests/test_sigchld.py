"""The reproduction of what torch's handler of SIGCHLD does runs, whatever it comes to here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import allowed

SCRIPT = Path(__file__).resolve().parent.parent / "docs/sigchld.py"
ATTEMPTS = {"lock": 2, "swallowed": 1, "profiler": 2}
ENDS = re.compile(r"(\w+), torch [\w.+]+, (\d+) attempts: (.+)")


@pytest.mark.slow
@pytest.mark.parametrize("way", ATTEMPTS)
def test_counts(way):
    arguments = [way, "--attempts", str(ATTEMPTS[way]), "--patience", "15"]
    process = subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=allowed(110),
        check=False,
    )

    assert process.returncode == 0, process.stderr
    attempt, attempts, ends = ENDS.fullmatch(process.stdout.splitlines()[-1]).groups()
    counts = {end: int(count) for count, end in re.findall(r"(\d+) ([a-z ]+)", ends)}
    assert (attempt, int(attempts)) == (way, ATTEMPTS[way]) == (way, sum(counts.values()))
    assert set(counts) <= {"in time", "late", "hung"}
