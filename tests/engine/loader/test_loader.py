"""What loaders and workers take along."""

import errno
import os
import signal
from pathlib import Path

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.arm import _hand_over
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import Channel, Door, Hello, WorkerConfig
from pytest_dataloader_faults.faults import ReadError
from support.children import in_its_own_process
from support.datasets import COUNT, write_records
from support.epochs import alone
from support.tries import WAYS, Tries

pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"  # torchdata 0.11 with torch 2.13.
)

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


def test_two_loaders_in_turns(records, tmp_path):
    other_records = write_records(tmp_path / "others")
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
