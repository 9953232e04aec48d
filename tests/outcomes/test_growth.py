"""What grows is named, by where and by how much."""

from __future__ import annotations

import dataclasses

from pytest_dataloader_faults.outcomes import Footprint, Pass
from pytest_dataloader_faults.outcomes.judge.leaks import judge_growth
from support.facts import ordinary
from support.rows import rows

_KIB = 1024


def _outcome(**each_epoch):
    """One whose loader's process has so much more of something after each epoch."""
    prints = tuple(
        Footprint(epoch, "loader", **{**_nothing(), **_times(epoch, each_epoch)})
        for epoch in range(1, 33)
    )
    return dataclasses.replace(ordinary(Pass()), footprints=prints)


def _nothing():
    return dict.fromkeys(("memory", "descriptors", "threads", "pinned", "device"), 0)


def _times(epoch, each_epoch):
    return {name: epoch * count for name, count in each_epoch.items()}


@rows(
    ("each_epoch", "says"),
    [
        ({"memory": 70 * _KIB}, "takes 70 KiB more memory in the loader's process"),
        ({"pinned": 4 * _KIB}, "takes 4 KiB more pinned memory in the loader's process"),
        ({"device": 4 * _KIB}, "takes 4 KiB more memory of the accelerator in the loader's"),
        ({"threads": 1}, "leaves 1 more thread in the loader's process"),
        ({"threads": 2}, "leaves 2 more threads in the loader's process"),
        ({"descriptors": 1}, "leaves 1 more descriptor in the loader's process"),
        ({"pinned": 90 * _KIB, "memory": 90 * _KIB}, "90 KiB more pinned memory"),
    ],
)
def test_what_grows_is_told_by_its_name(each_epoch, says):
    """The most particular first: pinned memory may be counted as memory, too."""
    verdict, sentence, _ = judge_growth(_outcome(**each_epoch))

    assert (verdict, says in sentence) == ("leaked", True), sentence


@rows("each_epoch", [{"pinned": 1000}, {"device": 1000}, {"memory": 60 * _KIB}])
def test_less_than_that_is_not_told(each_epoch):
    """Below it a healthy process may lie."""
    assert judge_growth(_outcome(**each_epoch)) is None
