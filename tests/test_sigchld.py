"""The reproduction of what torch's handler of SIGCHLD does runs, whatever it comes to here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import allowed

SCRIPT = Path(__file__).resolve().parent.parent / "docs/sigchld.py"
ATTEMPTS = {"lock": 20, "swallowed": 2, "profiler": 20}
ENDS = re.compile(r"(\w+), torch [\w.+]+, (\d+) attempts: (.+)")


@pytest.mark.slow
@pytest.mark.parametrize("way", ATTEMPTS)
def test_counts(way):
    """Each attempt is in time, late or hangs, and the last line counts them."""
    asked = [way, "--attempts", str(ATTEMPTS[way]), "--patience", "15"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *asked],
        capture_output=True,
        text=True,
        timeout=allowed(110),
        check=False,
    )

    assert done.returncode == 0, done.stderr
    told, attempts, ends = ENDS.fullmatch(done.stdout.splitlines()[-1]).groups()
    counts = {end: int(count) for count, end in re.findall(r"(\d+) ([a-z ]+)", ends)}
    assert (told, int(attempts)) == (way, ATTEMPTS[way]) == (way, sum(counts.values()))
    assert set(counts) <= {"in time", "late", "hung"}
