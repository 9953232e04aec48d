"""Processes and threads that a worker starts meet its faults, and read rightly otherwise."""

import errno
import multiprocessing
import os
import platform
import signal
import sys
from pathlib import Path

import pytest

from pytest_dataloader_faults.faults import OpenError, ReadError, TruncatedFile
from support.attempts import CONTENT, attempt, attempt_followed, error_of
from support.epochs import alone
from support.tries import FAMILIES, WAYS, Tries, child, in_threads, standard_input

EIO = os.strerror(errno.EIO)
KERNEL = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))


def test_children_of_a_worker_read_rightly(tmp_path):
    paths = {way: tmp_path / f"{way}.rec" for way in FAMILIES}
    for path in paths.values():
        path.write_bytes(CONTENT)
    ways = list(FAMILIES) * 2
    gave, injection = attempt_followed(ways, lambda way: FAMILIES[way](str(paths[way])), "*.rec")
    assert [] == [way for way, each in zip(ways, gave, strict=True) if each != CONTENT]
    assert {str(path) for path in paths.values()} <= set(injection.workers[0].files)


def test_children_are_counted_with_their_worker(path):
    def read(path):
        return [each(path) for each in (WAYS["pread"], error_of(child), WAYS["pread"])]

    ((first_read, child_read, last_read),), injection = attempt(
        [path], read, OpenError("*.rec", nth=2, times=1)
    )
    assert (CONTENT, CONTENT) == (first_read, last_read)
    assert EIO in child_read
    (firing,) = injection.faults[0].firings
    assert firing.pid != injection.workers[0].pid


def test_a_program_fed_by_standard_input(path):
    """dup2(2) chooses the number, so reads of it are out of reach, which is told; opens are not."""
    (gave,), injection = attempt_followed([path], standard_input, "*.rec")
    assert (CONTENT, {"dup2": 1}) == (gave, injection.workers[0].unobserved)
    (gave,), _ = attempt([path], standard_input, TruncatedFile("*.rec", keep=50))
    assert CONTENT[:50] == gave


def test_multiprocessing_is_closed_to_workers(path):
    """It refuses children of daemonic processes, which torch's workers are, armed or not."""

    def read(_path):
        multiprocessing.get_context("fork").Process(target=print).start()

    expected = "AssertionError: daemonic processes are not allowed to have children"
    assert [expected] == [each.gave for each in alone(Tries([path], read))]
    assert [expected] == attempt_followed([path], read, "*.rec")[0]


def test_threads_of_a_worker_share_its_count(records):
    paths = sorted(map(str, records.iterdir())) * 8
    contents = [Path(path).read_bytes() for path in paths]
    fault = OpenError("*.rec", nth=50, times=3)
    (gave,), injection = attempt([paths], in_threads, fault)
    failed = [place for place, each in enumerate(gave) if isinstance(each, str)]
    assert 3 == len(failed)
    assert all(EIO in gave[place] for place in failed)
    spared = [place for place in range(len(paths)) if place not in failed]
    assert [contents[place] for place in spared] == [gave[place] for place in spared]
    assert (len(paths), 3) == (injection.matched, injection.fired)


def test_threads_meet_the_faults_of_their_files_only(records):
    paths = sorted(map(str, records.iterdir())) * 8
    faults = ReadError("*/07.rec"), TruncatedFile("*/09.rec", keep=9)
    (gave,), injection = attempt([paths], in_threads, *faults)
    wrong = {place for place, each in enumerate(gave) if each != Path(paths[place]).read_bytes()}
    assert {*range(7, len(paths), 16), *range(9, len(paths), 16)} == wrong
    assert all(each.fired >= 8 for each in injection.faults)


@pytest.mark.skipif(KERNEL < (5, 19), reason="a call is restarted by each signal up to Linux 5.18")
def test_calls_that_signals_interrupt_are_counted_once(tmp_path):
    path = tmp_path / "file.rec"
    path.write_bytes(CONTENT)

    def read(path):
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            return {WAYS["pread"](path) for _ in range(2000)}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    (gave,), injection = attempt_followed([str(path)], read, "*.rec")
    assert {CONTENT} == gave
    assert [2000] * 3 == [each.matched for each in injection.faults[:3]]


def test_a_tracer_looks_up_source_files_while_a_worker_is_armed(path):
    """As coverage does, by a call that the filter hands over."""
    lookups = set()

    def tracer(frame, _event, _argument):
        key = os.getpid(), frame.f_code.co_filename
        if key not in lookups:
            lookups.add(key)
            os.path.lexists(key[1])

    earlier_trace = sys.gettrace()
    sys.settrace(tracer)
    try:
        (gave,), _ = attempt([path], WAYS["pread"], TruncatedFile("*.rec", keep=50))
    finally:
        sys.settrace(earlier_trace)
    assert CONTENT[:50] == gave
