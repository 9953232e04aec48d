"""Whatever a dataset does, pytest goes on undisturbed, and no folder of a trial stays."""

import functools
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_dataloader_faults import Outcome, check_dataset, run_trial
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults._trial.factory import takes_folder
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.resources import is_infrastructure
from pytest_dataloader_faults.exceptions import HarnessError, UnusableDatasetError
from pytest_dataloader_faults.outcomes.stages import DONE, START
from pytest_dataloader_faults.steps import Action, Epoch, TrialOptions, arm_workers
from support import troublemakers
from support.datasets import COUNT, Records
from support.facts import EPOCH_1
from support.rows import slow
from support.surroundings import mount_tmpfs, mounts_are_refused, traceback_under
from support.troublemakers import Batches, Trouble
from support.waiting import allowed

SHORT = 2.0
"""A deadline that is meant to be met by a hang, and by nothing before it."""
TROUBLE = [
    (troublemakers.touch_missing_page, "loader", "died: signal 7 (SIGBUS)", START),
    (troublemakers.touch_missing_page, "worker", "Bus error", DONE),
    (troublemakers.take_every_descriptor, "worker", "Too many open files", DONE),
    (troublemakers.close_standard_streams, "loader", "", DONE),
    (troublemakers.close_standard_streams, "worker", "", DONE),
]
"""What a dataset does to its process, where, the error or the end that follows, and when."""
OFFSPRING = [
    (troublemakers.fork_grandchildren, "worker", "python"),
    slow(troublemakers.fork_repeatedly, "worker", ""),  # None of them stays for long enough.
    (troublemakers.start_daemon, "loader", None),
]
"""What starts processes, where, and what is in the command of one that stays of a worker."""


def _try(records, trouble, where, deadline=30.0) -> Outcome:
    job = Job(
        make_dataset=lambda: Trouble(records, trouble, where),
        settings=Settings(loader={"num_workers": 1, "batch_size": 4}, deadline=deadline),
        options=TrialOptions(processes=arm_workers(Epoch(), before=(Action.READ_SAMPLE,))),
        draws=tuple(pickle.dumps(list(range(at, at + 4))) for at in range(0, COUNT, 4)),
    )
    return run_trial_job(job)


@pytest.mark.parametrize(("trouble", "where", "end", "phase"), TROUBLE)
def test_what_happens_to_a_process_stays_in_its_trial(
    records, left_behind, trouble, where, end, phase
):
    outcome = _try(records, trouble, where)
    assert (outcome.phase, outcome.timed_out) == (phase, False)
    error = outcome.exception.text if outcome.exception else ""
    assert end in (f"died: {outcome.died}" if outcome.died else error)
    if not end:
        assert (outcome.died, outcome.exception) == (None, None)
        assert sum(len(each.keys) for each in outcome.delivered) == COUNT
    assert left_behind() == []


@pytest.mark.parametrize(("workers", "indices"), [(0, [(0, 1), (2, 3), (4, 5)]), (1, [(0, 1)])])
def test_death_in_the_middle_of_an_epoch_keeps_what_was_delivered_before(
    records, left_behind, workers, indices
):
    batches = Batches([(0, 1), (2, 3), (4, 5)], troublemakers.exit_silently)
    loader = {"num_workers": workers, "batch_sampler": batches}
    outcome = run_trial(lambda: Records(records), loader=loader)
    assert (outcome.died, outcome.phase) == ("exit status 3", EPOCH_1)
    assert [each.keys for each in outcome.delivered] == indices
    assert left_behind() == []


@pytest.mark.parametrize(
    ("trouble", "where", "phase"),
    [
        (troublemakers.hang_forever, "loader", START),
        (troublemakers.ignore_signals_and_hang, "worker", EPOCH_1),
    ],
)
def test_a_hang_ends_at_the_deadline_and_is_located(records, left_behind, trouble, where, phase):
    outcome = _try(records, trouble, where, deadline=SHORT)
    assert (outcome.timed_out, outcome.died, outcome.phase) == (True, None, phase)
    assert "hang_forever" in outcome.end.stacks
    assert SHORT <= outcome.duration < SHORT + allowed(20)
    assert left_behind() == []


@pytest.mark.parametrize(("trouble", "where", "command"), OFFSPRING)
def test_no_process_outlives_the_trial(records, left_behind, trouble, where, command):
    """Processes that left their session and lost their parents are gone when it returns.

    Those that the workers left behind are among the resources afterwards, and not before.
    """
    outcome = _try(records, trouble, where)
    assert (outcome.phase, outcome.timed_out, outcome.died) == (DONE, False, None)
    assert len(outcome.delivered) == 4
    processes_before, processes_after = (
        "\n".join(each.processes.values()) for each in outcome.resources
    )
    assert command is None or (processes_before == "" and command in processes_after)
    assert left_behind() == []


@pytest.mark.parametrize("where", ["loader", "worker"])
def test_output_of_a_trial_is_captured(records, capfd, where):
    sys.stdout.write("half a line of ours, ")
    outcome = _try(records, troublemakers.flood_streams, where)
    print("and its other half")  # noqa: T201  # it is what is looked at
    assert tuple(capfd.readouterr()) == ("half a line of ours, and its other half\n", "")
    assert (outcome.exception, outcome.died, outcome.phase) == (None, None, DONE)
    assert "blah" in outcome.stderr or "NOISE" in outcome.stderr
    assert len(outcome.stderr) <= 4000


class Copied(Records):
    """A copy of its files, in the folder that it is given; its samples say where they lie."""

    def __init__(self, source, folder):
        shutil.copytree(source, folder / "copy")
        super().__init__(folder / "copy")

    def __getitem__(self, index):
        return *super().__getitem__(index), str(self.paths[index])


class Logged(Copied):
    """Writes down which folder it was given, and what was in it."""

    def __init__(self, log, source, folder):
        with log.open("a") as file:
            file.write(f"{folder} {os.listdir(folder)}\n")
        super().__init__(source, folder)


@pytest.fixture(name="log")
def _log(tmp_path):
    return tmp_path / "log"


def _function(_folder):
    """A factory with one required parameter."""


def test_which_factories_take_a_folder():
    def annotated(where: Path):
        return where

    takes = [_function, lambda folder, size=3: (folder, size), functools.partial(Copied, "source")]
    gets_none = [lambda: 1, lambda folder=None: folder, lambda *_, **__: 1, dict, Path("x").exists]
    assert [takes_folder(each) for each in (*takes, annotated)] == [True] * 4
    assert [takes_folder(each) for each in gets_none] == [False] * 5


def test_each_trial_begins_with_an_empty_folder(records, log, left_behind):
    (result,) = check_dataset(functools.partial(Logged, log, records), only="open-error")
    folders = log.read_text().splitlines()
    assert len(folders) == 3  # The reference, the fault-free epoch and the trial.
    assert set(folders) == {f"{folders[0].split()[0]} []"}
    assert result.verdict == "failed_cleanly"
    hit = {each.path.rpartition("/")[0] for each in result.outcome.faults[0].firings}
    assert hit == {f"{folders[0].split()[0]}/copy"}
    assert left_behind() == []


@pytest.mark.parametrize(
    ("end", "error"),
    [(os.abort, UnusableDatasetError), (lambda: psutil.Process().suspend(), HarnessError)],
    ids=["died", "stopped"],
)
def test_a_trial_that_is_ended_leaves_no_folder(records, left_behind, end, error):
    def make_dataset(folder):
        dataset = Copied(records, folder)
        end()
        return dataset

    with pytest.raises(error):
        check_dataset(make_dataset, deadline=2)
    assert left_behind() == []


class LinkForFolder(Records):
    """Puts *target* in the place of the folder that it is given, as a link."""

    def __init__(self, records: Path, folder: Path, target: Path) -> None:
        super().__init__(records)
        os.rmdir(folder)
        os.symlink(target, folder)


def test_a_link_in_place_of_the_folder_is_removed_and_not_followed(records, left_behind, tmp_path):
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    (shared / "deep" / "file").write_text("of the user")
    modes = {shared: 0o755, shared / "deep": 0o555}
    for path, mode in modes.items():
        path.chmod(mode)
    outcome = run_trial(lambda folder: LinkForFolder(records, folder, shared))
    assert outcome.exception is None
    assert {path: path.stat().st_mode & 0o777 for path in modes} == modes
    assert (shared / "deep" / "file").read_text() == "of the user"
    assert left_behind() == []


def test_what_is_mounted_below_a_folder_stays(tmp_path):
    if why := mounts_are_refused():
        pytest.skip(f"this machine lets nobody mount: {why}")
    folder, users = tmp_path / "folder", tmp_path / "users"
    (folder / "cache").mkdir(parents=True)
    (folder / "own").mkdir()
    (users / "deep").mkdir(parents=True)
    (users / "deep" / "file").write_text("of the user")
    (users / "deep").chmod(0o555)

    def remove() -> None:
        subprocess.run(["/bin/mount", "--bind", users, folder / "cache"], check=True)
        temporary.remove(str(folder))
        assert (users / "deep" / "file").read_text() == "of the user"
        assert (users / "deep").stat().st_mode & 0o777 == 0o555
        assert os.listdir(folder) == ["cache"]

    assert traceback_under(remove, mount_tmpfs({})) == ""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -c from multiprocessing.resource_tracker import main;main(15)", True),
        ("python -c from multiprocessing.forkserver import main; main(3)", True),
        ("/site-packages/torch/bin/torch_shm_manager", True),
        ("python -c from multiprocessing.spawn import spawn_main", False),
        ("sleep 600", False),
    ],
)
def test_helpers_of_multiprocessing_are_no_leak(command, expected):
    assert is_infrastructure(command) is expected
