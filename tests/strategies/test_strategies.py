"""What strategies draw: valid, as simple as can be, refused in words, printed as code."""

import warnings

import hypothesis.errors
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, strategies
from pytest_dataloader_faults.faults.files import NetworkFault
from pytest_dataloader_faults.strategies import DataFiles
from support.rows import rows

ONE, TWO = "*/00.rec", "*/01.rec"
FOLDER = "*/records"
HOST, OTHER = "tcp://192.0.2.1:80", "tcp://192.0.2.2:80"
FILES = DataFiles(
    counts={
        "opens": {ONE: 1, TWO: 2},
        "reads": {ONE: 2, TWO: 4},
        "connections": {HOST: 1, OTHER: 2},
        "writes": {ONE: 1, TWO: 2},
        "listings": {FOLDER: 1},
        "locks": {ONE: 1, TWO: 2},
        "starts": {"": 2},
    },
    together={
        **dict.fromkeys(("opens", "reads", "writes", "locks"), "*.rec"),
        "connections": "tcp://*",
        "listings": FOLDER,
    },
    batches=4,
)
UNREAD = DataFiles(counts={})
quick = settings(database=None, derandomize=True, deadline=None)
short_run = settings(quick, max_examples=30)

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
    faults.WorkerKilled(),
    faults.WorkerExited(1),
    faults.WorkerHung(),
    faults.HttpError(HOST),
    faults.ListingOrder(FOLDER),
    faults.ListingError(FOLDER),
    faults.StrayEntry(FOLDER),
    faults.LockError(ONE),
    faults.MemoryExhaustion(),
    faults.ThreadExhaustion(),
]
each_kind = rows("simplest", SIMPLEST)


def _of_kind(kind):
    return strategies.faults(files=FILES, kinds=[kind])


def test_every_kind_is_tried():
    assert {type(fault) for fault in SIMPLEST} == {*faults.KINDS.values()}


@each_kind
def test_each_shrinks_to_the_first_file_and_the_first_time(simplest):
    assert find(_of_kind(type(simplest)), lambda _: True, settings=quick) == simplest


@each_kind
def test_each_is_drawn_for_the_files_there_are(simplest):
    @short_run
    @given(_of_kind(type(simplest)))
    def example(fault):
        assert type(fault) is type(simplest)
        is_of_connections = isinstance(fault, NetworkFault)
        files = {ONE, TWO, FOLDER, "*.rec", "*"}
        paths = {HOST, OTHER, "tcp://*"} if is_of_connections else files
        assert set(fault.globs) <= paths
        assert 1 <= fault.trigger.nth <= 6
        assert getattr(fault, "workers", None) in {None, (0,), (1,)}
        assert eval(repr(fault), vars(faults)) == fault  # noqa: S307  # our own repr

    example()


def test_all_files_together_are_met_as_often_as_all_of_them():
    reads = _of_kind(faults.ReadError)
    late_read = find(reads, lambda fault: fault.nth > 4, settings=quick)
    assert (late_read.path, late_read.nth) == ("*.rec", 5)
    with pytest.raises(hypothesis.errors.NoSuchExample):
        find(reads, lambda fault: fault.nth > 6, settings=quick)


def test_schedules_hold_several_faults():
    sizes = set()

    @short_run
    @given(strategies.fault_schedules(files=FILES, min_faults=2, max_faults=3))
    def example(schedule):
        sizes.add(len(schedule))
        assert isinstance(schedule, tuple)

    example()
    assert sizes == {2, 3}


@rows("kind", strategies.DEFAULT_KINDS[::4])
def test_schedules_shrink_to_the_one_fault_that_matters(kind):
    (fault,) = find(
        strategies.fault_schedules(files=FILES),
        lambda schedule: any(type(fault) is kind for fault in schedule),
        settings=settings(quick, max_examples=1000),
    )
    assert fault in SIMPLEST


def test_faults_that_the_files_cannot_meet_are_not_drawn():
    @short_run
    @given(strategies.faults(files=UNREAD))
    def example(fault):
        assert isinstance(fault, (faults.WorkerKilled, faults.WorkerExited))

    example()


def test_globs_will_do_for_connections():
    strategy = strategies.fault_schedules(files=[HOST], kinds=[faults.ConnectError])
    assert find(strategy, lambda _: True, settings=quick) == (faults.ConnectError(HOST),)
    with pytest.raises(hypothesis.errors.InvalidArgument, match="kinds="):
        find(strategies.faults(files=["*.jpg"], kinds=[faults.ConnectError]), lambda _: True)


def test_globs_will_do_for_files():
    strategy = strategies.fault_schedules(files=["*.jpg", "*.json"], kinds=[faults.ReadError])
    assert find(strategy, lambda _: True, settings=quick) == (faults.ReadError("*.jpg"),)
    schedule = find(strategy, lambda drawn: isinstance(drawn[0].path, tuple), settings=quick)
    assert schedule == (faults.ReadError(("*.jpg", "*.json")),)


def test_loaders_shrink_to_one_forked_worker():
    simplest = find(strategies.loader_options(), lambda _: True, settings=quick)
    assert simplest == {"num_workers": 1, "batch_size": 4}


def test_loaders_are_such_as_torch_accepts():
    names, drawn = set(), []

    @settings(quick, max_examples=150)
    @given(strategies.loader_options(min_workers=0, max_workers=3, start_methods=["fork", "spawn"]))
    def example(options):
        drawn.append(options)
        names.update(options)
        DataLoader(range(20), **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch counts the machine's cores.
        example()
    assert names == {
        *("num_workers", "batch_size", "shuffle", "persistent_workers", "prefetch_factor"),
        "multiprocessing_context",
    }
    assert {options["num_workers"] for options in drawn} == {0, 1, 2, 3}
    assert {options["batch_size"] for options in drawn} == set(range(1, 9))


REFUSED = {
    "faults(files=3)": "files=3 must be a glob or a list of globs",
    "faults(max_workers=0)": "max_workers=0 must be an int, 1 or more",
    "faults(kinds=[int])": r"kinds=\[.*int.*\] must be a list of one or more of OpenError, ReadErr",
    "faults(kinds=[faults.HungRead], files=UNREAD)": "must have a fault that can occur in files=",
    "fault_schedules(max_faults=0)": "max_faults=0 must be an int, 1 or more",
    "fault_schedules(min_faults=4)": "max_faults=3 must be an int, 4 or more",
    "loader_options(max_workers=0)": "max_workers=0 must be an int, 1 or more",
    "loader_options(min_workers=-1)": "min_workers=-1 must be an int, 0 or more",
    "loader_options(max_batch_size=True)": "max_batch_size=True must be an int, 1 or more",
    "loader_options(start_methods='fork')": "start_methods='fork' must be a list of one or more",
    "loader_options(shuffle=None)": "shuffle=None must be True or False",
}


def _made(code):
    scope = {**vars(strategies), "faults": faults, "UNREAD": UNREAD}
    name, _, arguments = code.partition("(")
    scope["strategy"] = getattr(strategies, name)
    return eval(f"strategy({arguments}", scope)  # noqa: S307  # the code is above


@rows("code", REFUSED)
def test_bad_arguments_are_refused_by_name_and_range(code):
    with pytest.raises(hypothesis.errors.InvalidArgument, match=REFUSED[code]):
        find(_made(code), lambda _: True, settings=quick)


@rows(
    "code",
    [
        "faults(files='*.jpg', max_workers=1)",
        "loader_options(max_workers=4, start_methods=('fork', 'spawn'))",
        "fault_schedules(files=DataFiles(counts={'reads': {'a': 2}}), max_faults=2)",
    ],
)
def test_reprs_are_code(code):
    scope = {**vars(strategies), "DataFiles": DataFiles}
    strategy = eval(code, scope)  # noqa: S307  # the code is above
    again = eval(repr(strategy), scope)  # noqa: S307  # our own repr
    assert repr(again) == repr(strategy)
    assert repr(strategy).partition("(")[0] == code.partition("(")[0]


def test_a_failing_example_prints_faults_as_code():
    @settings(quick, print_blob=False)
    @given(strategies.fault_schedules(files=FILES))
    def example(schedule):
        assert not any(isinstance(fault, faults.WorkerKilled) for fault in schedule)

    with pytest.raises(AssertionError) as raised:
        example()
    assert "schedule=(WorkerKilled(),)" in "\n".join(raised.value.__notes__)


def test_ordinary_use_is_healthy():
    @settings(short_run, suppress_health_check=[])
    @given(
        st.data(),
        strategies.fault_schedules(files=FILES, max_faults=8),
        strategies.loader_options(max_workers=8),
    )
    def example(data, schedule, options):
        data.draw(strategies.faults(files=FILES, kinds=list(faults.KINDS.values())))

    example()
