"""What is made in a scope works after it as it does without one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
from support.datasets import COUNT, Records
from support.inner import PYTHONPATH

FAULT = ReadError("*/03.rec", times=1)


def _until_error(iterator):
    with pytest.raises(OSError, match="Input/output error"):
        list(iterator)


def test_an_iterator_goes_on_after_an_error(records):
    """Its other batches come, as without the plugin."""
    with inject(FAULT):
        iterator = iter(DataLoader(Records(records), num_workers=1))
        _until_error(iterator)
    assert len(list(iterator)) == COUNT - 4


@pytest.mark.parametrize("engine", ["kernel", "python"])
def test_persistent_workers_go_on_after_an_error(records, engine):
    """The loader gives whole epochs in the scope and after it."""
    loader = DataLoader(Records(records), num_workers=2, persistent_workers=True)
    with inject(FAULT, engine=engine):
        _until_error(iter(loader))
        assert len(list(loader)) == COUNT
    assert len(list(loader)) == COUNT
    loader._iterator._shutdown_workers()


def test_workers_end_with_the_last_use_of_a_failed_iterator(records):
    """They do not wait for the garbage collector, nor for the end of the scope."""
    with inject(FAULT):
        iterator = iter(DataLoader(Records(records), num_workers=2))
        _until_error(iterator)
        workers = iterator._workers
        del iterator
        assert not any(each.is_alive() for each in workers)


def test_a_worker_that_starts_after_the_scope_has_no_faults(records):
    """A spawned one takes seconds to come to its arming."""
    loader = DataLoader(Records(records), num_workers=1, multiprocessing_context="spawn")
    with inject(ReadError("*"), require_fired=False):
        iterator = iter(loader)
    assert len(list(iterator)) == COUNT


SCRIPT = """
import sys
from pathlib import Path
from torch.utils.data import DataLoader
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records

loader = DataLoader(Records(Path(sys.argv[1])), num_workers=1, persistent_workers=True)
with inject(ReadError("*.none"), require_fired=False):
    list(loader)
    dropped = iter(DataLoader(loader.dataset, num_workers=1))
"""


def test_nothing_is_printed_at_exit(records):
    """Iterators may live until the interpreter ends."""
    command = [sys.executable, "-c", SCRIPT, str(records)]
    done = subprocess.run(
        command, env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
