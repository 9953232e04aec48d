"""The vocabulary: faults are values that check their arguments and say how they were made."""

from __future__ import annotations

import copy
import dataclasses
import errno
import inspect
import json
import pickle
import signal

import pytest
from hypothesis import given

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from support.generated import ARGUMENTS, any_fault

KINDS = [
    getattr(faults, name)
    for name in faults.__all__
    if inspect.isclass(getattr(faults, name)) and name != "Fault"
]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
TRIGGERS = {"nth": 1, "times": None, "workers": None}


def _evaluated(code):
    return eval(code, {name: getattr(faults, name) for name in faults.__all__})  # noqa: S307


def test_every_fault_is_exported():
    """Each subclass of Fault is in ``__all__``, and in the table that JSON is read with."""
    subclasses = {
        each
        for each in vars(faults).values()
        if inspect.isclass(each) and issubclass(each, faults.Fault) and each is not faults.Fault
    }

    assert subclasses == set(KINDS) == set(faults.KINDS.values()) == set(ARGUMENTS)
    assert sorted(faults.__all__) == list(faults.__all__)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (OpenError, {"path": "*", "errno": errno.EIO, **TRIGGERS}),
        (ReadError, {"path": "*", "errno": errno.EIO, **TRIGGERS}),
        (TruncatedFile, {"path": "*", "keep": 0.5, "workers": None}),
        (ClosedDescriptor, {"path": "*", **TRIGGERS}),
        (DescriptorExhaustion, {"headroom": 0, "where": "worker", "workers": None}),
        (WorkerKilled, {"signal": signal.SIGKILL, "at": 1, "worker": 0}),
    ],
)
def test_defaults(kind, defaults):
    """Each argument has the order and the default that the reference promises."""
    parameters = inspect.signature(kind).parameters

    assert defaults == {name: each.default for name, each in parameters.items()}
    assert list(defaults) == list(parameters)
    assert defaults == dataclasses.asdict(kind())


@EVERY_KIND
def test_fault_is_frozen_and_slotted(kind):
    """A fault cannot be changed, and holds nothing but its arguments."""
    fault = kind()
    first = dataclasses.fields(fault)[0].name

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fault, first, "x")
    assert not hasattr(fault, "__dict__")


@EVERY_KIND
def test_repr_of_defaults_is_short(kind):
    """Arguments that are as usual are left out."""
    assert f"{kind.__name__}()" == repr(kind())


def test_faults_of_different_kinds_differ():
    """Equality looks at the kind, not only at the arguments."""
    assert len(KINDS) == len({kind() for kind in KINDS})


@given(any_fault())
def test_repr_is_code(fault):
    """``eval(repr(fault)) == fault``."""
    assert fault == _evaluated(repr(fault))


@given(any_fault())
def test_copies_are_equal(fault):
    """Faults compare and hash by value, and pickle."""
    copies = [pickle.loads(pickle.dumps(fault)), copy.deepcopy(fault)]  # noqa: S301  # our own

    assert [fault, fault] == copies
    assert {fault} == set(copies)


@given(any_fault())
def test_faults_survive_json(fault):
    """What ``to_dict`` gives is plain data, from which ``from_dict`` makes the fault again."""
    data = faults.to_dict(fault)

    again = faults.from_dict(json.loads(json.dumps(data)))

    assert (fault, type(fault).__name__) == (again, data["kind"])
    assert repr(fault) == repr(again)


@given(any_fault())
def test_globs_are_a_tuple(fault):
    """However *path* was given, its globs are a tuple; faults without one mean every file."""
    path = fault.path

    assert fault.globs == ((path,) if isinstance(path, str) else path)


@pytest.mark.parametrize(
    ("keep", "size", "left"),
    [(0.5, 5, 2), (0.0, 5, 0), (0, 5, 0), (3, 5, 3), (9, 5, 5), (0.999, 1, 0), (1, 5, 1)],
)
def test_truncation_keeps_a_fraction_or_a_count(keep, size, left):
    """A float is a fraction, an int a count of bytes, and a file never grows."""
    assert left == TruncatedFile(keep=keep).kept(size)


def test_signal_is_a_plain_number():
    """A member of the enumeration is kept as an int, whose repr is code."""
    assert repr(WorkerKilled(signal.SIGTERM)) == "WorkerKilled(signal=15)"
    assert WorkerKilled() == WorkerKilled(signal.SIGKILL)


NOT_A_COUNT = (0, -1, 1.0, "1", True, None)
NOT_WORKERS = ((), 0, [0], (-1,), ("0",), (0.0,), (True,))
NOT_A_PATH = ("", (), ("",), (b"x",), ("x", 1), None, 5, ["*.jpg"])
REFUSED = {
    "path": (NOT_A_PATH, "a glob such as '*.jpg'"),
    "errno": ((0, -5, 10**6, "EIO", None, True, 5.0, [5]), "an errno such as errno.EIO"),
    "nth": (NOT_A_COUNT, "1 or more (1 is the first)"),
    "times": (NOT_A_COUNT[:-1], "1 or more, or None for good"),
    "workers": (NOT_WORKERS, "a tuple of worker ids, or None for all"),
    "keep": ((1.0, 1.5, -0.1, -1, "1", None, True, float("nan")), "a fraction in [0.0, 1.0) or"),
    "headroom": ((-1, 0.5, "0", None, True), "0 or more descriptors"),
    "where": (("loader", "", None), "'worker'"),
    "signal": ((0, int(signal.SIGCHLD), 10**6, "SIGKILL", None, [9]), "such as signal.SIGKILL"),
    "at": (NOT_A_COUNT, "1 or more (1 is the worker's first fetch)"),
    "worker": ((-1, 0.0, "0", True), "a worker id, or None for all"),
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        pytest.param(kind, field.name, value, id=f"{kind.__name__}-{field.name}={value!r}")
        for kind in KINDS
        for field in dataclasses.fields(kind)
        for value in REFUSED[field.name][0]
    ],
)
def test_invalid_argument_is_refused(kind, name, value):
    """The message shows the class, ``name=value``, and what is allowed."""
    with pytest.raises(InvalidArgumentError) as caught:
        kind(**{name: value})

    text = str(caught.value)
    assert text.startswith(f"{kind.__name__}: {name}={value!r} must be ")
    assert REFUSED[name][1] in text
    assert isinstance(caught.value, ValueError)


@EVERY_KIND
def test_every_fault_explains_itself(kind):
    """The docstring and the arguments are what documentation is made of."""
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")
