"""What a loader and its workers take along, what they wait for, and what works after a scope."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import pytest_dataloader_faults as package
from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import Channel, Hello, WorkerConfig
from pytest_dataloader_faults._engine.worker.kernel_session import _hand_over
from pytest_dataloader_faults.faults import ReadError
from support.children import in_a_process
from support.datasets import COUNT, Records
from support.inner import PYTHONPATH
from support.waiting import until

SCRIPT = """
import sys
import torch  # Its bytecode is where it always is.
sys.{} = {!r}
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError

with inject(ReadError("*.bin"), require_fired=False) as armed:
    print(armed.fired)
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dont_write_bytecode", True),
        pytest.param("pycache_prefix", "elsewhere", marks=pytest.mark.slow),
    ],
)
def test_no_bytecode_beside_the_sources(tmp_path, engine, name, value):
    copied = tmp_path / "site" / "pytest_dataloader_faults"
    source = Path(package.__file__).parent
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(copied.parent)}
    command = [sys.executable, "-c", SCRIPT.format(name, value)]
    printed = subprocess.check_output(command, env=environment, cwd=tmp_path)
    assert printed == b"0\n"
    assert list(copied.rglob("*.pyc")) == []


PATIENCE = 20


def test_a_supervisor_that_is_gone_when_the_listener_is_sent():
    """The next open(2) has nobody to wait for: the kernel refuses it, with ENOSYS."""

    def body():
        signal.alarm(PATIENCE)  # A process that waits for itself is ended by nothing else.
        config = WorkerConfig("", os.getpid(), FaultPlan((ReadError("*"),)), "kernel")
        ours, theirs = socket.socketpair()
        theirs.close()
        hello = Hello(0, 1, os.getpid(), "kernel", high_fds=(512, 1024))
        with pytest.raises(BrokenPipeError):
            _hand_over(Channel(ours), config, hello)
        with pytest.raises(OSError, match="not implemented") as refused:
            os.open(os.devnull, os.O_RDONLY)
        assert errno.ENOSYS == refused.value.errno

    assert not (error_text := in_a_process(body)), error_text


def test_a_lost_lock_is_named_while_torch_waits_for_it(records, capsys):
    with inject(ReadError("*.rec", nth=1000), require_fired=False):
        iterator = iter(DataLoader(Records(records), num_workers=1, batch_size=4))
        next(iterator)
        lock = iterator._index_queues[0]._notempty
        ending = threading.Thread(target=iterator._shutdown_workers)
        with lock:
            ending.start()
            assert until(lambda: "hangs in torch" in capsys.readouterr().err, 20)
            assert ending.is_alive()
        ending.join(20)

    assert not ending.is_alive()


def test_nothing_is_said_of_a_loop_that_ends(records, capsys):
    with inject(ReadError("*.rec", nth=1000), require_fired=False):
        list(DataLoader(Records(records), num_workers=2, batch_size=4))

    assert capsys.readouterr().err == ""


FAULT = ReadError("*/03.rec", times=1)


def _until_error(iterator):
    with pytest.raises(OSError, match="Input/output error"):
        list(iterator)


def test_an_iterator_continues_after_an_error(records):
    with inject(FAULT):
        iterator = iter(DataLoader(Records(records), num_workers=1))
        _until_error(iterator)
    assert len(list(iterator)) == COUNT - 4


@pytest.mark.parametrize("engine", ["kernel", "python"])
def test_persistent_workers_go_on_after_an_error(records, engine):
    loader = DataLoader(Records(records), num_workers=2, persistent_workers=True)
    with inject(FAULT, engine=engine):
        _until_error(iter(loader))
        assert len(list(loader)) == COUNT
    assert len(list(loader)) == COUNT
    loader._iterator._shutdown_workers()


def test_workers_end_with_the_last_use_of_a_failed_iterator(records):
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


SPAWNING = """
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
    command = [sys.executable, "-c", SPAWNING, str(records)]
    process = subprocess.run(
        command, env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
