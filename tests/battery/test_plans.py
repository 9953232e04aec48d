"""Which faults a check asks for, given what workers did in a run without a fault."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, WorkerFacts
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from support.datasets import Records, write_records
from support.facts import EIO, EPOCH_1, fired, unfired
from support.rows import rows

A, B, C = "/data/a.bin", "/data/b.bin", "/data/c.bin"
PEER = "tcp://192.0.2.1:443"


@pytest.fixture(name="real", scope="module")
def _real(tmp_path_factory):
    """The workload of a dataset, for all that does not matter here."""
    folder = write_records(tmp_path_factory.mktemp("plans") / "records")
    return Battery(lambda: Records(folder)).workload


def _workload(real, *workers, engine="kernel", start_method="fork", writable=(), **counts):
    """One whose workers did that to these files."""
    counts = {"fetches": 4, **counts}
    facts = tuple(
        WorkerFacts(number, 7 + number, files=files, **counts)
        for number, files in enumerate(workers)
    )
    fault_free = replace(real.fault_free, workers=facts, engine=engine, start_method=start_method)
    fault_free = replace(fault_free, passes=())  # Those of the real one are of other workers.
    paths = frozenset(path for files in workers for path in files)
    return replace(real, fault_free=fault_free, paths=paths, globs=("*",), own=OwnFolders(writable))


def _plan(name, workload):
    """The faults of each variant, or the reason why there is none."""
    found = CHECKS[name].plan(workload)
    return found.reason if hasattr(found, "reason") else [each.faults for each in found]


def _titles(name, workload):
    return [each.title for each in CHECKS[name].plan(workload)]


READ = FileCounts(1, 2, 64)
MAPPED = FileCounts(0, 1, 0)
"""Before the worker began."""
OPENED = FileCounts(1, 0, 0)


@rows(
    ("check", "expected"),
    [
        ("open-error", faults.OpenError((A, B))),
        ("file-missing", faults.OpenError(B, errno=errno.ENOENT)),
        ("permission-denied", faults.OpenError((A, B), errno.EACCES)),
        ("read-error-first", faults.ReadError((A, B))),
        ("read-error-later", faults.ReadError((A, B), nth=2)),
        ("read-error-transient", faults.ReadError((A, B), nth=2, times=1)),
        ("truncated-half", faults.TruncatedFile((A, B), keep=0.5)),
        ("truncated-tail", faults.TruncatedFile((A, B), keep=0.9)),
        ("truncated-empty", faults.TruncatedFile(B, keep=0)),
        ("closed-descriptor", faults.ClosedDescriptor((A, B))),
        ("hung-read", faults.HungRead((A, B))),
        ("descriptor-exhaustion", faults.DescriptorExhaustion()),
        ("worker-killed-first", faults.WorkerKilled()),
        ("worker-killed-middle", faults.WorkerKilled(at=3)),
        ("worker-killed-last", faults.WorkerKilled(at=4)),
        ("worker-killed-reading", faults.WorkerKilled(reading=(A, B), worker=0)),
        ("worker-killed-sending", faults.WorkerKilled(sending=True)),
        ("truncated-at-rest", faults.TruncatedFile((A, B), keep=0.5)),
        ("empty-at-rest", faults.TruncatedFile(B, keep=0)),
        ("missing-at-rest", faults.OpenError(B, errno=errno.ENOENT)),
        ("corrupted-at-rest", faults.CorruptedFile((A, B), flips=8)),
        ("read-error-at-rest", faults.ReadError((A, B))),
    ],
)
def test_a_check_of_one_fault(check, expected, real):
    """It is about the files that workers use, and about one of them where others may step in."""
    assert _plan(check, _workload(real, {A: READ, B: READ}, {A: READ})) == [(expected,)]


@rows(
    ("counts", "titles"),
    [
        (READ, ["a.bin and 2 files like it", "i.json"]),
        (OPENED, ["a.bin and 2 files like it", "i.json"]),
        (MAPPED, ["a.bin and 2 files like it"]),
        (FileCounts(0, 0, 0, 1), [""]),
    ],
)
def test_files_of_another_kind_are_asked_on_their_own(counts, titles, real):
    """Also those that are only opened, which C reads; and none that are only written."""
    workload = _workload(real, {"/data/i.json": counts, A: READ, B: READ, C: READ})

    assert _titles("open-error", workload) == titles


@rows("name", [name for name in CHECKS if name.endswith("-at-rest")])
def test_a_file_that_is_only_opened_is_none_at_rest(name, real):
    """It may be a lock, which is missing until somebody makes it."""
    workload = _workload(real, {A: OPENED})

    assert _plan(name, workload) == "neither its constructor nor its workers read a data file"


def test_a_text_is_cut_between_two_lines_as_well(real, tmp_path):
    """The file looks whole then, and nothing but a count can tell."""
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {number}\n" for number in range(100)), encoding="ascii")
    half, tail = _plan("truncated-at-rest", _workload(real, {str(text): READ}))

    assert half == (faults.TruncatedFile(str(text), keep=0.5),)
    assert text.read_bytes()[: tail[0].keep].endswith(b"\n")


@rows(("reads", "nth"), [((2, 0), 2), ((3, 3), 2), ((5, 1), 2), ((3, 6), 3), ((9, 0), 4)])
def test_half_way_is_that_of_the_busiest_worker(reads, nth, real):
    """It is the last read of the first half, and never the first of all."""
    files = [{A: FileCounts(1, count, 64)} for count in reads]

    assert _plan("read-error-later", _workload(real, *files)) == [(faults.ReadError(A, nth=nth),)]


def test_one_read_has_no_half(real):
    """The check does not apply."""
    reason = _plan("read-error-later", _workload(real, {A: FileCounts(1, 1, 64)}))

    assert reason.startswith("the busiest worker makes 1 read")


def test_each_read_is_cut_in_two_ways(real):
    """By halves, and to the mean; of reads of one byte there is no half."""
    two = _workload(real, {A: FileCounts(1, 4, 8)})
    one = _workload(real, {A: FileCounts(1, 4, 7)})

    assert _titles("short-read", two) == ["half of each read", "reads of 2 bytes at most"]
    by_halves, to_mean = _plan("short-read", two)
    assert by_halves == (faults.ShortRead(A, max_bytes=0.5),)
    assert to_mean == (faults.ShortRead(A, max_bytes=2),)
    assert _titles("short-read", one) == ["half of each read"]


@rows(("reads", "every"), [(1000, None), (1001, 3), (1999, 3), (4000, 9)])
def test_of_very_many_reads_some_are_cut(reads, every, real):
    """The first thousand, and an odd rhythm of the others: headers and data take turns."""
    found, *_ = _plan("short-read", _workload(real, {A: FileCounts(1, reads, reads)}))

    if every is None:
        assert found == (faults.ShortRead(A, max_bytes=0.5),)
    else:
        first = faults.ShortRead(A, max_bytes=0.5, times=1000)
        assert found == (first, faults.ShortRead(A, max_bytes=0.5, every=every))


@pytest.mark.parametrize(
    ("paths", "titles", "last"), [((A,), [""], A), ((A, B), ["every file", "one file"], B)]
)
def test_damage_is_in_every_file_and_in_one(paths, titles, last, real):
    """What comes in place of one can be told while the others are whole."""
    workload = _workload(real, dict.fromkeys(paths, READ))

    assert _titles("corrupted-file", workload) == titles
    assert _plan("corrupted-file", workload)[-1] == (faults.CorruptedFile(last, flips=8),)


@rows(("fetches", "middle", "last"), [(1, None, None), (2, 2, 2), (3, 2, 3), (5, 3, 5)])
def test_a_death_comes_half_way_and_at_the_end(fetches, middle, last, real):
    """Where worker 0 makes only one batch, that is the first."""
    workload = _workload(real, {A: READ}, fetches=fetches)
    for check, at in (("worker-killed-middle", middle), ("worker-killed-last", last)):
        found = _plan(check, workload)
        assert found == [(faults.WorkerKilled(at=at),)] if at else isinstance(found, str)


@rows(
    ("files", "engine", "worker"),
    [
        (({A: READ}, {A: READ}), "kernel", 0),
        (({A: MAPPED}, {A: READ}), "kernel", 1),
        (({}, {A: FileCounts(0, 1, 9)}), "kernel", 1),
        (({}, {A: FileCounts(1, 1, 0)}), "kernel", 1),
        (({A: MAPPED}, {A: READ}), "python", 0),
    ],
)
def test_a_worker_that_reads_by_system_calls_dies(files, engine, worker, real):
    """What was mapped before it began, it reads without any."""
    found = _plan("worker-killed-reading", _workload(real, *files, engine=engine))

    assert found == [(faults.WorkerKilled(reading=A, worker=worker),)]


@pytest.mark.parametrize("check", ["hung-read", "worker-killed-reading"])
def test_nobody_reads_by_system_calls(check, real):
    """No read can hang, and nobody dies in one."""
    assert "opened or mapped before they started" in _plan(check, _workload(real, {A: MAPPED}))


@rows(
    ("files", "engine", "cut"),
    [
        ({A: READ, B: MAPPED}, "kernel", A),
        ({A: FileCounts(1, 1, 0), B: MAPPED}, "kernel", A),
        ({A: FileCounts(0, 1, 9), B: OPENED}, "kernel", A),
        ({A: MAPPED}, "kernel", "read only what was mapped before they began"),
        ({A: OPENED}, "kernel", "its workers read no data file"),
        ({A: OPENED}, "python", A),
        ({A: OPENED, B: READ}, "python", B),
    ],
)
def test_a_file_that_is_cut_off_can_be_found_so(files, engine, cut, real):
    """Not in a mapping from before; C may read unseen what Python opens."""
    found = _plan("truncated-half", _workload(real, files, engine=engine))

    if cut in files:
        assert found == [(faults.TruncatedFile(cut, keep=0.5),)]
    else:
        assert cut in found


def test_what_hides_reads_is_told(real):
    """The files may be read all the same."""
    workload = _workload(real, {A: OPENED}, unobserved={"io_uring_setup": 2})

    told = "its workers read no data file that the engine sees: io_uring_setup (2)"
    assert _plan("read-error-first", workload) == told


@rows(
    ("start_method", "files", "group", "is_advised"),
    [
        ("fork", {A: MAPPED}, True, True),
        ("spawn", {A: MAPPED}, True, False),
        ("fork", {A: OPENED}, False, False),
        ("fork", {}, False, False),
    ],
)
def test_files_that_were_open_before_are_told(start_method, files, group, is_advised, real):
    """They are a group of their own in a summary, and another start method reaches them."""
    found = CHECKS["open-error"].plan(_workload(real, files, start_method=start_method))

    if hasattr(found, "reason"):
        assert bool(found.group) == group
        assert ("'multiprocessing_context': 'forkserver'" in found.reason) == is_advised
    else:
        assert not group


@pytest.mark.parametrize(("start_method", "applies"), [("fork", True), ("forkserver", False)])
def test_a_death_within_a_message_needs_a_child(start_method, applies, real):
    """Of a fork server's child the loader never hears."""
    found = _plan("worker-killed-sending", _workload(real, {A: READ}, start_method=start_method))

    assert isinstance(found, list) == applies


@rows(
    ("counts", "titles", "nth"),
    [
        (FileCounts(1, 9, 99, longest=5, longest_offset=64, longest_bytes=32), 2, 5),
        (FileCounts(1, 9, 99), 2, 4),
        (FileCounts(1, 4, 99), 2, 2),
        (FileCounts(1, 3, 99), 1, None),
    ],
)
def test_an_error_in_the_first_epoch_is_at_two_reads(counts, titles, nth, real):
    """The first, and the longest or one half way; a worker that reads little has only the one."""
    workload = _workload(real, {A: counts})
    found = _plan("read-error-next-epoch", workload)

    assert found[0] == (faults.ReadError(A, times=1),)
    assert len(_titles("read-error-next-epoch", workload)) == titles
    if nth:
        assert found[1] == (faults.ReadError(A, nth=nth, times=1),)


def test_the_longest_of_all_reads_is_named(real):
    """Over all workers and files, with its place."""
    short, long = (
        FileCounts(1, 9, 99, longest=2, longest_offset=8, longest_bytes=size) for size in (16, 32)
    )
    found = CHECKS["read-error-next-epoch"].plan(_workload(real, {A: short}, {B: long, C: short}))

    assert found[1].title == "read 2 of b.bin, which is the longest: 32 bytes at 8"


@rows(
    ("samples", "files", "workers", "more"),
    [
        (None, 1, 2, None),
        (16, 1, 1, None),
        (16, 1, 2, 3),
        (18, 1, 2, 4),
        (60, 1, 2, 3),
        (16, 3, 2, 5),
        (16, 1, 4, 5),
        (300, 1, 4, 7),
    ],
)
def test_a_stream_is_tried_with_more_workers(samples, files, workers, more, real):
    """By the first number of the next four by which nothing of it can be divided."""
    paths = [f"/data/{each}.bin" for each in range(files)]
    workload = _workload(real, *[dict.fromkeys(paths, READ)] * workers)
    variants = CHECKS["workers-agree"].plan(replace(workload, stream_count=samples))

    assert variants[0].changes == {}
    asked = [each.changes for each in variants[1:]]
    assert asked == ([{"num_workers": more, "drop_last": False}] if more else [])


@rows(
    ("writes", "nths"),
    [((1, 0), [1]), ((2, 0), [2]), ((1, 3), [2, 3]), ((4, 2), [3, 4])],
)
def test_a_disk_fills_up_half_way(writes, nths, real):
    """At two writes one after the other, if the busiest worker makes so many."""
    files = [{"/trial/a.pt": FileCounts(1, 0, 0, count)} for count in writes]
    found = _plan("disk-full", _workload(real, *files, writable=("/trial",)))

    assert found == [(faults.WriteError("/trial/*", errno.ENOSPC, nth=nth),) for nth in nths]


def test_a_worker_that_writes_dies(real):
    """The first of those that write in the trial's own folder."""
    wrote, elsewhere = {"/trial/a.pt": FileCounts(1, 0, 0, 1)}, {A: FileCounts(1, 0, 0, 1)}
    found = _plan(
        "worker-killed-writing", _workload(real, elsewhere, wrote, wrote, writable=("/trial",))
    )

    assert found == [(faults.WorkerKilled(writing="/trial/*", worker=1),)]


@rows(
    ("files", "engine", "says"),
    [
        ({A: FileCounts(1, 0, 0, 1)}, "kernel", f"its workers write {A}, and no write fails"),
        ({A: READ}, "kernel", "its workers write no file"),
        ({A: READ}, "python", "the python engine saw its workers write no file"),
    ],
)
def test_a_check_of_writes_says_why_it_does_not_apply(files, engine, says, real):
    """Faults of writing happen in the trial's own folders only."""
    assert _plan("write-error", _workload(real, files, engine=engine)).startswith(says)


@rows(
    ("check", "titles", "expected"),
    [
        ("connect-error", [""], faults.ConnectError("tcp://*")),
        ("connection-hung", [""], faults.HungRead("tcp://*")),
        (
            "connection-reset",
            ["before an answer", "after 1024 bytes of an answer"],
            faults.ConnectionReset("tcp://*", after=1024),
        ),
        (
            "connection-closed",
            ["before an answer", "after 1024 bytes of an answer"],
            faults.ConnectionClosed("tcp://*", after=1024),
        ),
    ],
)
def test_checks_of_connections(check, titles, expected, real):
    """They apply where workers make some."""
    workload = _workload(real, {}, connections={PEER: 2})

    assert _titles(check, workload) == titles
    assert _plan(check, workload)[-1] == (expected,)
    assert "make no TCP connection" in _plan(check, _workload(real, {A: READ}))


@rows(
    ("check", "facts", "applies"),
    [
        ("short-read", FaultFacts(EIO, 0), False),
        ("short-read", FaultFacts(EIO, 1), True),
        ("connection-reset", FaultFacts(EIO, 0), False),
        ("connection-reset", FaultFacts(EIO, 1), True),
        ("read-error-next-epoch", FaultFacts(EIO, 0), True),
        ("read-error-next-epoch", *unfired(EIO), False),
        ("read-error-next-epoch", *fired(EIO), True),
        ("closed-descriptor", FaultFacts(faults.ClosedDescriptor(B), 0), False),
        ("closed-descriptor", FaultFacts(faults.ClosedDescriptor(A), 0), True),
        ("closed-descriptor", FaultFacts(faults.ClosedDescriptor(B), 1), True),
    ],
)
def test_a_trial_may_show_that_a_check_does_not_apply(check, facts, applies, real):
    """Where its fault found nothing to happen to, and no dataset could have helped that."""
    workload = _workload(real, {A: READ})
    trial = replace(workload.fault_free, schedule=(facts.fault,), faults=(facts,))

    assert (CHECKS[check].skip_reason(workload, trial) is None) == applies


EXHAUSTED = faults.DescriptorExhaustion()
OF_TORCH, OF_DATA, OF_CODE = (
    fired(EXHAUSTED, path=path, call="socket") for path in (None, A, "/usr/lib/libm.so")
)


@rows(
    ("files", "facts", "changes", "says"),
    [
        ({A: MAPPED}, unfired(EXHAUSTED), {}, "its workers need no descriptor"),
        ({A: OPENED}, unfired(EXHAUSTED), {}, None),
        ({A: MAPPED}, OF_TORCH, {"timed_out": True}, "torch needs one to share a batch"),
        ({A: OPENED}, OF_TORCH, {"timed_out": True}, "torch needs one to share a batch"),
        ({A: OPENED}, OF_CODE, {"timed_out": True}, "torch needs one to share a batch"),
        ({A: OPENED}, OF_DATA, {"timed_out": True}, None),
        ({A: OPENED}, (*OF_TORCH, *OF_DATA), {"timed_out": True}, None),
        ({A: OPENED}, (*OF_TORCH, *fired(EIO, path=None)), {"timed_out": True}, None),
        ({A: OPENED}, OF_TORCH, {"timed_out": False}, None),
        ({A: OPENED}, OF_TORCH, {"timed_out": True, "phase": RECOVERY}, None),
        ({A: OPENED}, unfired(EXHAUSTED), {"timed_out": True}, None),
    ],
)
def test_torch_needs_a_descriptor_too(files, facts, changes, says, real):
    """Where only torch went without, it hangs, whatever the dataset does."""
    workload = _workload(real, files)
    trial = replace(workload.fault_free, faults=facts, **{"phase": EPOCH_1, **changes})
    found = CHECKS["descriptor-exhaustion"].skip_reason(workload, trial)

    assert (found is None) == (says is None)
    assert says is None or says in found.reason


@rows(
    ("left", "says"),
    [
        ([()], None),
        ([("/tmp/a",), ()], None),
        ([("/tmp/a",), ("/tmp/b", "/tmp/c")], "2 of 2 workers left 3 temporary files (/tmp/b)"),
        ([(), ("/tmp/a",), ("/tmp/b",)], "2 of 3 workers left 2 temporary files (/tmp/b)"),
    ],
)
def test_files_of_most_workers_are_leftovers(left, says, real):
    """One that a single worker makes is a cache, and the others find it."""
    workers = tuple(WorkerFacts(0, 7, 1, {}, leftover_files=each) for each in left)
    found = CHECKS["leftovers"].extra_rule(replace(real.fault_free, workers=workers), None)

    assert (found and found.sentence) == says
