"""The real thing happens, to C code too: each reader meets each fault in a real worker.

One worker goes through every reader under every fault that can come together; a folder of files per
fault keeps them apart.
"""

from __future__ import annotations

import errno
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes import FaultFacts
from support.attempts import epoch_of
from support.epochs import Epoch, alone, epoch
from support.readers import CONTENT, FORMATS, MAPPING, Formats, TolerantFormats, write_formats
from support.rows import rows

SLOW_METHODS = ("forkserver", "spawn")
"""Their workers import torch and every library anew, which takes seconds for each worker."""
METHODS = ("fork", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_METHODS))
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
MISLEADING = {("DescriptorExhaustion", "safetensors_file")}
"""The error names the file, and says that it does not exist."""
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
            read = epoch(alone(TolerantFormats(paths), multiprocessing_context=request.param))
        assert read.error is None
        for path, finding in read.batches:
            findings[Path(path).parent.name, Path(path).stem] = finding
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


def test_a_fault_on_no_file_is_not_reached(run):
    facts = run.facts["none"]
    assert (0, 0) == (facts.matched, facts.fired)


ERRORS = [(fault, reader) for fault, reader in CASES if isinstance(EXPECTED[fault][reader], str)]


@pytest.fixture(name="ends", scope="module")
def _ends(tmp_path_factory):
    """How a loop over each reader under each fault ends, and what the fault did to its worker."""
    root = tmp_path_factory.mktemp("errors")
    ends = {}
    for names in (tuple(FAULTS)[:-1], ("DescriptorExhaustion",)):
        with inject(*(FAULTS[name] for name in names), require_fired=False) as injection:
            for fault, reader in (case for case in ERRORS if case[0] in names):
                paths = write_formats(root / reader / fault, (reader,))
                read, facts = epoch_of(injection, alone(Formats(paths)))
                ends[fault, reader] = read, facts[names.index(fault)]
    return ends


@rows(("fault", "reader"), ERRORS)
def test_the_error_reaches_the_loop(ends, fault, reader):
    read, facts = ends[fault, reader]
    assert re.search(EXPECTED[fault][reader], read.text, re.DOTALL)
    assert [] == read.batches
    assert facts.fired
    assert facts.mentioned == ((fault, reader) not in MISLEADING)


@pytest.mark.parametrize(
    ("method", "readers"),
    [
        ("fork", MAPPING),
        *(
            pytest.param(each, ("safetensors_file",), marks=pytest.mark.slow)
            for each in SLOW_METHODS
        ),
    ],
)
def test_a_mapped_file_raises_sigbus(tmp_path, method, readers):
    """A page that the disk cannot deliver is a signal, not an errno."""
    with inject(ReadError("*.data")) as injection:
        for path in write_formats(tmp_path / "files", readers):
            loader = alone(TolerantFormats([path]), multiprocessing_context=method)
            read, (facts,) = epoch_of(injection, loader)
            assert_died(read, signal.SIGBUS)
            (firing,) = facts.firings
            assert ("mmap", path) == (firing.call, firing.path)
            assert facts.mentioned == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_is_killed(tmp_path, method):
    paths = write_formats(tmp_path / "files", ("builtin_open", "hdf5"))
    with inject(WorkerKilled(at=3)) as injection:
        read = epoch(alone(TolerantFormats(paths * 2), multiprocessing_context=method))
    assert_died(read, signal.SIGKILL)
    assert [(path, CONTENT) for path in paths] == read.batches
    assert 1 == injection.fired == injection.mentioned


def assert_died(read: Epoch, number: signal.Signals) -> None:
    """The worker's exit status is that signal, and torch tells of it."""
    assert {number} == read.signals
    assert "DataLoader worker" in read.text


@pytest.mark.parametrize(
    ("reader", "calls"),
    [("hdf5", {"pread64"}), ("pillow_tiff", {"read", "mmap"}), ("pillow_png", {"read"})],
)
def test_each_read_of_a_library_can_fail(tmp_path, reader, calls):
    faults = [ReadError(f"*/{nth}/*.data", nth=nth, times=1) for nth in range(1, MANY_READS)]
    seen_calls = set()
    with inject(*faults, require_fired=False) as injection:
        for place, fault in enumerate(faults):
            paths = write_formats(tmp_path / str(fault.trigger.nth), (reader,))
            read, facts = epoch_of(injection, alone(TolerantFormats(paths)))
            if not facts[place].fired:
                break
            (firing,) = facts[place].firings
            seen_calls.add(firing.call)
            assert firing.call != "mmap" or read.signals == {signal.SIGBUS}
    assert calls == seen_calls
    assert [(paths[0], CONTENT)] == read.batches
    # A file of a few kilobytes is one block of a buffer on Python 3.14.
    assert place >= (1 if reader == "pillow_png" and sys.version_info >= (3, 14) else 2)
