"""Which workers read through one offset is told, and races at such offsets are provoked."""

from __future__ import annotations

import os

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.shared_offsets import (
    SharedOffsetBarrier,
    are_one_description,
)
from support.corpus.archives import Unbuffered
from support.corpus.handles import MappedInInit, PositionalAtFirstUse, UnbufferedInInit


def _shared(make):
    (result,) = check_dataset(make, only="workers-agree", on_fail=None)
    shared = {path for worker in result.outcome.workers for path in worker.shared_offset_files}
    return result, {os.path.basename(path) for path in shared}


def test_file_read_by_several_workers_through_one_offset_is_named(records):
    """The evidence says which file it is, beside the samples that are wrong."""
    result, shared = _shared(lambda: UnbufferedInInit(records))

    assert {"records.pack"} == shared
    assert (
        "records.pack: opened before the fork, so 2 workers share its file offset"
        in result.explanation
    )


@pytest.mark.parametrize("kind", [Unbuffered, MappedInInit, PositionalAtFirstUse])
def test_file_that_each_worker_reads_on_its_own_is_not(kind, records):
    """Neither an offset of one's own, nor a read at a place, nor a mapping is shared."""
    result, shared = _shared(lambda: kind(records))

    assert set() == shared
    assert result.passed


def test_duplicates_are_one_description_and_two_opens_are_not(tmp_path):
    """And looking leaves their flags as they were."""
    path = tmp_path / "file"
    path.touch()
    with open(path) as one, open(path) as other:
        duplicate = os.dup(one.fileno())
        try:
            assert are_one_description(one.fileno(), duplicate)
            assert not are_one_description(one.fileno(), other.fileno())
            assert os.get_blocking(duplicate)
        finally:
            os.close(duplicate)


def test_workers_at_two_files_take_turns_until_they_meet():
    """Whoever waits is relieved by the next one to come to another file."""
    came: list[str] = []
    meeting = SharedOffsetBarrier(Timers())
    for worker, path in (("A", "x"), ("B", "y"), ("A", "z"), ("B", "z")):
        meeting.arrive(path, lambda text=f"{worker} read {path}": came.append(text))

    assert came == ["A read x", "B read y", "A read z", "B read z"]
