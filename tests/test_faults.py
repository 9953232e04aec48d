"""The vocabulary: faults are values that check their arguments and say how they were made."""

import copy
import dataclasses
import errno
import inspect
import json
import pickle
import signal
from pathlib import Path

import pytest
from hypothesis import given

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._arguments import suggest_name
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    DescriptorExhaustion,
    OpenError,
    SlowRead,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.faults.base import Place
from support.generated import ARGUMENTS, any_fault
from support.rows import rows

KINDS = [
    getattr(faults, name)
    for name in faults.__all__
    if inspect.isclass(getattr(faults, name)) and name != "Fault"
]
EVERY_KIND = rows("kind", KINDS)


def _evaluate(code):
    return eval(code, {name: getattr(faults, name) for name in faults.__all__})  # noqa: S307


def test_every_fault_is_exported():
    subclasses = {
        member
        for member in vars(faults).values()
        if inspect.isclass(member)
        and issubclass(member, faults.Fault)
        and member is not faults.Fault
    }

    assert subclasses == set(KINDS) == set(faults.KINDS.values()) == set(ARGUMENTS)
    assert sorted(faults.__all__) == list(faults.__all__)


@rows(
    ("fault", "places"),
    [
        (SlowRead("*.jpg"), Place.READ),
        (SlowRead("tcp://*"), Place.ANSWER),
        (SlowRead(("tcp://*", "*.jpg")), Place.READ | Place.ANSWER),
        (WorkerKilled(), Place.FETCH),
        (WorkerKilled(reading="*.jpg"), Place.FETCH | Place.READ),
        (WorkerKilled(writing="*.pt"), Place.FETCH | Place.WRITE),
        (DescriptorExhaustion(), Place.FETCH | Place.ALLOCATION),
    ],
    ids=str,
)
def test_places_of_one_kind_differ_by_its_arguments(fault, places):
    assert fault.places == places


@EVERY_KIND
def test_fault_is_frozen_and_slotted(kind):
    """A fault cannot be changed, and holds nothing but its arguments."""
    fault = kind()
    field = dataclasses.fields(fault)[0].name

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fault, field, "x")
    assert not hasattr(fault, "__dict__")


@given(any_fault())
def test_a_fault_is_a_value(fault):
    """Its repr is code, it survives pickle and JSON, and has only its own fields."""
    data = faults.to_dict(fault)
    again = faults.from_dict(json.loads(json.dumps(data)))
    pickled = pickle.loads(pickle.dumps(fault))  # our own
    names = {each.name for kind in KINDS for each in dataclasses.fields(kind)} - {"errno"}

    assert {fault, _evaluate(repr(fault)), pickled, copy.deepcopy(fault), again} == {fault}
    assert (type(again), repr(again)) == (type(fault), repr(fault))
    assert {each for each in names if hasattr(fault, each)} == set(data) - {"kind", "errno"}


@given(any_fault())
def test_a_fault_happens_where_its_arguments_are_about(fault):
    path_fields = (getattr(fault, name, None) for name in ("path", "reading", "writing"))
    path = next(filter(None, path_fields), ())
    of_files = any(not each.startswith("tcp://") for each in fault.globs)
    of_connections = any(each.startswith("tcp://") for each in fault.globs)

    assert fault.globs == ((path,) if isinstance(path, str) else path)
    assert fault.places
    assert fault.places in fault.happens_in
    assert bool(fault.places & Place.OF_FILES) == faults.has_files(fault) == of_files
    assert bool(fault.places & Place.OF_CONNECTIONS) == of_connections
    assert faults.has_connections(fault) == of_connections


@EVERY_KIND
def test_repr_of_defaults_is_short(kind):
    assert f"{kind.__name__}()" == repr(kind())


@rows(
    "name, names, nearest",
    [
        ("read-eror", CHECKS, "read-error"),
        ("quik", ["pickles", "quick"], "quick"),
        ("truncated", CHECKS, "truncated-file"),
    ],
)
def test_the_nearest_name_comes_first(name, names, nearest):
    assert suggest_name(name, names).startswith(f"Did you mean {nearest!r}")


@rows(
    ("keep", "size", "size_kept"),
    [(0.5, 5, 2), (0.0, 5, 0), (0, 5, 0), (3, 5, 3), (9, 5, 5), (0.999, 1, 0), (1, 5, 1)],
)
def test_truncation_keeps_a_fraction_or_a_count(keep, size, size_kept):
    """A float is a fraction, an int a count of bytes, and a file never grows."""
    assert size_kept == TruncatedFile(keep=keep).kept(size)


def test_signal_is_a_plain_number():
    """A member of the enumeration is kept as an int, whose repr is code."""
    assert repr(WorkerKilled(signal.SIGTERM)) == "WorkerKilled(signal=15)"
    assert WorkerKilled() == WorkerKilled(signal.SIGKILL)


def test_path_is_a_plain_text():
    """A pathlib.Path is kept as a str, whose repr is code, and compares like one."""
    path = Path("/data/0.bin")
    assert repr(OpenError(path)) == "OpenError(path='/data/0.bin')"
    assert repr(WorkerKilled(reading=(path, "*.rec"))) == (
        "WorkerKilled(reading=('/data/0.bin', '*.rec'))"
    )
    assert OpenError(path) == OpenError(str(path))


NOT_A_COUNT = (0, -1, 1.0, "1", True, None)
NOT_A_PART = (0, -1, 0.0, 1.0, 2.5, "1", True, None)
NOT_WORKERS = ((), 0, [0], (-1,), ("0",), (0.0,), (True,))
NOT_A_PATH = ("", (), ("",), (b"x",), ("x", 1), None, 5, ["*.jpg"])
REFUSED = {
    "path": (NOT_A_PATH, "a glob such as '*.jpg'"),
    "reading": ([each for each in NOT_A_PATH if each is not None], "a tuple of globs, or None"),
    "writing": ([each for each in NOT_A_PATH if each is not None], "a tuple of globs, or None"),
    "errno": ((0, -5, 10**6, "EIO", None, True, 5.0, [5]), "an errno such as errno.E"),
    "nth": (NOT_A_COUNT, "an int, 1 or more (1 is the first)"),
    "times": (NOT_A_COUNT[:-1], "an int, 1 or more, or None for every time"),
    "workers": (NOT_WORKERS, "a tuple of worker ids, or None for all"),
    "after": ((-1, 0.5, "0", None, True), "an int, 0 or more bytes of the response"),
    "keep": ((1.0, 1.5, -0.1, -1, "1", None, True, float("nan")), "a fraction in [0.0, 1.0) or"),
    "status": ((201, 399, 600, "503", None, True), "200, 206, or an HTTP status from 400 to 599"),
    "body": ((b"x", 1, ("x",)), "a str, or None for a page with the status"),
    "retry_after": ((-1, 0.5, "0", True), "an int, 0 or more seconds, or None"),
    "min_bytes": (
        (0, -1, 32_767, 65536.0, "65536", True, None),
        "an int from 32768 to 2**63 - 1 bytes (the interpreter itself needs smaller allocations",
    ),
    "headroom": ((-1, 0.5, "0", None, True), "an int, 0 or more descriptors"),
    "name": (
        ("", ".", "..", "*", "*.*", "a/b", "a\0b", "\ud800", b"a", 1, None),
        "a file name such as '.DS_Store', or one with a '*' such as '*.part'",
    ),
    "order": (("sorted", "", None, 1), "'reversed' or 'random'"),
    "signal": ((0, int(signal.SIGCHLD), 10**6, "SIGKILL", None, [9]), "one of SIGABRT, SIGBUS, "),
    "at": (NOT_A_COUNT, "an int, 1 or more (1 is the worker's first fetch)"),
    "worker": ((-1, 0.0, "0", True), "a worker id, or None for all"),
    "every": (NOT_A_COUNT, "an int, 1 or more (1 is every one, 2 every second one)"),
    "probability": ((0, -0.1, 1.1, "1", None, float("nan")), "in (0.0, 1.0]"),
    "sample": ((-1, 0.0, "0", True), "a sample's index, 0 or more, or None"),
    "offset": ((-1, 0.5, "0", True), "an offset in bytes"),
    "max_bytes": (NOT_A_PART, "1 or more bytes (int; 0 would be the end of the file"),
    "flips": (NOT_A_COUNT, "an int, 1 or more bytes"),
    "seed": ((-1, 0.5, "0", None, True), "an int, 0 or more"),
    "sending": ((0, 1, None, "yes"), "True or False"),
    "seconds": ((0, -1, "1", None, True, float("inf")), "a positive number of seconds"),
    "code": ((-1, 256, 0.5, "0", None, True), "an exit code, 0 to 255"),
}


@rows(
    ("kind", "name", "value"),
    [
        pytest.param(kind, field.name, value, id=f"{kind.__name__}-{field.name}={value!r}")
        for kind in KINDS
        for field in dataclasses.fields(kind)
        for value in REFUSED[field.name][0]
        if value is not None or field.default is not None
    ],
)
def test_invalid_argument_is_refused(kind, name, value):
    with pytest.raises(InvalidArgumentError) as caught:
        kind(**{name: value})

    text = str(caught.value)
    assert text.startswith(f"{kind.__name__}: {name}={value!r} must be ")
    assert REFUSED[name][1] in text
    assert isinstance(caught.value, ValueError)
    if name == "errno":  # The example is one that this kind accepts.
        kind(errno=getattr(errno, text.rpartition("errno.")[2]))


@EVERY_KIND
def test_every_fault_explains_itself(kind):
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")
