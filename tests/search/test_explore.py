"""A search finds a dataset that fails, prints a test that repeats it, and passes healthy ones."""

import errno
import re

import pytest
from hypothesis import given, seed, settings

from pytest_dataloader_faults import Contract, Verdict, explore, faults, run_trial, strategies
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.outcomes import Finding, Outcome, TrialRequest
from pytest_dataloader_faults.outcomes.agreement import EXACT
from pytest_dataloader_faults.search import replay
from pytest_dataloader_faults.search._search import (
    Example,
    Search,
    assert_survives_or_fails_cleanly,
    cases,
)
from pytest_dataloader_faults.strategies import DEFAULT_KINDS
from support.corpus.state import Noisy
from support.datasets import Records
from support.judging import survey
from support.planted import ALONE, StaleThenFailing, Zeros
from support.random_samples import Jittered, JitteredZeros, OwnNoise, rounded
from support.specimens import Unsharded

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]

HOW = {"database": None, "derandomize": True}


SIMPLE = {"kinds": [faults.OpenError], "max_faults": 2, "max_epochs": 1, **HOW}


def test_healthy_datasets_pass(records):
    result = explore(lambda: Records(records), max_examples=3, **HOW)
    assert (result.verdict, result.failure, result.outcome) == (Verdict.FAILED_CLEANLY, None, None)
    assert result.trials == sum(result.verdicts.values())
    assert set(result.verdicts) <= {"survived", "failed_cleanly", "not_exercised"}
    assert result.verdicts["not_exercised"] < result.trials / 2
    assert all(result.fired[kind] <= count for kind, count in result.attempted.items())


def test_a_failure_is_shrunk_to_the_least_and_printed_as_a_test_that_repeats_it(records):
    result = explore(lambda: Zeros(records), on_fail=None, max_examples=20, **SIMPLE)
    assert result.verdict is Verdict.CORRUPTED
    (fault,) = result.outcome.schedule
    assert (fault.nth, fault.workers) == (1, None)
    # It reads the first file in place of any that fails: there a lasting error is a clean one.
    assert (fault.path, fault.times) in {("*/00.rec", 1), ("*/01.rec", None)}
    assert result.outcome.request.loader == {"num_workers": 1, "batch_size": 4}
    assert result.examples <= 20
    assert result.trials < 60
    assert result.describe().splitlines()[0].startswith(f"{result.examples} examples tried, ")
    headline = f"corrupted: sample {int(fault.path[2:4])} (batch 0)"
    assert result.failure.startswith(headline)
    assert f"fault: {fault!r}" in result.failure
    printed = re.search(
        r"reproduce: \n(.*?\n    replay\(.*?\)\n)", f"{result.failure}\n", re.DOTALL
    )
    scope = {"make_dataset": lambda: Zeros(records)}
    exec(printed[1], scope)  # noqa: S102  # our own code
    with pytest.raises(CheckFailedError, match=re.escape(headline)):
        scope["test_again"]()


def test_tolerated_errors_are_found_out(records):
    profile = survey(lambda: StaleThenFailing(records), deadline=10)
    search = Search(profile, lambda: None)
    assert search.try_transient_errors(ALONE, 2, [faults.OpenError, faults.ShortRead]) is None
    assert profile.files.tolerated_errors == (faults.OpenError("*/00.rec", errno.ESTALE, times=1),)
    assert search.trials == 4


class Ruled(Search):
    """Fails by a rule, without a trial: two kinds of faults of the same file."""

    def _run(self, case):
        single, two = (
            {each.path for each in case.schedule if type(each) is kind}
            for kind in (faults.OpenError, faults.TruncatedFile)
        )
        verdict = Verdict.CORRUPTED if single & two else Verdict.SURVIVED
        request = (case.schedule, case.loader, case.epochs, case.seed, 10.0)
        return Example(case, Outcome(TrialRequest(*request)), Finding(verdict, "by the rule"))


def test_every_search_shrinks_to_the_end(records):
    """Cases come again while it shrinks, and Hypothesis must not take that for chance."""
    profile = survey(lambda: Records(records), deadline=10)
    drawn = cases(profile, ALONE, 2, max_faults=3, kinds=strategies.DEFAULT_KINDS)
    shrunk = []
    for first_seed in (0, 1):  # They find it soon.
        search = Ruled(profile, lambda: None)
        if search.run(drawn, first_seed, settings(max_examples=200, database=None, deadline=None)):
            shrunk.append(sorted(map(repr, search.failed.case.schedule)))
    assert len(shrunk) > 1
    examples = [repr(faults.OpenError("*/00.rec")), repr(faults.TruncatedFile("*/00.rec"))]
    assert [each for each in shrunk if each != examples] == []


def test_an_error_that_fails_alone_ends_the_search(records):
    result = explore(lambda: Zeros(records), on_fail=None, max_examples=50, **HOW)
    assert result.verdict is Verdict.CORRUPTED
    assert result.outcome.schedule == (faults.OpenError("*/00.rec", times=1),)
    assert (result.trials, result.examples) == (1, 1)


def test_a_case_is_tried_once(records):
    result = explore(
        lambda: Records(records),
        kinds=[faults.DescriptorExhaustion],
        loader=ALONE,
        max_faults=1,
        max_epochs=1,
        max_examples=30,
        **HOW,
    )
    assert (result.trials, sum(result.attempted.values())) == (1, 1)


def test_what_never_fires_is_no_pass(records):
    with pytest.raises(
        FaultNotFiredError, match="no fault fired in 3 trials: not_exercised: OpenError"
    ):
        explore(
            lambda: Records(records),
            kinds=[faults.OpenError],
            files="*/00.rec",
            loader=strategies.loader_options(max_batch_size=1).map(_of_another_sample),
            max_faults=1,
            max_examples=3,
            **HOW,
        )


def _of_another_sample(options):
    return {"num_workers": 1, "sampler": [1]}


def test_a_failure_without_a_fault_is_reported_as_such(records):
    """The fault-free epoch is the first trial; a stream that is not sharded fails it.

    That has a verdict and facts like any other failure.
    """
    result = explore(lambda: Unsharded(records), on_fail=None, max_examples=1, **HOW)
    assert (result.verdict, result.trials) == (Verdict.CORRUPTED, 0)
    assert result.outcome.schedule == ()
    assert result.failure.startswith("corrupted: 16 samples were delivered more often")


class Indexed(Records):
    """Has as many samples as its index says, and none without the index."""

    def __init__(self, folder):
        super().__init__(folder)
        try:
            count = int((folder.parent / "index").read_text(encoding="ascii"))
        except OSError:
            count = 0
        del self.paths[count:]


def test_a_fault_of_the_constructor_is_found(records):
    (records.parent / "index").write_text("8", encoding="ascii")

    def make():
        return Indexed(records)

    how = {**SIMPLE, "loader": ALONE}
    assert explore(make, max_examples=2, **how).failure is None
    result = explore(make, max_examples=20, on_fail=None, before_init=True, **how)

    assert result.verdict is Verdict.CORRUPTED
    assert "index cannot be opened; only 0 of 8 samples are left" in result.failure
    assert "        before_init=True," in result.failure
    with pytest.raises(CheckFailedError, match="0 of 8 samples"):
        replay(make, *result.outcome.schedule, before_init=True)


def test_files_that_match_nothing_are_refused(records):
    with pytest.raises(InvalidArgumentError, match="matches nothing that the workers read"):
        explore(lambda: Records(records), files="*.none")


def test_a_survey_names_the_files_that_are_read(records):
    (records.parent / "unread.txt").write_text("")
    files = survey(lambda: Records(records), files="*.rec").files
    assert list(files.count("opens")) == [f"*/{number:02}.rec" for number in range(16)]
    assert set(files.count("reads").values()) == {2}
    assert (files.together["reads"], files.batches, files.samples) == ("*.rec", 4, 16)


def test_batches_may_come_as_they_are_ready(records):
    loader = {"num_workers": 2, "batch_size": 2, "in_order": False}
    late = faults.SlowRead("*/00.rec", seconds=0.5, times=1)
    outcome = run_trial(lambda: Records(records), late, loader=loader)
    assert outcome.delivered[0].keys != (0, 1)
    assert survey(lambda: Records(records)).judge(outcome).verdict is Verdict.SURVIVED


def test_a_search_can_be_repeated(records):
    found = survey(lambda: Records(records))
    first, second = (_drawn(found) for _ in range(2))
    assert first == second
    assert len(set(first)) > 10


def _drawn(found):
    drawn = []

    @seed(7)
    @settings(max_examples=20, database=None, deadline=None, derandomize=False)
    @given(cases(found, None, 2, max_faults=3, kinds=DEFAULT_KINDS))
    def draw(case):
        drawn.append(repr(case))

    draw()
    return drawn


RANDOM, ROUNDED = Contract(), Contract(key=rounded)
SHORT = {
    "kinds": [faults.OpenError],
    "max_examples": 2,
    "database": None,
    "derandomize": True,
    "on_fail": None,
}
NARROW = {"loader": ALONE, "max_faults": 1, "max_epochs": 1}
OPEN = faults.OpenError("*/00.rec", times=1)


def test_noise_is_no_violation(records):
    found = explore(lambda: OwnNoise(records), contract=RANDOM, **SHORT)
    assert found.verdict in {Verdict.SURVIVED, Verdict.FAILED_CLEANLY}, found.failure
    assert "  samples were compared by shapes\n" in found.describe()


def test_what_is_put_in_the_place_of_noise_is_found(records):
    found = explore(lambda: JitteredZeros(records), contract=ROUNDED, **NARROW, **SHORT)
    assert found.verdict is Verdict.CORRUPTED
    assert "from pytest_dataloader_faults import Contract\n" in found.failure
    assert f"contract={ROUNDED!r}" in found.failure


def test_a_test_of_ones_own_takes_its_trials_from_the_survey(records):
    found = survey(lambda: Jittered(records), contract=ROUNDED)
    outcome = found.run_trial(OPEN)
    assert assert_survives_or_fails_cleanly(outcome, found).value == "failed_cleanly"
    assert outcome.comparison == EXACT


def test_what_cannot_be_imported_is_said_in_the_printed_test(records):
    loader = {**ALONE, "collate_fn": lambda samples: samples, "worker_init_fn": Idle()}
    contract = Contract(key=lambda sample: rounded(sample[0]))
    how = {**NARROW, **SHORT, "contract": contract, "loader": loader}
    printed = explore(lambda: JitteredZeros(records), **how).failure
    assert "# Insert here: your dataset factory, make_dataset, and other names of your" in printed
    assert "'worker_init_fn': worker_init_fn}" in printed
    compile(printed[printed.index("from pytest_data") :], "printed", "exec")


class Idle:
    def __call__(self, worker):
        """Do nothing."""


def test_trials_that_were_compared_otherwise_are_refused(records):
    """Their fingerprints mean something else: they would all look corrupted."""
    found = survey(lambda: Noisy(records), contract=RANDOM)
    outcome = run_trial(lambda: Noisy(records), OPEN)
    with pytest.raises(InvalidArgumentError, match=r"by 'bytes', but the reference by 'bytes, se"):
        assert_survives_or_fails_cleanly(outcome, found)
