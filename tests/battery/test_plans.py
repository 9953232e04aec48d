"""Which faults a check asks for, given what workers did in a run without a fault."""

from dataclasses import replace

import pytest

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, Reference, WorkerFacts
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from pytest_dataloader_faults.steps import run_epochs
from support.datasets import Records, write_records
from support.facts import EIO, EPOCH_1, fired, revised, stream_reference, unfired
from support.judging import refusal_of
from support.rows import rows

A, B, C = "/data/a.bin", "/data/b.bin", "/data/c.bin"
PEER = "tcp://192.0.2.1:443"


@pytest.fixture(name="real", scope="module")
def _real(tmp_path_factory):
    """The workload of a dataset, for all that does not matter here."""
    folder = write_records(tmp_path_factory.mktemp("plans") / "records")
    return Battery(lambda: Records(folder)).workload


def _workload(real, *workers, start_method="fork", writable=(), **counts):
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


def _titles(name, workload):
    return [each.title for each in _scenarios(name, workload)]


READ = FileCounts(1, 2, 64)
MAPPED = FileCounts(0, 1, 0)
"""Before the worker began."""
OPENED = FileCounts(1, 0, 0)
WROTE = {"/trial/a.pt": FileCounts(1, 0, 0, 1)}
TWO_READERS = ({A: READ, B: READ}, {A: READ})
OF_ONE_FAULT = """
    missing-file open-error read-error read-error-once truncated-file empty-file closed-descriptor
    hung-read descriptor-exhaustion worker-killed-sending
""".split()
OF_CONNECTIONS = "hung-read connection-error http-error".split()


def _numbered(count):
    return {f"/data/{number:02}.bin": READ for number in range(count)}


def _reads(count, **counts):
    return {A: FileCounts(1, count, 99, **counts)}


def _plans(real):
    yield from _of_files(real)
    yield from _of_reads(real)
    yield from _of_kinds_of_use(real)
    yield from _before_workers(real)
    for writes in ((1, 0), (2, 0), (1, 3), (4, 2)):
        files = [{"/trial/a.pt": FileCounts(1, 0, 0, count)} for count in writes]
        yield f"{writes} writes", "write-error", _workload(real, *files, writable=("/trial",))
    for check in OF_CONNECTIONS:
        yield "connections", check, _workload(real, {}, tallies={"connections": {PEER: 2}})
    served = _workload(real, {A: READ}, start_method="forkserver")
    yield "forkserver", "worker-killed-sending", served


def _of_files(real):
    for check in OF_ONE_FAULT:
        yield "two readers", check, _workload(real, *TWO_READERS)
    for name, counts in (
        ("read", READ),
        ("opened", OPENED),
        ("mapped", MAPPED),
        ("written", FileCounts(0, 0, 0, 1)),
    ):
        files = {"/data/i.json": counts, A: READ, B: READ, C: READ}
        yield f"another kind, {name}", "open-error", _workload(real, files)
    for count in (1, 2, 5, 32):
        yield f"{count} files", "corrupted-file", _workload(real, _numbered(count))
    for count in (1, 2, 3, 4):
        # The second read of each finds its end, and fails in no reader.
        yield f"{count} files", "read-error", _workload(real, _numbered(count))


def _of_reads(real):
    for reads in ((2, 0), (3, 3), (5, 1), (3, 6)):
        workers = [_reads(count, longest=2, longest_bytes=32) for count in reads]
        yield f"halfway of {reads} reads", "read-error", _workload(real, *workers)
    for longest in (0, 24, 25, 26):
        # A reader may check the length of its short header, but not of the rest.
        files = {A: FileCounts(1, 4, 100, longest=2, longest_bytes=longest)}
        yield f"of 100 bytes, {longest} at once", "short-read", _workload(real, files)
    for reads in (1000, 1001, 1999, 4000):
        files = {A: FileCounts(1, reads, reads)}
        yield f"{reads} reads", "short-read", _workload(real, files)
    longest = _reads(9, longest=5, longest_offset=64, longest_bytes=32)
    for name, files in (("longest", longest), ("9 reads", _reads(9)), ("1 read", _reads(1))):
        yield name, "read-error-once", _workload(real, files)
    short, long = (
        FileCounts(1, 9, 99, longest=2, longest_offset=8, longest_bytes=size) for size in (16, 32)
    )
    yield "of two", "read-error-once", _workload(real, {A: short}, {B: long, C: short})


def _of_kinds_of_use(real):
    for name, *workers in (
        ("both read", {A: READ}, {A: READ}),
        ("one only mapped it", {A: MAPPED}, {A: READ}),
        ("one does nothing", {}, {A: FileCounts(0, 1, 9)}),
        ("it reads nothing", {}, {A: FileCounts(1, 1, 0)}),
        ("only mapped", {A: MAPPED}),
        ("two write", {A: FileCounts(1, 0, 0, 1)}, WROTE, WROTE),
    ):
        yield name, "worker-killed", _workload(real, *workers, writable=("/trial",))
    for name, files in (
        ("read", {A: READ, B: MAPPED}),
        ("at its end", {A: FileCounts(1, 1, 0), B: MAPPED}),
        ("read, opened before", {A: FileCounts(0, 1, 9), B: OPENED}),
        ("mapped", {A: MAPPED}),
        ("opened", {A: OPENED}),
    ):
        yield name, "truncated-file", _workload(real, files)


def _before_workers(real):
    for name, counts in (
        ("mapped", MAPPED),
        ("at its end", FileCounts(0, 1, 0)),
        ("opened", OPENED),
    ):
        at_rest = replace(_workload(real, {A: counts}), is_at_rest=True)
        before = replace(at_rest, is_at_rest=False, at_rest=(at_rest,))
        yield f"{name}, damaged before", "truncated-file", before
    in_workers = _workload(real, {A: READ, B: READ})
    at_rest = replace(in_workers, paths=frozenset({A}), is_at_rest=True)
    parts = at_rest, replace(in_workers, paths=frozenset({B}))
    yield "each run writes one of two", "empty-file", replace(in_workers, at_rest=parts)
    main = replace(in_workers.fault_free.workers[0], worker=None, files={B: READ})
    run = revised(in_workers.fault_free, processes=(main, *in_workers.fault_free.workers))
    at_rest = replace(in_workers, fault_free=run, is_at_rest=True)
    yield "the constructor reads", "read-error", replace(in_workers, at_rest=(at_rest,))
    for name, method, files in (
        ("mapped before", "fork", {A: MAPPED}),
        ("mapped before", "spawn", {A: MAPPED}),
        ("opened", "fork", {A: OPENED}),
        ("no files", "fork", {}),
    ):
        workload = _workload(real, files, start_method=method)
        yield f"{name}, {method}", "open-error", workload


def _describe(check, workload):
    if refusal := refusal_of(CHECKS[check].plan_scenarios, workload):
        return f"{refusal.reason}\n{refusal.group}".strip()
    lines = []
    for each in _scenarios(check, workload):
        when = " before init" if each.processes == run_epochs(before_init=True) else ""
        lines.append(f"{each.title or 'it'}{when}: {', '.join(map(repr, each.faults))}")
    return "\n".join(lines)


def test_texts_of_plans(real, golden):
    texts = {
        f"{check}, {title}": _describe(check, workload) for title, check, workload in _plans(real)
    }
    golden("plans", texts)


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
    scenarios = _scenarios("truncated-file", _workload(real, {str(text): READ}))
    half, tail = (each.faults for each in scenarios)

    assert half == (faults.TruncatedFile(str(text), keep=0.5),)
    assert text.read_bytes()[: tail[0].keep].endswith(b"\n")


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
