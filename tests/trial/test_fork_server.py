"""Workers from a fork server: one process imports torch for all trials; all else is the same."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.faults import ReadError
from support.inner import PRELOADED, PYTHONPATH
from support.served import VARIABLE, LeavesAProcess, Surroundings
from support.waiting import until

SERVED = {"multiprocessing_context": "forkserver", "num_workers": 2, "batch_size": 4}
UNGUARDED = """
import sys
from pathlib import Path
from pytest_dataloader_faults import check_dataset
from support.datasets import Records
print("main")
loader = {"multiprocessing_context": sys.argv[2]}
(result,) = check_dataset(
    lambda: Records(Path(sys.argv[1])), only=sys.argv[3], loader=loader, on_fail=None
)
print(result.verdict, result.explanation)
"""


def _preloaded() -> list[psutil.Process]:
    """The process of this one that has imported torch for its workers."""
    found = (each for each in psutil.Process().children() if each.status() != "zombie")
    return [each for each in found if PRELOADED in " ".join(each.cmdline())]


def _samples(outcome) -> list[tuple[str, ...]]:
    return [each.rows for each in outcome.passes[0].delivered]


def test_one_process_serves_all_trials(records):
    """It stays, and no trial imports torch again."""
    run_trial(lambda: Surroundings(records), loader=SERVED)
    before = _preloaded()
    run_trial(lambda: Surroundings(records), loader=SERVED)
    assert len(before) == 1
    assert _preloaded() == before


def test_workers_have_the_surroundings_of_their_trial(records, tmp_path, monkeypatch):
    """Environment variables, working directory and limit are those of now."""
    for name in ("one", "two"):
        monkeypatch.setenv(VARIABLE, name)
        monkeypatch.setenv("PYTHONPATH", f"{PYTHONPATH}:{name}")
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        forked, served = (
            run_trial(lambda: Surroundings(records), loader={**SERVED, **change})
            for change in ({"multiprocessing_context": "fork"}, {})
        )
        assert served.passes[0].complete
        assert _samples(served) == _samples(forked)


def test_another_one_is_started_where_it_was_killed(records):
    """The trial after that is a trial as any."""
    run_trial(lambda: Surroundings(records), loader=SERVED)
    (killed,) = _preloaded()
    killed.kill()
    outcome = run_trial(lambda: Surroundings(records), loader=SERVED)
    assert outcome.passes[0].complete
    (started,) = _preloaded()
    assert started != killed


def test_a_process_that_a_worker_leaves_is_found_and_ended(records):
    """It is below the fork server, and not below the loader's process."""
    (result,) = check_dataset(
        lambda: LeavesAProcess(records), only="workers-agree", loader=SERVED, on_fail=None
    )
    assert (str(result.verdict), result.passed) == ("leaked", False)
    (pid,) = result.outcome.resources[-1].processes
    assert until(lambda: not psutil.pid_exists(int(pid)))


def test_faults_reach_these_workers(records):
    """As they reach forked ones, and the workers of the recovery are sound."""
    outcome = run_trial(lambda: Surroundings(records), ReadError("*.none"), loader=SERVED)
    assert outcome.recovery.complete
    assert {each.worker for each in outcome.workers} == {0, 1}


@pytest.mark.parametrize(
    ("method", "check"),
    [
        ("fork", "pickles"),
        pytest.param("forkserver", "workers-agree", marks=pytest.mark.slow),
    ],
)
def test_a_script_without_a_guard_runs_no_trial_within_a_trial(records, tmp_path, method, check):
    """Its main module is imported for the workers, and they say what to do."""
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(records), method, check],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "Put what the script does below: if __name__ == '__main__':" in done.stdout
    assert "__getstate__" not in done.stdout


@pytest.mark.parametrize("number", [9, pytest.param(15, marks=pytest.mark.slow)])
def test_it_ends_with_the_process_that_started_it(records, tmp_path, number):
    """Whether that has time for it or not."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pytest_dataloader_faults import run_trial\n"
        "from support.datasets import Records\n"
        "if __name__ == '__main__':\n"
        f"    run_trial(lambda: Records(Path(sys.argv[1])), loader={SERVED!r})\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, str(script), str(records)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout.readline() == "ready\n"
        (served,) = psutil.Process(runner.pid).children()
        runner.send_signal(number)
    assert until(lambda: not psutil.pid_exists(served.pid))
