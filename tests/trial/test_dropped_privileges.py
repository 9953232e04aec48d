"""A worker of root may become another user in its worker_init_fn, as with torch alone."""

import functools
import os
import shutil
import tempfile
from multiprocessing import current_process
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Verdict, check_dataset, inject, run_trial
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.nobody import COUNT, Tensors, become_nobody
from support.rows import slow

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
OTHER_USER = "open as a different user, or with different groups or capabilities"
METHODS = ["fork", slow("spawn"), "forkserver"]


@pytest.fixture(name="path")
def _path():
    """A file that everybody may read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "x.bin").write_bytes(b"some bytes")
    yield folder / "x.bin"
    shutil.rmtree(folder)


def _options(method):
    return {
        "batch_size": 1,
        "num_workers": 2,
        "worker_init_fn": become_nobody,
        "multiprocessing_context": method,
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_trial_of_such_a_worker(path, method):
    outcome = run_trial(
        functools.partial(Tensors, path), ReadError("*.bin"), loader=_options(method), deadline=30
    )
    assert (None, False, COUNT) == (outcome.exception, outcome.timed_out, len(outcome.delivered))
    assert (0, {OTHER_USER: COUNT}) == (outcome.fired, outcome.unobserved)


@pytest.mark.parametrize("method", METHODS[:2])
def test_inject_into_such_a_worker(path, method, monkeypatch):
    monkeypatch.delitem(current_process()._config, "tempdir", raising=False)
    with inject(ReadError("*.bin"), require_fired=False) as injection:
        batches = list(DataLoader(Tensors(path), timeout=30, **_options(method)))
    assert COUNT == len(batches)
    assert f"Not visible to the engine: {OTHER_USER} ({COUNT})" in injection.explain_unfired()


def test_a_death_of_such_a_worker(path):
    outcome = run_trial(
        functools.partial(Tensors, path), WorkerKilled(worker=0), loader=_options("fork")
    )
    assert 1 == outcome.fired
    assert "killed" in str(outcome.exception)


CHECKS = ("two-epochs", "worker-killed-first", "read-error", "descriptor-exhaustion")


def test_checks_of_such_a_worker(path):
    results = check_dataset(functools.partial(Tensors, path), loader=_options("fork"), only=CHECKS)
    by_name = {each.check: each for each in results}
    healthy, killed, unread, exhausted = map(by_name.__getitem__, CHECKS)
    assert [healthy.verdict, killed.passed] == [Verdict.SURVIVED, True]
    assert "as a different user" in unread.explanation
    assert exhausted.applies or "as a different user" in exhausted.explanation
