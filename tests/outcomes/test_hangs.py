"""Two hangs are the same if they are at the same line of the dataset."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

import pytest_dataloader_faults as package
from pytest_dataloader_faults.outcomes import Activity, AtDeadline, Pass
from pytest_dataloader_faults.outcomes.judge.hangs import (
    gave_up,
    is_at,
    places_of,
    tries_again,
    waits_for_thread,
)
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from support.facts import EPOCH_1, ordinary, raised
from support.rows import rows

_PYTHON, _TORCH, _OURS = (os.path.dirname(each.__file__) for each in (os, torch, package))
FETCH = (f"{_TORCH}/utils/data/_utils/fetch.py", 54, "fetch")
LOOP = (f"{_TORCH}/utils/data/_utils/worker.py", 374, "_worker_loop")
NEXT = (f"{_TORCH}/utils/data/dataloader.py", 725, "__next__")
WAIT, QUEUE = (
    (f"{_PYTHON}/{name}.py", 327, "wait") for name in ("threading", "multiprocessing/queues")
)
OURS = (f"{_OURS}/_engine/worker/fetch_hooks.py", 75, "fetch_and_report")
TEST = ("/home/me/test_data.py", 7, "test_it")
READ, SAMPLE = ("/home/me/data.py", 18, "read"), ("/home/me/data.py", 30, "__getitem__")
AT_READ, AT_SAMPLE = "/home/me/data.py:18 in read", "/home/me/data.py:30 in __getitem__"


def _hung(*threads, phase=EPOCH_1):
    """A trial whose processes had these threads, each a list of frames, the innermost first."""
    texts = [
        "\n".join(
            [
                f"\nProcess {number} (sleeping):",
                f"{'Current thread' if number % 2 else 'Thread'} 0x0007 (most recent call first):",
                *(f'  File "{path}", line {line} in {name}' for path, line, name in frames),
            ]
        )
        for number, frames in enumerate(threads)
    ]
    return replace(ordinary(Pass()), stacks="\n".join(texts), timed_out=True, phase=phase)


@rows(
    ("frames", "place"),
    [
        pytest.param([SAMPLE, OURS, FETCH, OURS, LOOP, TEST], AT_SAMPLE, id="sleeps"),
        pytest.param([WAIT, WAIT, SAMPLE, FETCH, LOOP, TEST], AT_SAMPLE, id="waits"),
        pytest.param([READ, SAMPLE, FETCH, LOOP, TEST], AT_READ, id="in a function"),
        pytest.param([OURS, OURS, READ, SAMPLE, FETCH, LOOP], AT_READ, id="in the python engine"),
        pytest.param([("<string>", 2, "load"), READ, FETCH], AT_READ, id="in generated code"),
        pytest.param([SAMPLE, NEXT, OURS, TEST], AT_SAMPLE, id="sampler of the loader"),
        pytest.param([WAIT, QUEUE, LOOP, OURS, TEST], None, id="worker without work"),
        pytest.param([WAIT, QUEUE, NEXT, OURS, TEST], None, id="loader that waits"),
        pytest.param([WAIT, READ], None, id="thread of the dataset"),
        pytest.param([], None, id="no frame"),
    ],
)
def test_a_place_is_the_innermost_line_of_the_dataset(frames, place):
    """Libraries are not the dataset, and what calls torch is the test."""
    assert places_of(_hung(frames)) == ({place} if place else frozenset())


def test_each_process_has_a_place():
    """Workers may hang at two lines; those that wait for work have none."""
    hung = _hung([SAMPLE, FETCH, LOOP], [WAIT, QUEUE, LOOP], [READ, FETCH, LOOP])

    assert places_of(hung) == {AT_SAMPLE, AT_READ}
    assert is_at(hung, {AT_SAMPLE, AT_READ, "elsewhere"})
    assert not is_at(hung, {AT_SAMPLE})


@rows(
    ("frames", "state", "is_waiting"),
    [
        ([WAIT, WAIT, SAMPLE, FETCH, LOOP], "sleeping", True),
        ([SAMPLE, FETCH, LOOP], "sleeping, in futex_do_wait", True),
        ([SAMPLE, FETCH, LOOP], "sleeping, in hrtimer_nanosleep", False),
        ([SAMPLE, FETCH, LOOP], "sleeping", False),
        ([WAIT, QUEUE, LOOP], "sleeping, in futex_do_wait", False),
    ],
)
def test_a_wait_for_a_thread_is_seen(frames, state, is_waiting):
    """By Python's frames or by the kernel's; a worker without work waits for none."""
    hung = _hung([], frames)
    hung = replace(hung, stacks=hung.stacks.replace("(sleeping)", f"({state})"))

    assert waits_for_thread(hung) is is_waiting
    assert not waits_for_thread(replace(hung, timed_out=False))


def test_a_batch_that_was_dropped_is_a_place():
    """Then every process waits for work; but a line of the dataset says more."""
    feeder = '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 244, in _feed'
    printed = "_pickle.PicklingError: Can't pickle <class 'dbm.error'>"
    stderr = f"Traceback (most recent call last):\n{feeder}\n{printed}\n"
    waits = replace(_hung([WAIT, QUEUE, LOOP]), stderr=stderr)
    hangs = replace(_hung([WAIT, SAMPLE, FETCH, LOOP]), stderr=stderr)

    assert places_of(waits) == {"the queue of a worker, which dropped a batch"}
    assert places_of(hangs) == {AT_SAMPLE}


def test_what_did_not_hang_is_nowhere():
    """Nor is a hang that left no stacks at a place that is known."""
    ended = replace(_hung([SAMPLE, FETCH, LOOP]), timed_out=False)

    assert places_of(ended) == frozenset()
    assert not is_at(_hung(), {AT_SAMPLE})


def test_a_recovery_hangs_at_places_of_its_own():
    """No fault is left there, so it is another hang."""
    recovery = _hung([SAMPLE, FETCH, LOOP], phase=RECOVERY)

    assert places_of(recovery) == {f"{AT_SAMPLE}, without a fault"}
    assert not is_at(recovery, {AT_SAMPLE})


def test_to_sleep_at_a_line_is_a_place_of_its_own():
    """Of the process that sleeps; who waits there forever may be done never."""
    hung = _hung([SAMPLE, FETCH, LOOP], [READ, FETCH, LOOP])
    asleep = replace(hung, at_deadline=AtDeadline(Activity.SLEEPS, asleep=(1,)))

    assert places_of(asleep) == {AT_SAMPLE, f"{AT_READ} while it sleeps"}
    assert not is_at(asleep, {AT_SAMPLE, AT_READ})


@pytest.mark.parametrize("activity", [Activity.DELIVERS, Activity.READS])
def test_what_goes_on_is_nowhere(activity):
    """It is at a line that a hang may be at, too."""
    slow = replace(_hung([SAMPLE, FETCH, LOOP]), at_deadline=AtDeadline(activity))

    assert places_of(slow) == frozenset()
    assert not is_at(slow, {AT_SAMPLE})


@rows("activity", [*Activity, None])
def test_only_what_computes_may_try_again(activity):
    """At once, at the line of a hang; what is not known, and what did not hang, does not."""
    found = AtDeadline(activity) if activity else None
    hung = replace(_hung([SAMPLE, FETCH, LOOP]), at_deadline=found)

    assert tries_again(hung) is (activity is Activity.COMPUTES)
    assert not tries_again(replace(hung, timed_out=False))


@rows(
    ("error", "is_so"),
    [
        (raised("RuntimeError", "DataLoader timed out after 1 seconds"), True),
        (raised("TimeoutError", "timed out"), False),
        (None, False),
    ],
)
def test_the_loaders_own_timeout_gave_up(error, is_so):
    """Torch has no class for it."""
    assert gave_up(ordinary(Pass(exception=error))) is is_so
