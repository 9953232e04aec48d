"""Which faults a check asks for, given what workers did in a run without a fault."""

import errno
from dataclasses import replace

import pytest

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, Reference, WorkerFacts
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from pytest_dataloader_faults.steps import run_epochs
from support.applicability import refusal_of
from support.datasets import Records, write_records
from support.facts import EIO, EPOCH_1, fired, revised, stream_reference, unfired
from support.rows import rows

A, B, C = "/data/a.bin", "/data/b.bin", "/data/c.bin"
PEER = "tcp://192.0.2.1:443"


@pytest.fixture(name="real", scope="module")
def _real(tmp_path_factory):
    """The workload of a dataset, for all that does not matter here."""
    folder = write_records(tmp_path_factory.mktemp("plans") / "records")
    return Battery(lambda: Records(folder)).workload


def _workload(real, *workers, start_method="fork", writable=(), **counts):
    """One whose workers did that to these files."""
    counts = {"fetches": 4, **counts}
    facts = tuple(
        WorkerFacts(number, 7 + number, files=files, **counts)
        for number, files in enumerate(workers)
    )
    fault_free = revised(
        real.fault_free,
        processes=facts,
        start_method=start_method,
        passes=(),  # Those of the real one are of other workers.
    )
    paths = frozenset(path for files in workers for path in files)
    return replace(
        real,
        fault_free=fault_free,
        paths=paths,
        globs=("*",),
        own_folders=OwnFolders(writable),
        at_rest=(),
    )


def _scenarios(name, workload):
    """The scenarios that run whatever the others show."""
    return [each for each in CHECKS[name].plan_scenarios(workload) if each.unless_met is None]


def _plan(name, workload):
    """The faults of each scenario, or the reason why there is none."""
    if refusal := refusal_of(CHECKS[name].plan_scenarios, workload):
        return refusal.reason
    return [each.faults for each in _scenarios(name, workload)]


def _titles(name, workload):
    return [each.title for each in _scenarios(name, workload)]


READ = FileCounts(1, 2, 64)
MAPPED = FileCounts(0, 1, 0)
"""Before the worker began."""
OPENED = FileCounts(1, 0, 0)


@rows(
    ("check", "expected"),
    [
        ("missing-file", faults.OpenError(B, errno=errno.ENOENT)),
        ("open-error", faults.OpenError((A, B), errno.EACCES)),
        ("read-error", faults.ReadError((A, B))),
        ("read-error-once", faults.ReadError((A, B), times=1)),
        ("truncated-file", faults.TruncatedFile((A, B), keep=0.5)),
        ("empty-file", faults.TruncatedFile(B, keep=0)),
        ("closed-descriptor", faults.ClosedDescriptor((A, B))),
        ("hung-read", faults.HungRead((A, B))),
        ("descriptor-exhaustion", faults.DescriptorExhaustion()),
        ("worker-killed-sending", faults.WorkerKilled(sending=True)),
    ],
)
def test_a_check_of_one_fault(check, expected, real):
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
def test_files_of_another_kind_are_checked_separately(counts, titles, real):
    workload = _workload(real, {"/data/i.json": counts, A: READ, B: READ, C: READ})

    assert _titles("open-error", workload) == titles


def test_files_of_the_same_name_are_told_apart_by_their_folders(real):
    folders = [f"{part}/{kind}" for part in "ab" for kind in "xy"]
    paths = [f"/{folder}/{number}.png" for folder in folders for number in range(1, 3)]
    workload = _workload(real, dict.fromkeys(paths, READ))

    like_it = "1.png and 1 file like it"
    assert _titles("open-error", workload) == [f"{folder}/{like_it}" for folder in folders]
    images = _workload(real, dict.fromkeys(paths[:4], READ))
    assert _titles("open-error", images) == [f"x/{like_it}", f"y/{like_it}"]


def test_a_text_is_cut_between_two_lines_as_well(real, tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {number}\n" for number in range(100)), encoding="ascii")
    half, tail = _plan("truncated-file", _workload(real, {str(text): READ}))

    assert half == (faults.TruncatedFile(str(text), keep=0.5),)
    assert text.read_bytes()[: tail[0].keep].endswith(b"\n")


@rows(("reads", "nth"), [((2, 0), 2), ((3, 3), 2), ((5, 1), 2), ((3, 6), 3)])
def test_halfway_is_that_of_the_busiest_worker(reads, nth, real):
    files = [{A: FileCounts(1, count, 64, longest=2, longest_bytes=32)} for count in reads]

    assert _plan("read-error", _workload(real, *files)) == [(faults.ReadError(A, nth=nth),)]


@rows(("longest", "cut"), [(0, 0.5), (25, 0.5), (26, 25)])
def test_only_reads_that_are_longer_than_others_are_cut(longest, cut, real):
    """A reader may check the length of its short header, but not of the rest."""
    counts = FileCounts(1, 4, 100, longest=2, longest_bytes=longest)

    assert _plan("short-read", _workload(real, {A: counts})) == [
        (faults.ShortRead(A, max_bytes=cut),)
    ]


@rows(("reads", "step"), [(1000, None), (1001, 3), (1999, 3), (4000, 9)])
def test_of_very_many_reads_some_are_cut(reads, step, real):
    planned, *_ = _plan("short-read", _workload(real, {A: FileCounts(1, reads, reads)}))

    if step is None:
        assert planned == (faults.ShortRead(A, max_bytes=0.5),)
    else:
        first_fault = faults.ShortRead(A, max_bytes=0.5, times=1000)
        assert planned == (first_fault, faults.ShortRead(A, max_bytes=0.5, every=step))


@rows(("count", "damaged"), [(1, [0]), (2, [0]), (5, [0, 2, 4]), (32, range(0, 32, 4))])
def test_damage_is_next_to_intact_files(count, damaged, real):
    paths = [f"/data/{number:02}.bin" for number in range(count)]
    ((fault,),) = _plan("corrupted-file", _workload(real, dict.fromkeys(paths, READ)))

    assert fault.globs == tuple(paths[number] for number in damaged)


WROTE = {"/trial/a.pt": FileCounts(1, 0, 0, 1)}
FIRST = faults.WorkerKilled()


@rows(
    ("files", "deaths"),
    [
        (({A: READ}, {A: READ}), [FIRST, faults.WorkerKilled(reading=A, worker=0)]),
        (({A: MAPPED}, {A: READ}), [FIRST, faults.WorkerKilled(reading=A, worker=1)]),
        (({}, {A: FileCounts(0, 1, 9)}), [FIRST, faults.WorkerKilled(reading=A, worker=1)]),
        (({}, {A: FileCounts(1, 1, 0)}), [FIRST, faults.WorkerKilled(reading=A, worker=1)]),
        (({A: MAPPED},), [FIRST]),
        (
            ({A: FileCounts(1, 0, 0, 1)}, WROTE, WROTE),
            [FIRST, faults.WorkerKilled(writing="/trial/*", worker=1)],
        ),
    ],
)
def test_a_worker_dies_while_it_uses_files(files, deaths, real):
    plan = _plan("worker-killed", _workload(real, *files, writable=("/trial",)))

    assert plan == [(death,) for death in deaths]


@rows(
    ("files", "cut"),
    [
        ({A: READ, B: MAPPED}, A),
        ({A: FileCounts(1, 1, 0), B: MAPPED}, A),
        ({A: FileCounts(0, 1, 9), B: OPENED}, A),
        ({A: MAPPED}, "read only files that were mapped before they started"),
        ({A: OPENED}, "its workers read no data file"),
    ],
)
def test_a_file_that_is_cut_off_can_be_found_so(files, cut, real):
    plan = _plan("truncated-file", _workload(real, files))

    if cut in files:
        assert plan == [(faults.TruncatedFile(cut, keep=0.5),)]
    else:
        assert cut in plan


@rows(("counts", "cut"), [(MAPPED, A), (FileCounts(0, 1, 0), A), (OPENED, "read a data file")])
def test_a_file_that_is_mapped_later_can_be_damaged_before(counts, cut, real):
    at_rest = replace(_workload(real, {A: counts}), is_at_rest=True)
    workload = replace(at_rest, is_at_rest=False, at_rest=(at_rest,))
    plan = _plan("truncated-file", workload)

    assert plan == [(faults.TruncatedFile(A, keep=0.5),)] if cut == A else cut in plan


def test_files_that_each_run_writes_are_damaged_in_the_workers(real):
    in_workers = _workload(real, {A: READ, B: READ})
    at_rest = replace(in_workers, paths=frozenset({A}), is_at_rest=True)
    parts = at_rest, replace(in_workers, paths=frozenset({B}))
    scenarios = _scenarios("empty-file", replace(in_workers, at_rest=parts))

    assert [each.faults[0].path for each in scenarios] == [A, B]
    assert [each.processes for each in scenarios] == [
        run_epochs(before_init=is_before) for is_before in (True, False)
    ]


@rows(("files", "nth"), [(1, 1), (2, 1), (3, 3), (4, 3)])
def test_a_read_that_only_finds_the_end_of_a_file_does_not_fail(files, nth, real):
    paths = [f"/data/{number}.bin" for number in range(files)]
    (plan,) = _plan("read-error", _workload(real, dict.fromkeys(paths, READ)))

    assert [each.nth for each in plan] == [nth]


def test_the_constructor_meets_a_disk_that_fails_if_it_reads(real):
    in_workers = _workload(real, {A: READ, B: READ})
    main = replace(in_workers.fault_free.workers[0], worker=None, files={B: READ})
    run = revised(in_workers.fault_free, processes=(main, *in_workers.fault_free.workers))
    at_rest = replace(in_workers, fault_free=run, is_at_rest=True)
    workload = replace(in_workers, at_rest=(at_rest,))

    assert _plan("read-error", workload) == [
        (faults.ReadError((A, B)),),
        (faults.ReadError(B),),
    ]
    assert _titles("read-error", workload) == ["from halfway on", "from the constructor on"]


@rows(
    ("start_method", "files", "group", "is_advised"),
    [
        ("fork", {A: MAPPED}, True, True),
        ("spawn", {A: MAPPED}, True, False),
        ("fork", {A: OPENED}, False, False),
        ("fork", {}, False, False),
    ],
)
def test_files_that_were_open_before_are_a_group(start_method, files, group, is_advised, real):
    workload = _workload(real, files, start_method=start_method)
    refusal = refusal_of(CHECKS["open-error"].plan_scenarios, workload)

    if refusal:
        assert bool(refusal.group) == group
        assert ("'multiprocessing_context': 'forkserver'" in refusal.reason) == is_advised
    else:
        assert not group


@pytest.mark.parametrize(("start_method", "applies"), [("fork", True), ("forkserver", False)])
def test_a_death_within_a_message_needs_a_child(start_method, applies, real):
    plan = _plan("worker-killed-sending", _workload(real, {A: READ}, start_method=start_method))

    assert isinstance(plan, list) == applies


@rows(
    ("counts", "nth"),
    [
        (FileCounts(1, 9, 99, longest=5, longest_offset=64, longest_bytes=32), 5),
        (FileCounts(1, 9, 99), 3),
        (FileCounts(1, 1, 99), 1),
    ],
)
def test_a_single_error_is_at_a_later_read(counts, nth, real):
    plan = _plan("read-error-once", _workload(real, {A: counts}))

    assert plan == [(faults.ReadError(A, nth=nth, times=1),)]


def test_the_longest_of_all_reads_is_named(real):
    short, long = (
        FileCounts(1, 9, 99, longest=2, longest_offset=8, longest_bytes=size) for size in (16, 32)
    )
    workload = _workload(real, {A: short}, {B: long, C: short})

    assert _titles("read-error-once", workload) == [
        "read 2 of b.bin, which is the longest: 32 bytes at 8"
    ]


@rows(
    ("samples", "files", "workers", "expected"),
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
def test_a_stream_is_tried_with_more_workers(samples, files, workers, expected, real):
    paths = [f"/data/{each}.bin" for each in range(files)]
    workload = _workload(real, *[dict.fromkeys(paths, READ)] * workers)
    stream = stream_reference(" ".join(map(str, range(samples or 0))))
    reference = stream if samples else _REFERENCE
    scenarios = CHECKS["workers-agree"].plan_scenarios(replace(workload, reference=reference))

    assert scenarios[0].loader == {}
    changes = [dict(each.loader) for each in scenarios[1:]]
    assert changes == ([{"num_workers": expected, "drop_last": False}] if expected else [])


@rows(("writes", "nths"), [((1, 0), [1]), ((2, 0), [2]), ((1, 3), [2, 3]), ((4, 2), [3, 4])])
def test_a_disk_fills_up_halfway(writes, nths, real):
    files = [{"/trial/a.pt": FileCounts(1, 0, 0, count)} for count in writes]
    plan = _plan("write-error", _workload(real, *files, writable=("/trial",)))

    assert plan == [(faults.WriteError("/trial/*", errno.ENOSPC, nth=nth),) for nth in nths]


@rows(
    ("check", "titles", "expected"),
    [
        ("hung-read", [""], faults.HungRead("tcp://*")),
        (
            "connection-error",
            [
                "refused",
                "closed after 1024 bytes of a response",
                "reset after a few responses",
                "reset once, after 1024 bytes of a response",
            ],
            faults.ConnectionReset("tcp://*", after=1024, times=1),
        ),
        (
            "http-error",
            ["404", "503 after a few requests", "a page with status 200"],
            faults.HttpError("tcp://*", 200),
        ),
    ],
)
def test_checks_of_connections(check, titles, expected, real):
    workload = _workload(real, {}, tallies={"connections": {PEER: 2}})

    assert _titles(check, workload) == titles
    assert _plan(check, workload)[-1] == (expected,)


@rows(
    ("check", "facts", "applies"),
    [
        ("short-read", FaultFacts(EIO, 0), False),
        ("short-read", FaultFacts(EIO, 1), True),
        ("read-error-once", FaultFacts(EIO, 0), True),
        ("read-error-once", *unfired(EIO), False),
        ("read-error-once", *fired(EIO), True),
        ("closed-descriptor", FaultFacts(faults.ClosedDescriptor(B), 0), False),
        ("closed-descriptor", FaultFacts(faults.ClosedDescriptor(A), 0), True),
        ("closed-descriptor", FaultFacts(faults.ClosedDescriptor(B), 1), True),
    ],
)
def test_a_trial_may_show_that_a_check_does_not_apply(check, facts, applies, real):
    workload = _workload(real, {A: READ})
    trial = revised(workload.fault_free, schedule=(facts.fault,), faults=(facts,))

    assert (refusal_of(CHECKS[check].scenario.require_effect, workload, trial) is None) == applies


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
    workload = _workload(real, files)
    trial = revised(workload.fault_free, faults=facts, **{"phase": EPOCH_1, **changes})
    reason = refusal_of(CHECKS["descriptor-exhaustion"].scenario.require_effect, workload, trial)

    assert (reason is None) == (says is None)
    assert says is None or says in reason.reason


_REFERENCE = Reference("map", ())


@rows(
    ("leftovers", "says"),
    [
        ("", None),
        ("- -", None),
        ("a -", None),
        ("a b", "2 of 2 workers left 2 temporary files behind (b)"),
        ("a b - -", None),  # They have made a cache.
        ("a b c -", None),
        ("- - a b", None),
        ("- a b c", "3 of 4 workers left 3 temporary files behind (c)"),
    ],
)
def test_files_of_most_workers_are_leftovers(leftovers, says, real):
    """Of those of both epochs, and of those of the second one."""
    names = leftovers.split()
    count = len(names) // 2 or 1
    workers = tuple(
        WorkerFacts(number % count, number, 1, {}, leftover_files=(name,) if name != "-" else ())
        for number, name in enumerate(names)
    )
    outcome = revised(real.fault_free, processes=workers, epochs=real.fault_free.epochs * 2)
    finding = CHECKS["two-epochs"].rule(outcome, _REFERENCE)

    assert (finding and finding.sentence) == says
