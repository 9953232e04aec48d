"""The function ``check_dataset``: which checks it asks, of what, and what it does with answers."""

import os
import tempfile
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, get_worker_info

from pytest_dataloader_faults import CheckResult, Contract, Verdict, check_dataset, sweep
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.battery.checking import select_checks
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import Finding
from support.corpus.descriptors import Unpacked
from support.datasets import COUNT, Records, RecordStream, joined, write_records
from support.judging import judge_trial
from support.plugin_datasets import Numbers
from support.results import failure_of
from support.specimens import BadSample, OpenedOnce, ZerosOnError
from support.waiting import until

FIRST = "read-error"


def _by_name(results):
    return {each.check: each for each in results}


def test_healthy_dataset_gives_one_passed_result_per_check(records):
    results = check_dataset(lambda: Records(records), only=["open-error", FIRST, "pickles"])

    assert [each.check for each in results] == ["pickles", "open-error", FIRST]
    assert {(True, False, True)} == {(each.passed, each.failed, each.applies) for each in results}
    assert [each.verdict for each in results] == ["survived", "failed_cleanly", "failed_cleanly"]
    assert [len(each.outcome.schedule) for each in results] == [0, 1, 1]
    assert all(each.explanation.startswith(f"{each.verdict}: ") for each in results)


@pytest.mark.parametrize(
    ("only", "exclude", "expected"),
    [
        (None, (), list(CHECKS)),
        (["truncated-file", "pickles"], (), ["pickles", "truncated-file"]),
        (None, "pickles", [name for name in CHECKS if name != "pickles"]),
        (["pickles", FIRST], {FIRST}, ["pickles"]),
    ],
)
def test_selection(only, exclude, expected):
    assert expected == select_checks(only, exclude)


@pytest.mark.parametrize(
    "selection", [{"only": []}, {"only": "pickles", "exclude": "pickles"}, {"exclude": CHECKS}]
)
def test_selection_that_leaves_nothing_is_refused(selection, records):
    """A battery of no checks would pass, and has shown nothing."""
    with pytest.raises(InvalidArgumentError, match="leave no check to run"):
        check_dataset(lambda: Records(records), **selection)


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("contract", {"survives": True}, r"must be a Contract\(...\)"),
        ("expected_failures", [FIRST], "a dict with a reason for each check"),
        ("expected_failures", {FIRST: ""}, "a dict with a reason for each check"),
        ("files", [], "must be a glob or a list of globs"),
        ("files", [b"*"], "must be a glob or a list of globs"),
    ],
)
def test_argument_of_the_wrong_kind_is_refused(argument, value, allowed, records):
    with pytest.raises(InvalidArgumentError, match=rf"{argument}=.*{allowed}"):
        check_dataset(lambda: Records(records), **{argument: value})


@pytest.mark.parametrize("argument", ["only", "exclude"])
@pytest.mark.parametrize("value", [3, [[FIRST]]], ids=str)
def test_names_of_the_wrong_kind_are_refused(argument, value):
    with pytest.raises(InvalidArgumentError, match=rf"{argument}=.* must be the name of a check"):
        select_checks(**{argument: value})


@pytest.mark.parametrize(
    ("applies", "passed", "expected", "failed"),
    [
        (True, True, None, False),
        (True, False, None, True),
        (True, False, "issue 7", False),
        (True, True, "issue 7", True),
        (False, False, None, False),
        (False, False, "issue 7", False),
    ],
)
def test_unexpected_results_are_reported(applies, passed, expected, failed):
    verdict = Verdict.SURVIVED if passed else Verdict.CORRUPTED
    result = CheckResult(FIRST, Finding(verdict, ""), applies=applies, expected=expected)
    assert result.failed is failed


def test_a_loader_without_workers_gets_some(records):
    (result,) = check_dataset(lambda: DataLoader(Records(records)), only="open-error")
    assert result.passed
    assert len(result.outcome.workers) == 2
    assert [each for each in result.notes if "num_workers" in each] == [
        "its loader has num_workers=0: the checks added workers, because faults fire in them"
    ]


def test_first_failure_raises_with_the_evidence(records):
    with pytest.raises(CheckFailedError) as caught:
        check_dataset(lambda: BadSample(records), only=["open-error", FIRST])

    lines = str(caught.value).splitlines()
    assert lines[0].startswith("open-error: failed_unclearly: RuntimeError does not say")
    assert "reproduce: check_dataset(make_dataset, only='open-error', " in lines[-1]


def test_expected_failure_that_passes_is_raised(records):
    message = r"expected to fail \(issue 7\), but passed"
    with pytest.raises(CheckFailedError, match=message) as failed:
        check_dataset(lambda: Records(records), only=FIRST, expected_failures={FIRST: "issue 7"})
    again = str(failed.value).splitlines()[-1]
    assert f"only='{FIRST}', expected_failures={{'{FIRST}': 'issue 7'}}, " in again


def test_files_that_match_nothing_are_refused(records):
    with pytest.raises(InvalidArgumentError, match=r"files=.*\*\.jpg.* matches nothing.*\.rec"):
        check_dataset(lambda: Records(records), only=FIRST, files="*.jpg")


def test_a_broken_promise_is_named(records):
    result = failure_of(lambda: Records(records), FIRST, contract=Contract(survives=True))

    assert "but the contract promises survives=True" in result.explanation.splitlines()[0]
    names_file = Contract(names_file=True)
    sentence = judge_trial(
        result.outcome, take_reference(lambda: Records(records)), names_file
    ).sentence
    assert "names_file" in sentence


def test_loader_options_are_used(records):
    (result,) = check_dataset(
        lambda: Records(records), only="workers-agree", loader={"num_workers": 1, "batch_size": 2}
    )

    assert result.outcome.request.loader == {"num_workers": 1, "batch_size": 2}
    assert result.notes == ()
    assert {0} == {each.worker for each in result.outcome.workers}
    assert len(result.outcome.delivered) == COUNT / 2


def test_ready_loader_is_used_as_it_is(records):
    """A factory may return a DataLoader, whose collate function and sampler then count."""
    results = _by_name(
        check_dataset(
            lambda: DataLoader(
                Records(records), batch_size=3, num_workers=2, shuffle=True, collate_fn=joined
            ),
            only=["workers-agree", FIRST],
        )
    )

    assert results["workers-agree"].verdict == "survived"
    assert all(each.is_whole for each in results["workers-agree"].outcome.delivered)
    assert results[FIRST].verdict == "failed_cleanly"


def test_iterable_whose_batches_cannot_be_split_is_refused(records):
    loader = {"num_workers": 2, "batch_size": 4, "collate_fn": joined}
    with pytest.raises(UnusableDatasetError, match="cannot be split into samples"):
        check_dataset(lambda: RecordStream(records), loader=loader)


def test_check_that_does_not_apply_has_shown_nothing():
    for result in check_dataset(Numbers, only=["open-error", FIRST]):
        assert (result.verdict, result.passed) == ("not_exercised", False)
        assert (result.applies, result.failed, result.outcome) == (False, False, None)
        text = f"{result.check} does not apply to this dataset: its workers "
        assert result.explanation.startswith(text)


def test_files_that_change_with_each_call_are_named(tmp_path):
    def make():
        return Records(write_records(Path(tempfile.mkdtemp(dir=tmp_path), "records")))

    (result,) = check_dataset(make, only=FIRST, on_fail=None)

    assert (result.verdict, result.failed) == ("not_exercised", True)
    assert "make_dataset must use the same files on every call" in result.explanation


class DiesInWorkers(Records):
    """Needs no fault to fail, as long as it is in a worker."""

    def __getitem__(self, index):
        if get_worker_info():
            os._exit(3)
        return super().__getitem__(index)


def test_dataset_that_fails_in_any_worker_fails_one_check_only(records):
    results = check_dataset(
        lambda: DiesInWorkers(records), exclude="pin-memory", ranks=2, on_fail=None
    )

    assert [each.check for each in results if each.failed] == ["workers-agree"]
    skipped = results[1:]
    assert {each.applies for each in skipped} == {False}
    expected = "it fails even without a fault and with one worker"
    assert [each.check for each in skipped if expected not in each.explanation] == []
    assert all("see workers-agree" in each.explanation for each in skipped)


def test_reproduce_line_repeats_the_trial(records):
    options = {"loader": {"num_workers": 1}, "deadline": 20, "seed": 3}
    make = lambda: ZerosOnError(records)  # noqa: E731
    (result,) = check_dataset(make, only=FIRST, on_fail=None, **options)
    line = result.reproduce
    assert result.explanation.endswith(f"  reproduce: {line}")
    names = {"check_dataset": check_dataset, "make_dataset": make}

    with pytest.raises(CheckFailedError) as caught:
        eval(line, names)  # noqa: S307  # our own

    assert str(caught.value).splitlines()[0] == f"{FIRST}: {result.explanation.splitlines()[0]}"
    assert repr(result.outcome.schedule[0]) in str(caught.value)


def test_handle_opened_for_the_first_sample_is_no_matter_of_other_checks(records):
    """No check but ``read-before-fork`` touches the dataset before the fork; it says what to do."""
    only = ["read-before-fork", "workers-agree", FIRST]
    results = _by_name(check_dataset(lambda: OpenedOnce(records), only=only, on_fail=None))

    failed = [name for name, each in results.items() if each.failed]
    assert failed == ["read-before-fork"], results[failed[0]].explanation
    advice = results["read-before-fork"].explanation.splitlines()[1]
    assert "This check reads one sample in the main process before the workers start" in advice
    assert "os.getpid()" in advice
    assert "exclude 'read-before-fork'" in advice


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (list("abcdefgh"), "its workers need no descriptor"),
        ([1, 2, 3], "torch's queue thread prints the error and drops the batch"),
    ],
)
def test_samples_without_descriptors_do_not_fail_for_torch(samples, reason):
    """The fault does not fire, or befalls torch alone, which then waits forever."""
    (result,) = check_dataset(
        lambda: samples, only="descriptor-exhaustion", deadline=2, on_fail=None
    )

    assert (result.verdict, result.applies, result.failed) == ("not_exercised", False, False)
    assert reason in result.explanation


def test_batches_in_any_order_are_matched(records):
    loader = {"in_order": False, "batch_size": 2, "shuffle": True}
    (result,) = check_dataset(lambda: Uneven(records), only="workers-agree", loader=loader)
    assert result.outcome.delivered[0].keys != result.outcome.epochs[0].drawn[0]


class Uneven(Records):
    """Worker 0 waits until the loader has a batch of worker 1.

    Each worker is asked for two batches, and for a third one once the loader has the first.
    """

    calls = 0

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return super().__getitem__(index)
        sent = self.paths[0].parent.with_name(f"sent-{os.getppid()}")
        if info.id == 0:
            assert until(sent.exists)
        elif self.calls == 4:
            sent.touch()
        self.calls += 1
        return super().__getitem__(index)


def test_names_file_does_not_hold_for_errors_of_torch(records):
    """A timeout and a death are told by torch, which knows of no file."""
    check_dataset(
        lambda: Records(records),
        only=["hung-read", "worker-killed"],
        contract=Contract(names_file=True),
    )


@pytest.mark.parametrize("faults", [ReadError(), []])
def test_a_sweep_takes_several_faults(records, faults):
    with pytest.raises(InvalidArgumentError, match="must be a list of faults"):
        sweep(lambda: Records(records), faults=faults)


def test_unexpected_failures_can_be_warned_of(records):
    with pytest.warns(UserWarning, match="does not say that its cause is") as caught:
        agree, unexpected, expected = check_dataset(
            lambda: BadSample(records),
            only=["workers-agree", "open-error", FIRST],
            expected_failures={FIRST: "issue 7"},
            on_fail="warn",
        )

    assert [str(each.message).partition(":")[0] for each in caught] == ["open-error"]
    assert {__file__} == {each.filename for each in caught}
    assert (expected.verdict, expected.passed) == ("failed_unclearly", False)
    assert (expected.expected, expected.failed) == ("issue 7", False)
    assert (agree.failed, unexpected.failed) == (False, True)


def test_temporary_files_of_the_dataset_are_no_targets(records):
    (result,) = check_dataset(lambda: Unpacked(records), only="missing-file")

    assert result.passed
    assert all(firing.path.endswith(".rec") for firing in result.outcome.faults[0].firings)
