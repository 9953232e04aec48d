"""What strategies draw: valid, as simple as can be, refused in words, printed as code."""

from __future__ import annotations

import warnings

import hypothesis.errors
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, strategies
from pytest_dataloader_faults.battery.survey import DataFiles
from pytest_dataloader_faults.faults.kinds import NetworkFault
from support.rows import rows

ONE, TWO = "*/00.rec", "*/01.rec"
HOST, OTHER = "tcp://192.0.2.1:80", "tcp://192.0.2.2:80"
FILES = DataFiles(
    opens={ONE: 1, TWO: 2},
    reads={ONE: 2, TWO: 4},
    all_files="*.rec",
    batches=4,
    connections={HOST: 1, OTHER: 2},
    writes={ONE: 1, TWO: 2},
    all_written="*.rec",
)
UNREAD = DataFiles(opens={}, reads={})
quick = settings(database=None, derandomize=True, deadline=None)
few = settings(quick, max_examples=30)

SIMPLEST = [
    faults.OpenError(ONE),
    faults.ReadError(ONE),
    faults.ShortRead(ONE, times=1),
    faults.TruncatedFile(ONE),
    faults.CorruptedFile(ONE),
    faults.ClosedDescriptor(ONE),
    faults.SlowRead(ONE, seconds=0.05, times=1),
    faults.HungRead(ONE),
    faults.WriteError(ONE),
    faults.ShortWrite(ONE, times=1),
    faults.ConnectError(HOST),
    faults.ConnectionReset(HOST),
    faults.ConnectionClosed(HOST),
    faults.DescriptorExhaustion(),
    faults.SharedMemoryExhaustion(),
    faults.PinMemoryThreadDeath(),
    faults.WorkerKilled(),
    faults.WorkerExited(1),
    faults.WorkerHung(),
]
each_kind = pytest.mark.parametrize("simplest", SIMPLEST, ids=lambda fault: type(fault).__name__)


def _of_kind(kind):
    return strategies.faults(files=FILES, kinds=[kind])


def test_every_kind_is_tried():
    """The list above leaves none out."""
    assert [type(fault) for fault in SIMPLEST] == [*faults.KINDS.values()]


@each_kind
def test_each_shrinks_to_the_first_file_and_the_first_time(simplest):
    """The simplest fault of each kind is the one with the shortest repr."""
    assert find(_of_kind(type(simplest)), lambda _: True, settings=quick) == simplest


@each_kind
def test_each_is_drawn_for_the_files_there_are(simplest):
    """Every example is of that class, about those files, and within what they are met by."""

    @few
    @given(_of_kind(type(simplest)))
    def example(fault):
        assert type(fault) is type(simplest)
        is_of_connections = isinstance(fault, NetworkFault)
        meant = {HOST, OTHER, "tcp://*"} if is_of_connections else {ONE, TWO, "*.rec", "*"}
        assert set(fault.globs) <= meant
        assert 1 <= fault.trigger.nth <= 6
        assert getattr(fault, "workers", None) in {None, (0,), (1,)}
        assert eval(repr(fault), vars(faults)) == fault  # noqa: S307  # our own repr

    example()


def test_all_files_together_are_met_as_often_as_all_of_them():
    """The last of all reads can be meant, and no read after it."""
    reads = _of_kind(faults.ReadError)
    last = find(reads, lambda fault: fault.nth > 4, settings=quick)
    assert (last.path, last.nth) == ("*.rec", 5)
    with pytest.raises(hypothesis.errors.NoSuchExample):
        find(reads, lambda fault: fault.nth > 6, settings=quick)


def test_schedules_hold_several_faults():
    """From the fewest to the most."""
    sizes = set()

    @few
    @given(strategies.fault_schedules(files=FILES, min_faults=2, max_faults=3))
    def example(schedule):
        sizes.add(len(schedule))
        assert isinstance(schedule, tuple)

    example()
    assert sizes == {2, 3}


@pytest.mark.parametrize("kind", strategies.DEFAULT_KINDS)
def test_schedules_shrink_to_the_one_fault_that_matters(kind):
    """Whatever else is drawn beside it goes."""
    (fault,) = find(
        strategies.fault_schedules(files=FILES),
        lambda schedule: any(type(fault) is kind for fault in schedule),
        settings=settings(quick, max_examples=1000),
    )
    assert fault in SIMPLEST


def test_faults_that_the_files_cannot_meet_are_not_drawn():
    """A dataset without files has workers that can die, and that is all."""

    @few
    @given(strategies.faults(files=UNREAD))
    def example(fault):
        assert isinstance(fault, (faults.WorkerKilled, faults.WorkerExited))

    example()


def test_globs_will_do_for_connections():
    """As for files, of which the faults are others."""
    strategy = strategies.fault_schedules(files=[HOST], kinds=[faults.ConnectError])
    assert find(strategy, lambda _: True, settings=quick) == (faults.ConnectError(HOST),)
    with pytest.raises(hypothesis.errors.InvalidArgument, match="kinds="):
        find(strategies.faults(files=["*.jpg"], kinds=[faults.ConnectError]), lambda _: True)


def test_globs_will_do_for_files():
    """Without a survey the files are what the globs mean."""
    strategy = strategies.fault_schedules(files=["*.jpg", "*.json"], kinds=[faults.ReadError])
    assert find(strategy, lambda _: True, settings=quick) == (faults.ReadError("*.jpg"),)
    both = find(strategy, lambda drawn: isinstance(drawn[0].path, tuple), settings=quick)
    assert both == (faults.ReadError(("*.jpg", "*.json")),)


def test_loaders_shrink_to_one_forked_worker():
    """As few options as can be, with the batch size that trials have by default."""
    simplest = find(strategies.loader_options(), lambda _: True, settings=quick)
    assert simplest == {"num_workers": 1, "batch_size": 4}


def test_loaders_are_such_as_torch_accepts():
    """Every drawn set of options makes a loader, and each option is drawn."""
    names, drawn = set(), []

    @settings(quick, max_examples=150)
    @given(
        strategies.loader_options(
            min_workers=0, max_workers=3, start_methods=["fork", "spawn"], in_order=False, timeout=9
        )
    )
    def example(options):
        drawn.append(options)
        names.update(options)
        DataLoader(range(20), **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch counts the machine's cores.
        example()
    assert names == {
        *("num_workers", "batch_size", "shuffle", "persistent_workers", "prefetch_factor"),
        *("multiprocessing_context", "timeout"),
        "in_order",
    }
    assert {options["num_workers"] for options in drawn} == {0, 1, 2, 3}
    assert {options["batch_size"] for options in drawn} == set(range(1, 9))


def test_access_is_a_sampler():
    """Any samples in any order; the first one alone is the simplest."""
    access = strategies.dataset_access(samples=5)
    assert find(access, lambda _: True, settings=quick) == [0]
    repeated = find(access, lambda drawn: len(drawn) > len(set(drawn)), settings=quick)
    assert repeated == [0, 0]

    @few
    @given(strategies.dataset_access(files=FILES, max_size=3))
    def example(drawn):
        assert len(drawn) <= 3
        assert set(drawn) <= set(range(16))
        assert len(DataLoader(range(16), sampler=drawn)) == len(drawn)

    example()


REFUSED = {
    "faults(files=3)": "files=3 must be a glob or a list of globs",
    "faults(max_workers=0)": "max_workers=0 must be an int, 1 or more",
    "faults(kinds=[int])": r"kinds=\[.*int.*\] must be a list of one or more of OpenError, ReadErr",
    "faults(kinds=[faults.HungRead], files=UNREAD)": "must have one that can happen to these files",
    "fault_schedules(max_faults=0)": "max_faults=0 must be an int, 1 or more",
    "fault_schedules(min_faults=4)": "max_faults=3 must be an int, 4 or more",
    "loader_options(max_workers=0)": "max_workers=0 must be an int, 1 or more",
    "loader_options(min_workers=-1)": "min_workers=-1 must be an int, 0 or more",
    "loader_options(max_batch_size=True)": "max_batch_size=True must be an int, 1 or more",
    "loader_options(start_methods='fork')": "start_methods='fork' must be a list of one or more",
    "loader_options(shuffle=None)": "shuffle=None must be True or False",
    "loader_options(timeout=-1)": "timeout=-1 must be 0 or more seconds",
    "dataset_access(samples=0)": "samples=0 must be an int, 1 or more",
    "dataset_access(samples=3, max_size=0)": "max_size=0 must be an int, 1 or more",
}


def _made(code):
    scope = {**vars(strategies), "faults": faults, "UNREAD": UNREAD}
    name, _, arguments = code.partition("(")
    scope["strategy"] = getattr(strategies, name)
    return eval(f"strategy({arguments}", scope)  # noqa: S307  # the code is above


@rows("code", REFUSED)
def test_bad_arguments_are_refused_by_name_and_range(code):
    """The text has the argument, its value, and what is allowed."""
    with pytest.raises(hypothesis.errors.InvalidArgument, match=REFUSED[code]):
        find(_made(code), lambda _: True, settings=quick)


@rows("name", strategies.__all__)
def test_arguments_are_by_keyword(name):
    """Order never matters."""
    with pytest.raises(TypeError, match="positional"):
        getattr(strategies, name)(FILES)


@rows(
    "code",
    [
        "faults(files='*.jpg', max_workers=1)",
        "loader_options(max_workers=4, start_methods=('fork', 'spawn'))",
        "fault_schedules(files=DataFiles(opens={'a': 1}, reads={'a': 2}), max_faults=2)",
    ],
)
def test_reprs_are_code(code):
    """A strategy prints as what made it, and that makes it again."""
    scope = {**vars(strategies), "DataFiles": DataFiles}
    made = eval(code, scope)  # noqa: S307  # the code is above
    again = eval(repr(made), scope)  # noqa: S307  # our own repr
    assert repr(again) == repr(made)
    assert repr(made).partition("(")[0] == code.partition("(")[0]


def test_a_failing_example_prints_faults_as_code():
    """What Hypothesis prints can be pasted into ``@example``."""

    @settings(quick, print_blob=False)
    @given(strategies.fault_schedules(files=FILES))
    def example(schedule):
        assert not any(isinstance(fault, faults.WorkerKilled) for fault in schedule)

    with pytest.raises(AssertionError) as raised:
        example()
    assert "schedule=(WorkerKilled(),)" in "\n".join(raised.value.__notes__)


def test_ordinary_use_is_healthy():
    """No health check fails: nothing is filtered, and drawing is quick."""

    @settings(few, suppress_health_check=[])
    @given(
        st.data(),
        strategies.fault_schedules(files=FILES, max_faults=8),
        strategies.loader_options(max_workers=8),
        strategies.dataset_access(files=FILES),
    )
    def example(data, schedule, options, access):
        data.draw(strategies.faults(files=FILES, kinds=list(faults.KINDS.values())))

    example()
