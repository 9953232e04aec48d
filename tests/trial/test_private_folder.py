"""A factory that takes a folder gets an empty one of its own for each trial, which leaves none."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_dataloader_faults import check_dataset, run_trial, sweep
from pytest_dataloader_faults._trial.factory import takes_folder
from pytest_dataloader_faults.battery.baseline_cache import BaselineCache
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InjectionError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import OpenError, ReadError
from pytest_dataloader_faults.search import replay, survey
from support.datasets import Records
from support.inner import PYTHONPATH
from support.refusals import lacks, refusal
from support.specimens import ZerosOnError
from support.waiting import until


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


def _of_split(split):
    """A factory that does not ask for a folder."""


def test_which_factories_take_a_folder():
    """Functions with exactly one parameter that has to be given by position, of a folder."""

    def annotated(where: Path):
        return where

    takes = [_function, lambda folder, size=3: (folder, size), functools.partial(Copied, "source")]
    gets_none = [lambda: 1, lambda folder=None: folder, lambda *_, **__: 1, dict, Path("x").exists]
    assert [takes_folder(each) for each in (*takes, annotated)] == [True] * 4
    assert [takes_folder(each) for each in gets_none] == [False] * 5


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        (Copied, ("requires 2 arguments (source, folder)", "lambda: Copied(...)")),
        (Records, ("requires 1 argument (folder)", "lambda: Records(...)", "no class")),
        (_of_split, ("requires 1 argument (split)", "lambda: _of_split(...)", "named folder")),
    ],
    ids=["two", "a class", "no folder"],
)
def test_a_factory_that_requires_something_else_is_refused(factory, told):
    """The names are shown, and what to write. An empty folder is no data."""
    assert lacks(refusal(InvalidArgumentError, run_trial, factory), *told) == []


def test_each_trial_begins_with_an_empty_folder(records, log, left_behind):
    """At one path, which is gone afterwards, and in which faults happen."""
    (result,) = check_dataset(functools.partial(Logged, log, records), only="open-error")
    folders = log.read_text().splitlines()
    assert len(folders) == 3  # The reference, the control and the trial.
    assert set(folders) == {f"{folders[0].split()[0]} []"}
    assert result.verdict == "failed_cleanly"
    hit = {each.path.rpartition("/")[0] for each in result.outcome.faults[0].firings}
    assert hit == {f"{folders[0].split()[0]}/copy"}
    assert left_behind() == []


@pytest.mark.parametrize(
    ("end", "error"),
    [(os.abort, UnusableDatasetError), (lambda: psutil.Process().suspend(), InjectionError)],
    ids=["died", "stopped"],
)
def test_a_trial_that_is_ended_leaves_no_folder(records, left_behind, end, error):
    """Whether its process dies, or is ended at its deadline."""

    def make_dataset(folder):
        made = Copied(records, folder)
        end()
        return made

    with pytest.raises(error):
        check_dataset(make_dataset, deadline=2)
    assert left_behind() == []


SCRIPT = """
import sys, time
from pathlib import Path
from pytest_dataloader_faults import run_trial

def make_dataset(folder):
    (folder / "cache").write_text("x")
    Path(sys.argv[1] + ".new").write_text(str(folder))
    Path(sys.argv[1] + ".new").rename(sys.argv[1])
    time.sleep(600)

run_trial(make_dataset, deadline=600)
"""


def test_a_killed_process_leaves_no_folder(tmp_path, left_behind):
    """Its warden removes the folder."""
    told = tmp_path / "told"
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, told], env=environment) as runner:
        assert until(lambda: told.exists() or runner.poll() is not None, 60)
        folder = Path(told.read_text())
        assert (folder / "cache").exists()
        runner.kill()
    assert until(lambda: not folder.exists())
    assert until(lambda: left_behind() == [])


def test_items_of_one_test_share_the_run_without_a_fault(records, log):
    """The files of the second item are those that the first one saw."""
    memory, counts = BaselineCache(), []
    for name in ("open-error", "read-error-first"):

        def make_dataset(folder):
            return Logged(log, records, folder)

        answer = memory.ask(
            name, _remade(make_dataset), home=None, expected=None, reproduce="", engine="auto"
        )
        counts.append((answer.result.passed, len(log.read_text().splitlines())))
    assert counts == [(True, 3), (True, 4)]


def _remade(make_dataset):
    """A function as a test makes it anew: with the same code, and equal values in its cells."""
    return make_dataset


def test_every_entry_gives_a_folder(records):
    """Trials, searches, sweeps and replays."""
    make_dataset = functools.partial(Copied, records)
    assert run_trial(make_dataset, ReadError("*/03.rec")).fired == 1
    found = survey(make_dataset)
    assert set(found.files.opens) == {f"*/{number:02}.rec" for number in range(16)}
    assert replay(make_dataset, OpenError("*/03.rec", times=1)) == "failed_cleanly"
    swept = sweep(make_dataset, faults=[OpenError()], max_trials=2)
    assert [each.fired > 0 for each in swept.steps] == [True, True]


def test_a_failure_shows_what_the_factory_takes(records):
    """In the test that repeats it, where the factory has no name to import."""
    with pytest.raises(CheckFailedError, match=r"# Put here .* = lambda folder: MyDataset"):
        replay(lambda _: ZerosOnError(records), OpenError("*/03.rec"))


def test_fake_files_need_no_folder():
    """Each trial has its own copy of them: a factory that takes a folder is told so."""
    with FakeDatasetFs() as files:
        files.create_file("/data/0")
        text = refusal(InvalidArgumentError, run_trial, _function, OpenError())
        assert lacks(text, "takes a folder", "fake files") == []
