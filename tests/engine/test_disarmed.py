"""A fault that does not happen is told: its scope fails, and says what was reached instead."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import FaultNotFiredError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from support.epochs import alone, epoch
from support.readers import CONTENT, FORMATS, Formats, write_formats
from support.rows import rows

ON_NOTHING = [kind("*.nothing") for kind in (OpenError, ReadError, TruncatedFile, ClosedDescriptor)]
NOT_DUE = [
    OpenError("*.data", nth=10),
    ReadError("*.data", nth=1000),
    ClosedDescriptor("*.data", nth=10),
    TruncatedFile("*.data", keep=1 << 30),
    DescriptorExhaustion(headroom=100),
]
NOT_HERE = [
    WorkerKilled(at=len(FORMATS) + 1),
    WorkerKilled(worker=1),
    ReadError("*.data", workers=(1,)),
    DescriptorExhaustion(workers=(1,)),
]


@pytest.fixture(name="paths", scope="module")
def _paths(tmp_path_factory):
    """A file per reader."""
    return write_formats(tmp_path_factory.mktemp("formats") / "files")


@pytest.fixture(name="disarmed", scope="module")
def _disarmed(paths):
    """An epoch of every reader under all of these faults, and what is told of each."""
    with inject(*ON_NOTHING, *NOT_DUE, *NOT_HERE, require_fired=False) as injection:
        read = epoch(alone(Formats(paths)))
    messages = {
        facts.fault: explain_unfired([facts], injection.workers, "kernel")
        for facts in injection.faults
    }
    return read, injection, messages


def test_every_reader_works_under_disarmed_faults(disarmed, paths):
    read, injection, _ = disarmed
    assert [(path, CONTENT) for path in paths] == read.batches
    assert ([0], 0, 0) == (read.exit_codes, injection.fired, injection.mentioned)


@rows("fault", ON_NOTHING, ids=repr)
def test_a_glob_that_matches_nothing(disarmed, paths, fault):
    text = disarmed[2][fault]
    assert f"{fault!r} never fired: no operation matched it" in text
    assert all(path in text for path in paths)


@rows("fault", NOT_DUE, ids=repr)
def test_triggers_that_are_not_met(disarmed, paths, fault):
    _, injection, messages = disarmed
    (reached,) = (each.matched for each in injection.faults if each.fault == fault)
    assert reached >= len(paths)
    assert f"{fault!r} never fired: {reached} operations matched it in" in messages[fault]


@rows("fault", NOT_HERE, ids=repr)
def test_workers_that_are_not_there(disarmed, paths, fault):
    message = f"{re.escape(repr(fault))} never fired.*worker 0: {len(paths)}"
    assert re.search(message, disarmed[2][fault])


def test_no_loader_at_all():
    message = "no DataLoader worker was started"
    with pytest.raises(FaultNotFiredError, match=message), inject(ReadError("*.data")):
        pass


def test_each_fault_has_to_fire(paths):
    armed, idle = WorkerKilled(at=2), OpenError("*.nothing")
    with pytest.raises(FaultNotFiredError, match=re.escape(repr(idle))), inject(armed, idle):
        epoch(alone(Formats(paths)))
