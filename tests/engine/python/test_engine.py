"""The portable engine, in this very process: what Python code reads is as the faults say."""

from __future__ import annotations

import builtins
import errno
import sys
import tarfile  # noqa: F401  # it has a name of its own for open()
from types import ModuleType

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
    TruncatedFile,
)
from support.epochs import alone, epoch
from support.patching import patched
from support.python_readers import PYTHON
from support.schedules import counted, schedule
from support.tries import Tries

FAULTS = {
    "OpenError": lambda path: OpenError(path, errno=errno.EACCES),
    "OpenError, second": lambda path: OpenError(path, nth=2),
    "ReadError, first": ReadError,
    "ReadError, second": lambda path: ReadError(path, nth=2),
    "ReadError, third and fourth": lambda path: ReadError(path, nth=3, times=2),
    "ReadError, never": lambda path: ReadError(path, nth=10**6),
    "TruncatedFile": TruncatedFile,
    "TruncatedFile, nothing": lambda path: TruncatedFile(path, keep=0),
    "CorruptedFile": lambda path: CorruptedFile(path, flips=50),
    "ClosedDescriptor": ClosedDescriptor,
    "ClosedDescriptor, another file": lambda path: ClosedDescriptor(path, reuse=True),
    "ReadError, from a place on": lambda path: ReadError(path, offset=100),
    "ReadError, each third": lambda path: ReadError(path, every=3),
    "ReadError, perhaps": lambda path: ReadError(path, probability=0.3),
    "ShortRead": lambda path: ShortRead(path, max_bytes=700),
    "SlowRead": lambda path: SlowRead(path, seconds=0.001, times=3),
}


def gave(read, path):
    """What a reader gives, or the text of its error."""
    try:
        return read(path)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
        return f"{type(error).__name__}: {error}"


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data.rec"
    path.write_bytes(bytes(range(200)))
    return path


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # Pillow, under either engine: its
@pytest.mark.filterwarnings("ignore:unclosed file")  # first read comes before its own try
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "ClosedDescriptor, another file"))
        for name in FAULTS
    ],
)
def test_each_reader_meets_what_it_meets_under_the_kernel_engine(tmp_path, fault):
    """The same result or error, from as many operations, of which the same ones failed."""
    paths = [tmp_path / f"{number}.rec" for number in range(len(PYTHON))]
    for path, (content, _) in zip(paths, PYTHON.values(), strict=True):
        path.write_bytes(content)
    faults = [FAULTS[fault](str(path)) for path in paths]

    assert _by_kernel(paths, faults) == _by_python(paths, faults)


def _read_all(paths):
    readers = [read for _, read in PYTHON.values()]
    return [gave(read, path) for path, read in zip(paths, readers, strict=True)]


def _by_kernel(paths, faults):
    with inject(*faults, require_fired=False) as injection:
        (result,) = epoch(alone(Tries([paths], _read_all))).batches
    facts = injection.faults
    calls = [[each.call for each in fact.firings] for fact in facts]
    return _told(result.gave, [fact.reached for fact in facts], calls)


def _by_python(paths, faults):
    policy = schedule(*faults)
    with patched(policy):
        found = _read_all(paths)
    facts = counted(policy)["faults"]
    calls = [[each["call"] for each in fact["firings"]] for fact in facts]
    return _told(found, [fact["reached"] for fact in facts], calls)


def _told(found, reached, calls):
    return {
        name: (each if isinstance(each, str) else hash(repr(each)), count, called)
        for name, each, count, called in zip(PYTHON, found, reached, calls, strict=True)
    }


def test_every_original_is_back(path):
    """Afterwards each name of each module is for what it was for: the same, and not only equal."""
    before = _names()
    with patched(schedule(ReadError("*.rec"))):
        assert builtins.open is not before["builtins", "open"]
        assert {("os", "read"), ("tarfile", "bltn_open"), ("io", "FileIO")} <= _changed(before)
    assert set() == _changed(before)
    assert bytes(range(200)) == path.read_bytes()


def _names():
    modules = [each for each in list(sys.modules.items()) if isinstance(each[1], ModuleType)]
    return {
        (at, name): value
        for at, module in modules
        for name, value in list(vars(module).items())
        if callable(value)  # Modules keep counters and caches, too, that change by themselves.
    }


def _changed(before):
    after = _names()
    return {place for place, value in before.items() if after.get(place) is not value}
