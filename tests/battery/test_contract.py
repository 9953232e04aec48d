"""What a contract asks for and what it allows, in real trials."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, get_worker_info

from pytest_dataloader_faults import Contract, check_dataset, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes.contract import EXACT
from support.corpus.state import Noisy
from support.corpus.swallowing import (
    NextIfGone,
    NextOnError,
    NoneOnError,
    SkipsTooMany,
    without_nones,
)
from support.corpus.truncation import Checked, FromFile, ZerosIfDamaged
from support.datasets import COUNT, Records, RecordStream, joined
from support.random_samples import (
    Jittered,
    JitteredStream,
    JitteredZeros,
    NoisyZeros,
    OwnNoise,
    close,
)
from support.rows import rows
from support.specimens import SharedHandle, ZerosOnError
from support.tensor_dicts import Kept, TensorDicts, ZeroTensorDicts, stacked

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
SKIPS = Contract(may_skip=True)
SUBSTITUTES = Contract(may_substitute=True)
RANDOM = Contract(deterministic=False)


def _ask_all(make, checks, contract, **options):
    """The results of *checks*, which share a fault-free run, in the order of the battery."""
    return check_dataset(make, only=checks, contract=contract, on_fail=None, **options)


def _ask(make, check, contract, **options):
    (result,) = _ask_all(make, check, contract, **options)
    return result


def _strictly(make, result):
    """The verdict on the same facts where nothing is allowed."""
    return result.outcome.judge(take_reference(make)).verdict


def _filtered(dataset):
    return DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=without_nones)


@pytest.mark.parametrize(
    ("check", "engine"),
    [
        ("read-error-first", "kernel"),
        ("read-error-transient", "python"),
        ("truncated-half", "kernel"),
        slow("read-error-first", "python"),
        slow("read-error-transient", "kernel"),
        slow("truncated-half", "python"),
    ],
)
def test_samples_that_a_fault_hit_may_be_skipped(check, engine, records):
    """The loss is counted; without the contract it is a failure."""
    make = functools.partial(_filtered, NoneOnError(records))
    allowed = _ask(make, check, SKIPS, engine=engine)

    assert (allowed.verdict, allowed.passed) == ("survived", True), allowed.explanation
    lost = 2 if check == "read-error-transient" else COUNT
    assert f"{lost} samples that faults hit are missing" in allowed.explanation
    assert _strictly(make, allowed) == "corrupted"


class SkipsTheNext(Records):
    """Leaves out the sample after the one that it could not read."""

    broken = False

    def __getitem__(self, index: int) -> Any:
        if self.broken:
            self.broken = False
            return None
        try:
            return super().__getitem__(index)
        except OSError:
            self.broken = True
            return super().__getitem__(index)


def test_sample_that_no_fault_hit_may_not_be_skipped(records):
    """It was read again, and the next one left out in its place."""
    result = _ask(lambda: _filtered(SkipsTheNext(records)), "read-error-transient", SKIPS)

    assert (result.verdict, result.passed) == ("corrupted", False)
    assert "are missing" in result.explanation.splitlines()[0]


def test_replaced_sample_is_no_skipped_one(records):
    """Who may skip may not give zeros."""
    assert _ask(lambda: ZerosOnError(records), "read-error-first", SKIPS).verdict == "corrupted"


class SkippingStream(RecordStream):
    """Leaves out what it cannot read; with *more*, the rest of its shard too."""

    more = False

    def __iter__(self) -> Any:
        for sample in self._tried():
            if sample is not None:
                yield sample
            elif self.more:
                return

    def _tried(self) -> Any:
        reader = iter(super().__iter__().gi_frame.f_locals[".0"])
        for index in reader:
            try:
                yield self.records[index]
            except OSError:
                yield None


class EndsAtAnError(SkippingStream):
    """Gives up."""

    more = True


@pytest.mark.parametrize(
    ("dataset", "check"),
    [
        slow(NextOnError, "read-error-transient"),
        slow(NextIfGone, "file-missing"),
        (ZerosOnError, "read-error-first"),
        slow(ZerosOnError, "truncated-half"),
        slow(ZerosOnError, "truncated-empty"),
        (ZerosIfDamaged, "corrupted-file"),
    ],
)
def test_samples_that_a_fault_hit_may_be_replaced(dataset, check, records):
    """By a neighbour or a dummy, which are counted; without the contract it is a failure."""
    make = functools.partial(dataset, records)
    allowed = _ask(make, check, SUBSTITUTES)

    assert (allowed.verdict, allowed.passed) == ("survived", True), allowed.explanation
    assert re.search(r"samples? that faults hit (was|were) replaced", allowed.sentence)
    assert _strictly(make, allowed) == "corrupted"


def test_short_data_is_no_substitute(records):
    """A dataset that may replace samples may not give half of one."""
    result = _ask(lambda: FromFile(records), "truncated-half", SUBSTITUTES)

    assert (result.verdict, result.passed) == ("corrupted", False), result.explanation


def test_stream_may_skip_as_many_as_were_hit(records):
    """Of a stream only the number is known."""
    skips, ends = (
        _ask(lambda kind=kind: kind(records), "read-error-transient", SKIPS)
        for kind in (SkippingStream, EndsAtAnError)
    )

    assert (skips.verdict, skips.passed) == ("survived", True), skips.explanation
    assert "2 samples that faults hit are missing" in skips.explanation
    assert ends.verdict == "corrupted"
    assert "faults hit only 2" in ends.explanation


class NoneOnErrorStream(RecordStream):
    """Gives None for what it cannot read, for a ``collate_fn`` that leaves it out."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, COUNT, step):
            try:
                yield self.records[index]
            except OSError:
                yield None


def test_a_whole_batch_may_be_skipped(records):
    """A stream whose batch comes out empty is judged as a map-style dataset is."""
    result = _ask(lambda: _filtered(NoneOnErrorStream(records)), "read-error-first", SKIPS)

    assert (result.verdict, result.passed) == ("survived", True), result.explanation
    assert f"{COUNT} samples that faults hit are missing" in result.explanation


def test_samples_made_together_cannot_be_told_apart(records):
    """Whose read failed in ``__getitems__`` is not known, so any may be missing of that epoch."""
    result = _ask(lambda: _filtered(SkipsTooMany(records)), "read-error-transient", SKIPS)

    firings = [one for each in result.outcome.faults for one in each.firings]
    assert {None} == {one.sample for one in firings}
    assert result.passed


def test_loss_cannot_be_told_from_batches_that_do_not_come_apart(records):
    """That is refused, with the reason."""
    loader = {"num_workers": 2, "batch_size": 4, "collate_fn": joined}
    with pytest.raises(InvalidArgumentError, match=r"may_skip=True\): the batches cannot be taken"):
        _ask(lambda: Records(records), "read-error-first", SKIPS, loader=loader)


def test_damage_is_blamed_on_who_promised_to_notice_it(records):
    """Without the promise nobody can say that a byte on the disk is wrong."""
    promises = Contract(detects_corruption=True)
    found = [
        _ask(lambda kind=kind: kind(records), "corrupted-file", contract)
        for kind, contract in ((Records, Contract()), (Records, promises), (Checked, promises))
    ]

    assert [each.verdict for each in found] == ["survived", "corrupted", "failed_cleanly"]
    assert "the contract does not promise th" in found[0].explanation
    assert [each.passed for each in found] == [True, False, True]


def test_global_generators_are_seeded_by_the_sample(records):
    """So its bytes can be compared, and zeros are no accident."""
    results = _ask_all(
        lambda: Noisy(records),
        ("workers-agree", "two-epochs", "persistent-workers", "read-error-first"),
        RANDOM,
    )

    verdicts = [each.verdict for each in results]
    assert verdicts == ["survived", "survived", "survived", "failed_cleanly"]
    (control,) = results[0].outcome.passes
    assert len({row for each in control.delivered for row in each.rows}) == COUNT


def test_seeded_sample_that_is_replaced_is_found(records):
    """Noise in the place of a picture with noise."""
    assert _ask(lambda: NoisyZeros(records), "read-error-first", RANDOM).verdict == "corrupted"


class ShortNoise(OwnNoise):
    """Gives half a sample for what it cannot read."""

    short = True


@pytest.mark.parametrize(
    ("dataset", "verdict"), [(OwnNoise, "failed_cleanly"), (ShortNoise, "corrupted")]
)
def test_what_stays_random_is_compared_by_its_shapes(dataset, verdict, records):
    """Bytes of no two readings are the same."""
    result = _ask(lambda: dataset(records), "read-error-first", RANDOM)

    assert verdict == result.verdict
    if verdict == "corrupted":
        assert "(32,) instead of torch.Tensor torch.float32 (64,)" in result.explanation


def test_shared_handle_is_found_where_samples_are_random(records):
    """What one worker gives and two do not is no matter of random numbers."""
    assert _ask(lambda: SharedHandle(records), "workers-agree", RANDOM).verdict == "corrupted"


class RandomShape(Records):
    """Cuts out a part of random size."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0][: np.random.default_rng().integers(8, 64)]


class RandomType(Records):
    """Gives what it likes."""

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return random.SystemRandom().choice([[data], {"data": index}])


class ListOnError(RandomShape):
    """Gives a list in place of what it cannot read."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return [0.0]


ONE = {"batch_size": 1, "num_workers": 2}
CHECKS = ("workers-agree", "two-epochs", "read-error-first")


@pytest.mark.parametrize("contract", [Contract(), slow(RANDOM)])
def test_shapes_that_are_random_are_compared_by_types(contract, records):
    """That is little, and each result says so; a wrong type is found."""
    results = [
        result
        for kind, checks in ((RandomShape, CHECKS), (ListOnError, CHECKS[-1]))
        for result in _ask_all(functools.partial(kind, records), checks, contract, loader=ONE)
    ]

    *right, wrong = [each.verdict for each in results]
    assert right == ["survived", "survived", "failed_cleanly"]
    assert wrong == "corrupted", results[-1].explanation
    assert all("compared by types, since shapes differ" in each.explanation for each in results)


def test_types_that_are_random_are_refused(records):
    """Then there is nothing left to compare: both are named, and the cure."""
    told = r"sample \d+ was different .*: .*compare=\.\.\.\)"
    with pytest.raises(UnusableDatasetError, match=told):
        _ask(lambda: RandomType(records), "workers-agree", Contract(), loader=ONE)


class Flips(Records):
    """An augmentation that is rarely chosen: many readings show nothing of it."""

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return (data.flip(0) if random.random() < 1e-9 else data), index


@pytest.mark.parametrize(
    ("dataset", "check", "verdict", "told"),
    [
        slow(Noisy, "workers-agree", "survived", "under seeds"),
        (NoisyZeros, "read-error-first", "corrupted", "under seeds"),
        (Flips, "workers-agree", "survived", "under seeds"),
        slow(OwnNoise, "workers-agree", "survived", "by types and shapes"),
        slow(SharedHandle, "workers-agree", "corrupted", None),
        (Records, "workers-agree", "survived", None),
    ],
)
def test_random_samples_need_no_contract(dataset, check, verdict, told, records):
    """The harness finds out, and each result says how the samples were compared."""
    result = _ask(lambda: dataset(records), check, Contract())

    assert verdict == result.verdict, result.explanation
    assert _how_compared(result) == ([told] if told else [])


def test_only_checks_that_leave_the_seeds_compare_by_shapes(records):
    """The other checks of the same dataset compare its samples under seeds."""
    checks = ("two-epochs", "read-error-first")
    epochs, error = _ask_all(lambda: Noisy(records), checks, Contract())

    assert (epochs.verdict, _how_compared(epochs)) == ("survived", ["by types and shapes"])
    assert (error.verdict, _how_compared(error)) == ("failed_cleanly", ["under seeds"])


def _how_compared(result):
    said = r"^  samples (?:are random|vary from reading to reading): compared (.*)$"
    return re.findall(said, result.explanation, re.MULTILINE)


@pytest.mark.parametrize("collate", [stacked, slow(list)])
@pytest.mark.parametrize(
    ("dataset", "verdicts"),
    [
        (TensorDicts, ["survived", "failed_cleanly"]),
        (ZeroTensorDicts, ["survived", "corrupted"]),
    ],
)
def test_samples_that_refuse_iteration(dataset, verdicts, collate, records):
    """They are compared by what they hold."""
    loader = {"batch_size": 4, "collate_fn": collate, "num_workers": 2}
    results = _ask_all(
        lambda: dataset(records), ("workers-agree", "read-error-first"), Contract(), loader=loader
    )

    assert [each.verdict for each in results] == verdicts, results[-1].explanation


def test_a_cache_may_forget_the_subclass_of_a_tensor(records):
    """Its content is the same."""
    result = _ask(lambda: Kept(records), "two-epochs", Contract(deterministic=True))

    assert result.verdict == "survived", result.explanation


class ShuffledStream(RecordStream):
    """Gives its samples in an order that no seed makes the same."""

    def __iter__(self) -> Any:
        samples = list(super().__iter__())
        random.SystemRandom().shuffle(samples)
        return iter(samples)


def test_order_of_a_stream_may_be_random(records):
    """Its samples are a collection, so their bytes are compared."""
    result = _ask(lambda: ShuffledStream(records), "workers-agree", Contract())

    assert (result.verdict, result.outcome.comparison) == ("survived", EXACT)


@pytest.mark.parametrize(
    ("dataset", "verdict"),
    [
        (Jittered, "failed_cleanly"),
        (JitteredStream, "failed_cleanly"),
        (JitteredZeros, "corrupted"),
    ],
)
def test_author_says_which_samples_are_the_same(dataset, verdict, records):
    """In place of their bytes, in the trial itself: nothing has to be pickled but samples."""
    contract = Contract(compare=close)
    agrees, fails = _ask_all(
        lambda: dataset(records), ("workers-agree", "read-error-first"), contract
    )

    assert (agrees.verdict, fails.verdict) == ("survived", verdict), fails.explanation


@pytest.mark.parametrize(
    ("compare", "message"),
    [(lambda _a, _b: False, "a sample differs from itself"), (lambda a, _b: a["x"], "failed on")],
)
def test_comparison_that_cannot_be_right_is_refused(compare, message, records):
    """Before any fault: it must work on a sample and itself."""
    with pytest.raises(UnusableDatasetError, match=message):
        _ask(lambda: Jittered(records), "workers-agree", Contract(compare=compare))


@rows(
    "wrong",
    [
        {"may_skip": "yes"},
        {"may_substitute": 1},
        {"survives": 1},
        {"compare": 3},
        {"deterministic": "no"},
    ],
    ids=repr,
)
def test_impossible_contract_is_refused(wrong, records):
    """The value is shown, and what is allowed."""
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidArgumentError, match=f"{name}={value!r} must be "):
        _ask(lambda: Records(records), "workers-agree", Contract(**wrong))


@rows(
    ("contract", "code"),
    [
        (Contract(), "Contract()"),
        (
            Contract(survives=True, deterministic=False),
            "Contract(survives=True, deterministic=False)",
        ),
        (Contract(compare=close), "Contract(compare=close)"),
    ],
)
def test_contract_is_shown_as_code(contract, code):
    """What is as always is left out, and a function goes by its name."""
    assert repr(contract) == code
    assert eval(code, {"Contract": Contract, "close": close}) == contract  # noqa: S307  # our own


def test_line_that_repeats_a_check_has_the_contract(records):
    """It finds the same when it is run."""
    contract = Contract(may_skip=True, compare=close)
    result = _ask(lambda: JitteredZeros(records), "read-error-first", contract)
    line = result.explanation.splitlines()[-1].partition("reproduce: ")[2]

    assert "contract=Contract(may_skip=True, compare=close)" in line
    names = {"check_dataset": check_dataset, "make_dataset": lambda: JitteredZeros(records)}
    with pytest.raises(CheckFailedError, match="corrupted"):
        eval(line, {**names, "Contract": Contract, "close": close})  # noqa: S307  # our own


def test_firings_tell_their_sample_and_epoch(records):
    """Of a map-style dataset the index that was asked for; epochs count over the trial."""
    outcome = run_trial(
        lambda: Records(records),
        ReadError("*/0[59].rec", times=1),
        loader={"num_workers": 2, "batch_size": 4},
    )

    firings = [one for each in outcome.faults for one in each.firings]
    assert {(one.sample, one.epoch, one.path[-6:]) for one in firings} <= {
        (5, 1, "05.rec"),
        (9, 1, "09.rec"),
    }
    assert firings
    assert outcome.judge(take_reference(lambda: Records(records))).verdict == "failed_cleanly"
