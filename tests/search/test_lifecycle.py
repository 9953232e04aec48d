"""Bugs in the lifecycle of a loader are found, and shrunk to the fewest steps that show them."""

from __future__ import annotations

import pickle
import re
import shutil
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract, Verdict, explore_lifecycle
from pytest_dataloader_faults._trial import run_lifecycle
from pytest_dataloader_faults.battery._survey import survey
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import (
    HungRead,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.lifecycle import (
    Arm,
    BreakEpoch,
    DeleteLoader,
    Disarm,
    Iterate,
    KillWorker,
    NewLoader,
    PickleDataset,
    StartEpoch,
)
from pytest_dataloader_faults.search import replay
from pytest_dataloader_faults.search._explore import STEPS
from pytest_dataloader_faults.search._lifecycle_runner import LIFECYCLE_KINDS, programs
from support.datasets import Records, RecordStream
from support.inner import run_forked
from support.lifecycles import (
    SPECIMENS,
    STAYS,
    GivesOnce,
    KeepsFilesOpen,
    KeepsHalves,
    LosesItsFile,
    shared_by,
)

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
HOW = {"database": None, "on_fail": None}
ALIVE = {"loader": None, "deadline": 20.0, "seed": 0, "engine": "auto"}


@pytest.fixture(autouse=True)
def _shared_memory_is_removed(records):
    yield
    shutil.rmtree(shared_by(records))


@pytest.mark.parametrize("kind", SPECIMENS)
def test_each_bug_shows_after_its_steps_and_not_without_its_cause(records, kind):
    """A specimen fails in the last step, with its verdict; without the cause it passes."""
    steps = kind.steps
    with pytest.raises(CheckFailedError) as raised:
        replay(lambda: kind(records), *steps)
    text = str(raised.value)
    assert text.startswith(f"{kind.verdict}: in step {len(steps)}, {steps[-1]!r}: ")
    assert kind.text in text
    healed = replay(lambda: kind(records, healed=True), *steps)
    assert healed in (Verdict.SURVIVED, Verdict.FAILED_CLEANLY)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECIMENS)
def test_no_step_of_a_shortest_list_can_be_left_out(records, kind):
    """What is known to be the fewest steps really is: one less, and nothing is found."""
    for place in range(1, len(kind.steps)):
        fewer = (*kind.steps[:place], *kind.steps[place + 1 :])
        try:
            replay(lambda: kind(records), *fewer)
        except FaultNotFiredError:
            continue


NEAR = {
    GivesOnce: {"steps": [NewLoader, Iterate, StartEpoch], "max_steps": 5},
    LosesItsFile: {"steps": [Iterate, PickleDataset], "max_steps": 3},
    KeepsHalves: {
        "steps": [Iterate, Arm, Disarm],
        "kinds": [TruncatedFile],
        "files": "*/00.rec",
        "max_steps": 6,
    },
}
"""Where to look, so that a few examples will do."""


@pytest.mark.parametrize(
    "kind", [LosesItsFile, *(pytest.param(each, marks=pytest.mark.slow) for each in NEAR)]
)
def test_a_bug_is_found_and_shrunk_to_its_steps(records, kind):
    """The shrunk program is the shortest there is."""
    found = explore_lifecycle(lambda: kind(records), seed=1, **NEAR[kind], **HOW)
    assert (found.verdict, found.steps) == (kind.verdict, kind.steps)
    assert found.describe().startswith(f"{found.examples} examples tried, ")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [each for each in SPECIMENS if each.__name__ != "LeavesALock"])
def test_every_bug_is_found_among_all_steps(records, kind):
    """Prints how many lifecycles it took, of any steps and faults."""
    found = explore_lifecycle(lambda: kind(records), seed=1, max_examples=400, **HOW)
    sys.stdout.write(
        f"| `{kind.__name__}` | {found.examples} | {found.trials} | `{found.steps}` |\n"
    )
    assert found.verdict is kind.verdict
    assert len(found.steps) == len(kind.steps)


@pytest.mark.parametrize("kind", [Records, pytest.param(RecordStream, marks=pytest.mark.slow)])
def test_healthy_datasets_pass(records, kind):
    """They fail in no lifecycle, and faults fire in some."""
    near = {"steps": [Iterate, Arm, StartEpoch], "kinds": [OpenError], "files": "*/00.rec"}
    found = explore_lifecycle(
        lambda: kind(records), max_examples=12, max_steps=5, seed=1, **near, **HOW
    )
    assert (found.verdict, found.failure, found.steps) == (Verdict.FAILED_CLEANLY, None, None)
    assert found.trials == sum(found.verdicts.values())
    assert sum(found.fired.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [Records, RecordStream, LosesItsFile, KeepsFilesOpen, KeepsHalves])
def test_healthy_datasets_pass_many_lifecycles(records, kind):
    """Those whose cause was removed are healthy, too."""
    healed = {} if kind in (Records, RecordStream) else {"healed": True}
    found = explore_lifecycle(lambda: kind(records, **healed), max_examples=300, seed=3, **HOW)
    assert found.failure is None


def _facts(lifecycle):
    """All that has to be the same again."""
    return [
        (
            [(one.delivered, one.complete, one.exception and one.exception.type) for one in passes],
            [(each.reached, each.fired, each.surfaced) for each in moment.outcome.faults],
            (
                moment.armed,
                moment.iterators_started,
                moment.running,
                moment.processes,
                moment.leftover_files,
            ),
            [sorted(files) for files in moment.open_files.values()],
        )
        for moment in lifecycle.step_outcomes
        for passes in [moment.outcome.passes]
    ]


EVENTFUL = (
    NewLoader(num_workers=2, persistent_workers=True),
    Arm(ReadError("*/05.rec", times=1)),
    Iterate(1),
    Iterate(),
    Disarm(),
    Arm(OpenError("*.rec", errno=2, nth=3)),
    StartEpoch(),
    Iterate(2),
    Disarm(),
    KillWorker(1),
    Iterate(),
    PickleDataset(),
    Iterate(1),
    BreakEpoch(),
    DeleteLoader(),
    NewLoader(batch_size=1),
    Iterate(),
)


def test_a_lifecycle_gives_the_same_again(records):
    """The same steps meet the same faults, give the same samples and leave the same."""
    all_three = [run_lifecycle(lambda: Records(records), EVENTFUL, **ALIVE) for _ in range(3)]
    assert all(len(lifecycle.step_outcomes) == len(EVENTFUL) for lifecycle in all_three)
    assert _facts(all_three[0]) == _facts(all_three[1])
    read, opened, killed = all_three[0].outcome.faults
    assert (read.fired, opened.fired > 0, killed.fired) == (1, True, 1)
    assert read.surfaced == opened.surfaced == killed.surfaced == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_lifecycle_gives_the_same_again(records):
    """Random lifecycles, each run twice; prints how many were alike."""
    found, alike = survey(lambda: Records(records)), Counter()

    @settings(max_examples=150, database=None, derandomize=True, deadline=None)
    @given(programs(found, LIFECYCLE_KINDS, STEPS, 12))
    def example(steps):
        one, two = (_facts(run_lifecycle(lambda: Records(records), steps, **ALIVE)) for _ in "ab")
        alike[one == two] += 1
        assert one == two, steps

    example()
    sys.stdout.write(f"{alike[True]} lifecycles gave the same twice\n")


def test_a_fault_begins_and_ends_in_workers_that_run(records):
    """Nothing before it is armed, what it is about after that, nothing once it is disarmed."""
    steps = (
        NewLoader(batch_size=1, persistent_workers=True),
        Iterate(),
        Arm(OpenError("*/00.rec")),
        Iterate(),
        Disarm(),
        Iterate(),
    )
    lifecycle = run_lifecycle(lambda: Records(records), steps, **ALIVE)
    fired = [[each.fired for each in moment.outcome.faults] for moment in lifecycle.step_outcomes]
    assert fired == [[0], [0], [0], [1], [1], [1]]
    ends = [one.exception and one.exception.type for one in lifecycle.outcome.passes]
    assert ends == [None, "OSError", None]
    assert {moment.iterators_started for moment in lifecycle.step_outcomes[1:]} == {1}


def test_the_python_engine_switches_faults_too(records):
    """It decides in the worker, which gets the switch as it begins a batch."""
    steps = (STAYS, Iterate(), Arm(OpenError("*/00.rec")), Iterate(), Disarm(), Iterate())
    lifecycle = run_lifecycle(lambda: Records(records), steps, **{**ALIVE, "engine": "python"})
    fired = [[each.fired for each in moment.outcome.faults] for moment in lifecycle.step_outcomes]
    assert fired == [[0], [0], [0], [1], [1], [1]]


def test_the_failure_ends_with_a_test_that_repeats_it(records, tmp_path):
    """What is printed, pasted into a file of its own, fails of the same verdict."""
    with pytest.raises(CheckFailedError) as raised:
        replay(lambda: KeepsHalves(records), *KeepsHalves.steps)
    text = str(raised.value)
    assert "fault: TruncatedFile(path='*/00.rec')" in text
    pasted = re.search(r"reproduce: \n(.*)\Z", text, re.DOTALL)[1]
    pasted = (
        "from pathlib import Path\nfrom support.lifecycles import KeepsHalves\n"
        f"make_dataset = lambda: KeepsHalves(Path({str(records)!r}))\n{pasted}\n"
    )
    (tmp_path / "test_pasted.py").write_text(pasted, encoding="utf-8")
    done = run_forked(tmp_path, "-q", "-p", "no:cacheprovider", "test_pasted.py")
    done.assert_outcomes(failed=1)
    assert "poisoned: in step 5, Iterate(): after the fault was gone" in done.stdout.str()


def test_what_never_fires_is_no_pass(records):
    """It counts as not exercised, and a search that showed nothing else says so."""
    with pytest.raises(FaultNotFiredError, match=r"OpenError\(path='\*/99.rec'\) never fired"):
        replay(lambda: Records(records), STAYS, Arm(OpenError("*/99.rec")), Iterate())
    with pytest.raises(FaultNotFiredError, match=r"in none of \d+ lifecycles: not_exercised"):
        explore_lifecycle(
            lambda: Records(records), steps=[Arm], max_examples=5, seed=5, database=None
        )


def test_an_error_that_torch_loses_is_no_failure_of_the_dataset(records):
    """An error as a persistent worker begins another epoch ends it; it is printed, and no more."""
    steps = (STAYS, Arm(OpenError("*/00.rec")), Iterate(), Iterate())
    healed = replay(lambda: KeepsFilesOpen(records, healed=True), *steps)
    assert healed is Verdict.FAILED_CLEANLY


def test_a_hang_names_its_step(records):
    """The deadline is for the whole lifecycle."""
    steps = (NewLoader(), Arm(HungRead("*/01.rec")), Iterate())
    with pytest.raises(CheckFailedError, match=r"hung: in step 3, Iterate\(\): no exception"):
        replay(lambda: Records(records), *steps, deadline=2)


def test_the_contract_holds(records):
    """An error that is clean is none that the author promised not to have."""
    steps = (NewLoader(), Arm(OpenError("*/00.rec")), Iterate())
    assert replay(lambda: Records(records), *steps) is Verdict.FAILED_CLEANLY
    with pytest.raises(CheckFailedError, match="promises survives=True"):
        replay(lambda: Records(records), *steps, contract=Contract(survives=True))


class Unpicklable(Records):
    """Has something that cannot be pickled, which forked workers do not mind."""

    def __init__(self, folder):
        super().__init__(folder)
        self.transform = lambda sample: sample


def test_a_dataset_need_not_be_picklable(records):
    """Then that step is left out, and the statistics say so."""
    reports = []
    found = explore_lifecycle(
        lambda: Unpicklable(records),
        **{
            "steps": [Iterate, PickleDataset],
            "max_examples": 2,
            "seed": 1,
            "report": reports.append,
            **HOW,
        },
    )
    assert found.failure is None
    assert "PickleDataset() was left out: a new dataset cannot be pickled" in reports[0]


def test_a_dataset_without_files_can_be_searched(records):
    """Its workers can be killed, but no file of it can fail."""
    found = explore_lifecycle(
        lambda: [*range(8)], **{"max_examples": 4, "seed": 1, "on_fail": None, **HOW}
    )
    assert found.left_out == (
        "Arm() was left out: the workers of this dataset open and read no data file"
    )
    assert found.verdict in {Verdict.SURVIVED, Verdict.FAILED_CLEANLY}, found.failure


@pytest.mark.parametrize("steps", [[NewLoader], [NewLoader, PickleDataset]], ids=str)
def test_a_lifecycle_without_an_epoch_is_no_pass(records, steps):
    """Nothing was asked for, so nothing was shown."""
    with pytest.raises(FaultNotFiredError, match="no epoch was begun"):
        explore_lifecycle(lambda: Records(records), **{"steps": steps, "max_examples": 2, **HOW})


@pytest.mark.parametrize("step", [*EVENTFUL, KillWorker(), NewLoader()])
def test_steps_are_values(step):
    """A repr is the code that makes an equal one; what is equal hashes and pickles alike."""
    assert eval(repr(step)) == step  # noqa: S307  # our own
    assert pickle.loads(pickle.dumps(step)) == step  # noqa: S301  # our own
    assert hash(step) == hash(eval(repr(step)))  # noqa: S307  # our own


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: NewLoader(num_workers=0), "num_workers=0 must be 1 or more"),
        (lambda: NewLoader(batch_size=True), "batch_size=True must be 1 or more"),
        (lambda: NewLoader(persistent_workers=1), "persistent_workers=1 must be True or False"),
        (lambda: Iterate(0), "batches=0 must be 1 or more, or None"),
        (lambda: KillWorker(-1), "worker=-1 must be a worker id"),
        (lambda: Arm(WorkerKilled()), r"fault=WorkerKilled\(\) must be a fault of files"),
        (lambda: Arm("x"), "fault='x' must be a fault of files"),
        (lambda: replay(list, Iterate()), r"step 1 is Iterate\(\), but there is no loader"),
        (
            lambda: replay(list, STAYS, DeleteLoader(), BreakEpoch()),
            r"step 3 is BreakEpoch\(\), but there",
        ),
        (
            lambda: replay(list, STAYS, OpenError()),
            "step 2 is .*not both.*Arm",
        ),
        (lambda: replay(list, STAYS, epochs=2), "epochs=2 must be left out with steps"),
        (lambda: explore_lifecycle(list, max_steps=1), "max_steps=1 must be an int, 2 or more"),
        (
            lambda: explore_lifecycle(list, max_examples=0),
            "max_examples=0 must be an int, 1 or more",
        ),
        (
            lambda: explore_lifecycle(list, steps=[int]),
            "steps=.* must be a list of one or more of New",
        ),
        (
            lambda: explore_lifecycle(list, kinds=[WorkerKilled]),
            "kinds=.* must be a list of one or",
        ),
        (lambda: explore_lifecycle(list, loader={"num_workers": 2}), "must not have 'num_workers'"),
        (lambda: explore_lifecycle(list, loader={"batch_size": 8}), "must not have 'batch_size'"),
        (lambda: explore_lifecycle(list, on_fail="no"), "on_fail='no' must be one of"),
        (lambda: explore_lifecycle(list, report=3), "report=3 must be a function of a str"),
        (
            lambda: replay(list, STAYS, KillWorker(1)),
            r"step 2 is KillWorker\(1\), but the loader has num_w",
        ),
    ],
)
def test_bad_arguments_are_refused(make, text):
    """By their name and what is allowed."""
    with pytest.raises(InvalidArgumentError, match=text):
        make()


def test_a_ready_loader_is_refused(records):
    """A lifecycle makes its loaders itself."""
    with pytest.raises(InvalidArgumentError, match="returned a ready DataLoader"):
        replay(lambda: DataLoader(Records(records)), NewLoader(), Iterate())


STATISTICS = """
from pytest_dataloader_faults.lifecycle import Iterate
from support.datasets import Records, write_records


def test_x(dataloader_faults, tmp_path):
    records = write_records(tmp_path / "records")
    dataloader_faults.explore_lifecycle(
        lambda: Records(records), steps=[Iterate], max_examples=2, seed=1, database=None
    )
"""


def test_the_fixture_puts_its_statistics_where_hypothesis_has_them(inner):
    """``--hypothesis-show-statistics`` shows what was met, as for ``@given``."""
    result = inner(STATISTICS, "--hypothesis-show-statistics")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_inner.py::test_x:", "2 examples tried; * showed something"])
