"""Hypothesis strategies for facts, and for faults with valid arguments."""

import errno
import itertools
import re
import string
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from pytest_dataloader_faults import Contract, Outcome, faults
from pytest_dataloader_faults.faults.base import SIGNALS as SIGNALS_OF_WORKERS
from pytest_dataloader_faults.faults.globs import is_address
from pytest_dataloader_faults.faults.workers import MIN_ALLOCATION
from pytest_dataloader_faults.outcomes import (
    Absence,
    Batch,
    FaultFacts,
    FileCounts,
    Firing,
    FiringKind,
    LoaderFacts,
    Pass,
    Phase,
    Position,
    Raised,
    Reason,
    Reference,
    Resources,
    Sample,
    SavedState,
    TrialEnd,
    TrialRequest,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, START, Stage
from support.facts import EPOCH_1, EPOCH_2

GLOBS = st.text(min_size=1, max_size=8).filter(lambda glob: not is_address(glob))
COUNTS = st.integers(1, 2**40)
WORKERS = st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple)
TRIGGERS = {
    "nth": COUNTS,
    "times": st.none() | COUNTS,
    "every": COUNTS,
    "probability": st.floats(0, 1, exclude_min=True),
    "workers": WORKERS,
}
PATHS = GLOBS | st.lists(GLOBS, min_size=1, max_size=3).map(tuple)
_OF_NAMES = "".join(filter(re.compile("[g-z]", re.IGNORECASE).match, string.ascii_letters))
ADDRESSES = st.text(st.characters(exclude_characters=_OF_NAMES), min_size=1, max_size=8).map(
    "tcp://{}".format
)
KEPT = st.integers(0, 2**40) | st.floats(0, 1, exclude_max=True)
SIGNALS = st.sampled_from(sorted(SIGNALS_OF_WORKERS))
ERRNOS = st.sampled_from(sorted(errno.errorcode))
AT = {"at": COUNTS, "worker": st.none() | st.integers(0, 99)}

ARGUMENTS: dict[type[faults.Fault], dict[str, st.SearchStrategy[Any]]] = {
    faults.OpenError: {"path": PATHS, "errno": ERRNOS, **TRIGGERS},
    faults.ReadError: {
        "path": PATHS,
        "errno": ERRNOS,
        "offset": st.none() | st.integers(0, 2**40),
        **TRIGGERS,
    },
    faults.ShortRead: {"path": PATHS, "max_bytes": COUNTS, **TRIGGERS},
    faults.TruncatedFile: {"path": PATHS, "keep": KEPT, "workers": WORKERS},
    faults.CorruptedFile: {
        "path": PATHS,
        "flips": COUNTS,
        "seed": st.integers(0, 2**40),
        "workers": WORKERS,
    },
    faults.ClosedDescriptor: {"path": PATHS, **TRIGGERS},
    faults.WriteError: {"path": PATHS, "errno": ERRNOS, **TRIGGERS},
    faults.ShortWrite: {"path": PATHS, "max_bytes": COUNTS, **TRIGGERS},
    faults.SlowRead: {"path": PATHS | ADDRESSES, "seconds": st.floats(0.001, 100), **TRIGGERS},
    faults.HungRead: {"path": PATHS | ADDRESSES, "nth": COUNTS, "workers": WORKERS},
    faults.LockError: {
        "path": PATHS,
        "errno": ERRNOS,
        "seconds": st.none() | st.floats(0.001, 100),
        **TRIGGERS,
    },
    faults.ConnectError: {"path": ADDRESSES, "errno": ERRNOS, **TRIGGERS},
    faults.ConnectionReset: {"path": ADDRESSES, "after": st.integers(0, 2**40), **TRIGGERS},
    faults.ConnectionClosed: {"path": ADDRESSES, "after": st.integers(0, 2**40), **TRIGGERS},
    faults.HttpError: {
        "path": ADDRESSES,
        "status": st.just(200) | st.integers(400, 599),
        "body": st.none() | st.text(max_size=8),
        "retry_after": st.none() | st.integers(0, 99),
        **TRIGGERS,
    },
    faults.DescriptorExhaustion: {"headroom": st.integers(0, 2**20), "workers": WORKERS},
    faults.SharedMemoryExhaustion: TRIGGERS,
    faults.WorkerKilled: {"signal": SIGNALS | SIGNALS.map(int), "reading": st.none() | PATHS, **AT},
    faults.WorkerExited: {"code": st.integers(0, 255), **AT},
    faults.WorkerHung: AT,
    faults.ListingOrder: {
        "path": PATHS,
        "order": st.sampled_from(["reversed", "random"]),
        "seed": st.integers(0, 2**40),
        "workers": WORKERS,
    },
    faults.ListingError: {"path": PATHS, "errno": ERRNOS, **TRIGGERS},
    faults.StrayEntry: {
        "path": PATHS,
        "name": st.sampled_from([".DS_Store", ".nfs0001", "*.part", "._*"]),
        "workers": WORKERS,
    },
    faults.ThreadExhaustion: TRIGGERS,
    faults.MemoryExhaustion: {
        "min_bytes": st.integers(MIN_ALLOCATION, 2**40),
        "sample": st.none() | st.integers(0, 99),
        **TRIGGERS,
    },
}


def any_fault() -> st.SearchStrategy[faults.Fault]:
    return st.one_of(
        st.fixed_dictionaries({}, optional=arguments).map(
            lambda keywords, kind=kind: kind(**keywords)
        )
        for kind, arguments in ARGUMENTS.items()
    )


INDICES = st.integers(0, 3)
DIGESTS = st.sampled_from(["d0", "d1", "d2", "d3", "x"])
WORDS = st.text(max_size=12)
FILES = st.sampled_from(["/data/a.rec", "/dev/null", "pipe:[1]"])
TEXTS = st.sampled_from(["bad sample", "[Errno 5] Input/output error", "x is truncated", ""])
PHASES = st.sampled_from([START, EPOCH_1, EPOCH_2, RECOVERY, DONE])
CALLS = st.sampled_from(["read", "openat", "mmap", "signal 9"])

_batches = st.lists(INDICES, min_size=1, max_size=2).map(tuple)
_samples = st.lists(st.builds(Sample, DIGESTS), max_size=2).map(tuple)
_raised = st.builds(Raised, st.sampled_from(["OSError", "RuntimeError"]), TEXTS, TEXTS)
_firings = st.builds(
    Firing,
    INDICES,
    INDICES,
    COUNTS,
    CALLS,
    st.none() | FILES,
    INDICES,
    kind=st.sampled_from(FiringKind),
)
_named = st.dictionaries(st.sampled_from(["3", "4"]), FILES, max_size=2)
_resources = st.builds(Resources, st.sampled_from(Stage), _named, _named)
_counts = st.builds(FileCounts, *[COUNTS] * 8)
_workers = st.builds(
    WorkerFacts, INDICES, COUNTS, COUNTS, st.dictionaries(FILES, _counts, max_size=2)
)
_notes = st.builds(SavedState, INDICES) | st.builds(
    Absence, st.none() | INDICES, st.sampled_from(Reason), st.builds(Position, INDICES, INDICES)
)


def _passes(phases: st.SearchStrategy[Phase]) -> st.SearchStrategy[Pass]:
    batches = st.builds(Batch, _batches | st.none(), _samples, DIGESTS, is_whole=st.booleans())
    deliveries = st.lists(batches, max_size=3).map(tuple)
    drawn = st.lists(_batches, max_size=3).map(tuple)
    return st.builds(Pass, phases, drawn, deliveries, st.none() | _raised, st.booleans())


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    """Any facts that a trial could write down, and many that none would."""
    schedule = tuple(draw(st.lists(any_fault(), max_size=2)))
    firing_tuples = st.lists(_firings, max_size=2).map(tuple)
    facts = tuple(
        FaultFacts(fault, 9, len(firings), draw(st.integers(0, 1)), firings)
        for fault in schedule
        for firings in [draw(firing_tuples)]
    )
    epochs = tuple(draw(st.lists(_passes(st.just(EPOCH_1)), max_size=2)))
    request = TrialRequest(
        schedule,
        draw(st.dictionaries(WORDS, st.none() | st.booleans() | st.integers() | WORDS, max_size=2)),
        epochs=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 9)),
        deadline=draw(st.floats(0.1, 100)),
    )
    return Outcome(
        request,
        LoaderFacts(kind=draw(st.sampled_from(["map", "iterable"]))),
        passes=(*epochs, *draw(st.lists(_passes(st.just(RECOVERY)), max_size=1))),
        faults=facts,
        processes=tuple(draw(st.lists(_workers, max_size=2))),
        resources=tuple(draw(st.lists(_resources, max_size=3))),
        phase=draw(PHASES),
        duration=draw(st.floats(0, 100)),
        end=TrialEnd(exitcode=draw(st.sampled_from([0, -9])), stacks=draw(WORDS)),
        stderr=draw(WORDS),
        notes=tuple(draw(st.lists(_notes, max_size=2))),
    )


def references() -> st.SearchStrategy[Reference]:
    """Each sample of a dataset or, if they cannot be distinguished, each batch of one or two."""
    numbers = range(4)
    keys = [*((number,) for number in numbers), *itertools.product(numbers, repeat=2)]
    kinds = st.sampled_from(["map", "iterable"])
    samples, batches = st.builds(Sample, DIGESTS), st.tuples(DIGESTS)
    return st.builds(Reference, kinds, _by_name(numbers, samples)) | st.builds(
        Reference, st.just("map"), st.just(()), _by_name(keys, batches)
    )


def _by_name(names: Iterable[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*(st.tuples(st.just(name), values) for name in names))


def contracts() -> st.SearchStrategy[Contract]:
    return st.builds(Contract, survives=st.booleans(), names_file=st.booleans())
