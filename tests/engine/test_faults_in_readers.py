"""The real thing happens, to C code too: each reader meets each fault in a real worker.

One worker goes through every reader under every fault that can come together; a folder of files per
fault keeps them apart. What each library makes of each fault is what the page about readers says.
"""

import errno
import json
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

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
from pytest_dataloader_faults.outcomes import FaultFacts
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from support.attempts import epoch_of
from support.epochs import Epoch, alone, epoch
from support.readers import (
    CONTENT,
    FORMATS,
    MAPPING,
    documented,
    matrix,
    read_format,
    usable,
    write_formats,
)
from support.rows import rows, slow
from support.tries import Reads, Tries

SLOW_METHODS = ("forkserver", "spawn")
"""Their workers import torch and every library anew, which takes seconds for each worker."""
METHODS = ("fork", *(slow(each) for each in SLOW_METHODS))
EXHAUSTED = DescriptorExhaustion()
FAULTS = {
    "OpenError": OpenError("*/OpenError/*", errno=errno.ESTALE),
    "ReadError": ReadError("*/ReadError/*"),
    "TruncatedFile": TruncatedFile("*/TruncatedFile/*", keep=len(CONTENT) // 4),
    "ClosedDescriptor": ClosedDescriptor("*/ClosedDescriptor/*"),
    "none": ReadError("*/nothing/*"),
    "DescriptorExhaustion": EXHAUSTED,
}
MANY_READS = 100
"""More than a library needs for one of the files."""
SYSTEM_CALLS = tuple(name for name in FORMATS if name not in MAPPING)

KEPT = CONTENT[: len(CONTENT) // 4]
STALE, EIO, EBADF, EMFILE = (
    rf"\[Errno {number}\]" for number in (errno.ESTALE, errno.EIO, errno.EBADF, errno.EMFILE)
)
# safetensors 0.8 calls every open(2) that fails "No such file or directory".
HIDDEN = r"FileNotFoundError: No such file or directory: .*/safetensors_file\.data"

EXPECTED: dict[str, dict[str, str | bytes]] = {
    "OpenError": {**dict.fromkeys(FORMATS, STALE), "safetensors_file": HIDDEN},
    "ReadError": dict.fromkeys(SYSTEM_CALLS, EIO),
    "TruncatedFile": {
        **dict.fromkeys(FORMATS, KEPT),
        "pillow_png": "OSError: image file is truncated",
        "pillow_tiff": "UnidentifiedImageError: cannot identify image file",
        "hdf5": rf"truncated file: eof = {len(KEPT)},",
        "safetensors_file": "SafetensorError: .* incomplete metadata, file not fully covered",
    },
    "ClosedDescriptor": {
        **dict.fromkeys(FORMATS, EBADF),
        "safetensors_file": rf"Bad file descriptor \(os error {errno.EBADF}\)",
    },
    "none": dict.fromkeys(FORMATS, CONTENT),
    "DescriptorExhaustion": {**dict.fromkeys(FORMATS, EMFILE), "safetensors_file": HIDDEN},
}
EXPECTED["ReadError"].pop("numpy_fromfile")
CASES = [(fault, reader) for fault, readers in EXPECTED.items() for reader in readers]


@dataclass
class Run:
    """What a worker of one start method saw, by fault and reader, and the faults' counters."""

    findings: dict[tuple[str, str], str | bytes]
    facts: dict[str, FaultFacts]


@pytest.fixture(name="run", scope="module", params=METHODS)
def _run(request, tmp_path_factory):
    """Every reader under every fault, in two workers: exhaustion goes with no fault on a file."""
    root = tmp_path_factory.mktemp("formats")
    findings, facts = {}, {}
    for names in (tuple(FAULTS)[:-1], ("DescriptorExhaustion",)):
        paths = [
            path
            for name in names
            for path in write_formats(
                root / name, SYSTEM_CALLS if name == "ReadError" else tuple(FORMATS)
            )
        ]
        faults = [FAULTS[name] for name in names]
        with inject(*faults, require_fired=False) as injection:
            loader = alone(Tries(paths, read_format), multiprocessing_context=request.param)
            read = epoch(loader)
        assert read.error is None
        for path, finding in zip(paths, read.batches, strict=True):
            findings[Path(path).parent.name, Path(path).stem] = finding.gave
        facts |= zip(names, injection.faults, strict=True)
    return Run(findings, facts)


@rows(("fault", "reader"), CASES)
def test_a_reader_meets_the_fault(run, fault, reader):
    expected, finding = EXPECTED[fault][reader], run.findings[fault, reader]
    if isinstance(expected, bytes):
        assert expected == finding
    else:
        assert isinstance(finding, str)
        assert re.search(expected, finding, re.DOTALL)


def test_numpy_returns_garbage_for_a_disk_error(run):
    """A finding, as of NumPy 2.4: np.fromfile does not look at ferror(3)."""
    finding = run.findings["ReadError", "numpy_fromfile"]
    assert isinstance(finding, bytes)
    assert len(CONTENT) == len(finding)
    assert finding != CONTENT


@rows("fault", [name for name in FAULTS if name != "none"])
def test_firings_are_counted(run, fault):
    facts = run.facts[fault]
    readers = SYSTEM_CALLS if fault == "ReadError" else tuple(FORMATS)
    assert facts.matched >= facts.fired >= len(readers)
    paths = {Path(each.path).stem for each in facts.firings if f"/{fault}/" in (each.path or "")}
    assert set(readers) == paths


@pytest.mark.parametrize(
    ("method", "readers"),
    [("fork", MAPPING), *(slow(each, ("safetensors_file",)) for each in SLOW_METHODS)],
)
def test_a_mapped_file_raises_sigbus(tmp_path, method, readers):
    """A page that the disk cannot deliver is a signal, not an errno."""
    with inject(ReadError("*.data")) as injection:
        for path in write_formats(tmp_path / "files", readers):
            loader = alone(Tries([path], read_format), multiprocessing_context=method)
            read, (facts,) = epoch_of(injection, loader)
            assert_died(read, signal.SIGBUS)
            (firing,) = facts.firings
            assert ("mmap", path) == (firing.call, firing.path)
            assert facts.mentioned == 1


def assert_died(read: Epoch, number: signal.Signals) -> None:
    """The worker's exit status is that signal, and torch tells of it."""
    assert {number} == read.signals
    assert "DataLoader worker" in read.text


@pytest.mark.parametrize(
    ("reader", "calls"),
    [("pillow_tiff", {"read", "mmap"}), slow("hdf5", {"pread64"}), slow("pillow_png", {"read"})],
)
def test_each_read_of_a_library_can_fail(tmp_path, reader, calls):
    faults = [ReadError(f"*/{nth}/*.data", nth=nth, times=1) for nth in range(1, MANY_READS)]
    seen_calls = set()
    with inject(*faults, require_fired=False) as injection:
        for place, fault in enumerate(faults):
            paths = write_formats(tmp_path / str(fault.trigger.nth), (reader,))
            read, facts = epoch_of(injection, alone(Tries(paths, read_format)))
            if not facts[place].fired:
                break
            (firing,) = facts[place].firings
            seen_calls.add(firing.call)
            assert firing.call != "mmap" or read.signals == {signal.SIGBUS}
    assert calls == seen_calls
    assert [CONTENT] == [each.gave for each in read.batches]
    # A file of a few kilobytes is one block of a buffer on Python 3.14.
    assert place >= (1 if reader == "pillow_png" and sys.version_info >= (3, 14) else 2)


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
    """An epoch of every reader under all of these faults, and the outcome of each."""
    with inject(*ON_NOTHING, *NOT_DUE, *NOT_HERE, require_fired=False) as injection:
        read = epoch(alone(Reads(paths, read_format)))
    messages = {
        facts.fault: explain_unfired([facts], injection.workers) for facts in injection.faults
    }
    return read, injection, messages


def test_every_reader_works_under_disarmed_faults(disarmed, paths):
    read, injection, _ = disarmed
    assert [CONTENT] * len(paths) == read.batches
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


def test_each_fault_has_to_fire(paths):
    armed, idle = WorkerKilled(at=2), OpenError("*.nothing")
    with pytest.raises(FaultNotFiredError, match=re.escape(repr(idle))), inject(armed, idle):
        epoch(alone(Reads(paths, read_format)))


ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "docs/evidence/readers.json").read_text(encoding="utf-8"))
OUTCOMES = {
    key: {name: cell["outcome"] for name, cell in row.items()}
    for key, row in RECORD["readers"].items()
}
IN_ONE_READ = {("pillow_png", matrix.LATER)} if sys.version_info >= (3, 14) else set()
"""The cells of files that are smaller than a buffer: there is no later read."""
CUT = [name for name in matrix.FAULTS if name.startswith("TruncatedFile")]


@pytest.fixture(name="cells", scope="module")
def _cells(tmp_path_factory):
    return matrix.all_cells(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("key", usable())
def test_the_page_says_what_each_reader_does(cells, key):
    """Under each fault; `python evidence readers` writes it anew."""
    on_the_page = {
        name: outcome for name, outcome in OUTCOMES[key].items() if (key, name) not in IN_ONE_READ
    }
    outcomes = {name: cells[each, name].outcome for each, name in cells if each == key}
    assert outcomes == on_the_page


def test_every_fault_happens_to_every_reader(cells):
    assert {place for place, cell in cells.items() if not cell.fired} == set()
    assert {key for key, _ in cells} == set(usable())
    assert set(documented()) == set(OUTCOMES)


@pytest.mark.parametrize("name", [CUT[0], slow(CUT[1])])
def test_a_file_that_is_really_shorter_has_the_same_effect(tmp_path, name):
    cells = matrix.cells_of_short_files(tmp_path, name)

    assert {key: cell.outcome for key, cell in cells.items()} == {
        key: OUTCOMES[key][name] for key in cells
    }
