"""A lock that torch never releases again is named, where the loop is the user's."""

from __future__ import annotations

import threading

from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records
from support.waiting import until


def test_a_lost_lock_is_named_while_torch_waits_for_it(records, capsys):
    """The text comes while the loop hangs, and torch goes on as soon as the lock is released."""
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
    """An ordinary epoch writes nothing to standard error."""
    with inject(ReadError("*.rec", nth=1000), require_fired=False):
        list(DataLoader(Records(records), num_workers=2, batch_size=4))

    assert capsys.readouterr().err == ""
