"""What loaders of all kinds and their workers take along, wait for, and deliver under faults."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import pytest_dataloader_faults as package
from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.channel import Channel, Door
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import Hello, WorkerConfig
from pytest_dataloader_faults._engine.worker.kernel_session import _hand_over
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.faults import ReadError, SlowRead, WorkerKilled
from support.children import in_its_own_process
from support.datasets import COUNT, Records, write_records
from support.epochs import alone, epoch
from support.inner import PYTHONPATH
from support.tries import WAYS, Tries
from support.waiting import in_a_thread

SCRIPT = """
import sys
from pathlib import Path
import torch  # Its bytecode is where it always is.
from torch.utils.data import DataLoader
from support.datasets import Records
sys.dont_write_bytecode = True
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError

loader = DataLoader(Records(Path(sys.argv[1])), num_workers=1, persistent_workers=True)
with inject(ReadError("*.none"), require_fired=False) as injection:
    list(loader)
    dropped = iter(DataLoader(loader.dataset, num_workers=1))
    print(injection.fired)
"""


def test_nothing_is_written_beside_the_sources_or_at_exit(records, tmp_path, engine):
    """Iterators may live until the interpreter ends."""
    copied = tmp_path / "site" / "pytest_dataloader_faults"
    source = Path(package.__file__).parent
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copied.parent), PYTHONPATH])}
    command = [sys.executable, "-c", SCRIPT, str(records)]
    process = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "0\n", "")
    assert list(copied.rglob("*.pyc")) == []


PATIENCE = 20


@in_its_own_process()
def test_a_supervisor_that_is_gone_when_the_listener_is_sent():
    """The next open(2) has nobody to wait for: the kernel refuses it, with ENOSYS."""
    signal.alarm(PATIENCE)  # A process that waits for itself is ended by nothing else.
    ours, theirs = Channel.pair()
    theirs.close()
    config = WorkerConfig(Door(ours), os.getpid(), FaultPlan((ReadError("*"),)))
    hello = Hello(0, 1, os.getpid())
    with pytest.raises(BrokenPipeError):
        _hand_over(config, hello, [])
    with pytest.raises(OSError, match="not implemented") as refused:
        os.open(os.devnull, os.O_RDONLY)
    assert errno.ENOSYS == refused.value.errno


FAULT = ReadError("*/03.rec", times=1)


def _until_error(iterator):
    with pytest.raises(OSError, match="Input/output error"):
        list(iterator)


def test_an_iterator_continues_after_an_error(records):
    with inject(FAULT):
        iterator = iter(DataLoader(Records(records), num_workers=1))
        _until_error(iterator)
    assert len(list(iterator)) == COUNT - 4


@pytest.mark.slow
def test_a_worker_that_starts_after_the_scope_has_no_faults(records):
    """A spawned one takes seconds to come to its arming."""
    loader = DataLoader(Records(records), num_workers=1, multiprocessing_context="spawn")
    with inject(ReadError("*"), require_fired=False):
        iterator = iter(loader)
    assert len(list(iterator)) == COUNT


pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"  # torchdata 0.11 with torch 2.13.
)
FAILED = "OSError: [Errno 5] Input/output error"


def _paths(folder):
    return [str(path) for path in sorted(folder.iterdir())]


def _contents(folder):
    return [Path(path).read_bytes() for path in _paths(folder)]


def _loader(folder, **options):
    return alone(Tries(_paths(folder), WAYS["read"]), **options)


def _contents_of(batches):
    return [each.gave for each in batches]


def _identity(sample):
    return sample


def _stateful(folder):
    dataset = Tries(_paths(folder), WAYS["read"])
    return StatefulDataLoader(dataset, batch_size=None, collate_fn=_identity, num_workers=2)


@pytest.fixture(name="other_records")
def _other_records(tmp_path):
    return write_records(tmp_path / "others")


def test_two_loaders_in_turns(records, other_records):
    faults = [ReadError("*/records/*", nth=2, times=1), ReadError("*/others/*", nth=3, times=1)]
    with inject(*faults) as injection:
        pairs = list(zip(_loader(records), _loader(other_records), strict=True))
    first_epoch, second_epoch = (_contents_of(each) for each in zip(*pairs, strict=True))
    assert (1, 2) == (first_epoch.index(FAILED), second_epoch.index(FAILED))
    assert [COUNT - 1] * 2 == [
        sum(a == b for a, b in zip(gave, _contents(folder), strict=True))
        for gave, folder in ((first_epoch, records), (second_epoch, other_records))
    ]
    assert [1, 1] == [each.fired for each in injection.faults]


def test_a_death_in_one_of_two_loaders(records, other_records):
    with inject(WorkerKilled(at=9)) as injection:
        short = iter(alone(Tries(_paths(other_records)[:8], WAYS["read"])))
        assert _contents(other_records)[:4] == _contents_of([next(short) for _ in range(4)])
        read = epoch(_loader(records))
        assert _contents(other_records)[4:8] == _contents_of(short)
    assert _contents(records)[:8] == _contents_of(read.batches)
    assert {signal.SIGKILL} == read.signals
    assert (1, 2) == (injection.fired, len(injection.workers))


def _warning_places(records):
    """Where torch's warning about memory that cannot be pinned comes from."""
    with pytest.warns(UserWarning, match="pin_memory") as warnings:
        list(DataLoader(Records(records), num_workers=1, pin_memory=True))
    return [(each.filename, each.lineno) for each in warnings]


def test_a_warning_of_torchs_iterator_comes_from_where_it_comes(records):
    """A filter of warnings by module holds under a fault, too."""
    if missing_accelerator() is None:
        pytest.skip("an accelerator pins memory")
    bare = _warning_places(records)
    with inject(ReadError("*.nothing"), require_fired=False):
        armed = _warning_places(records)
    assert bare == armed


def test_the_state_of_a_stateful_loader(records):
    with inject(ReadError("*/02.rec")):
        loader = _stateful(records)
        iterator = iter(loader)
        first_batches = _contents_of([next(iterator) for _ in range(6)])
        state = loader.state_dict()
        iterator._shutdown_workers()
    fresh = _stateful(records)
    fresh.load_state_dict(state)
    assert [2] == [number for number, each in enumerate(first_batches) if each == FAILED]
    assert _contents(records)[6:] == _contents_of(fresh)


@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning"  # Python 3.12 on; it is what is under test.
)
def test_a_loader_that_a_thread_drives(records):
    with inject(ReadError("*/05.rec")) as injection:
        gave = in_a_thread(lambda: _contents_of(_loader(records, num_workers=2)))
    assert [5] == [number for number, each in enumerate(gave) if each == FAILED]
    assert injection.fired == 1


def test_a_fault_out_of_order(records):
    slow = SlowRead("*.rec", seconds=0.05, workers=(0,))
    with inject(slow, ReadError("*/05.rec")) as injection:
        read = epoch(_loader(records, num_workers=2, in_order=False))
    gave = {each.index: each.gave for each in read.batches}
    expected = dict(enumerate(_contents(records)))
    assert {**expected, 5: FAILED} == gave
    assert [True, True] == [each.fired > 0 for each in injection.faults]
