"""The function ``check_dataset``: which checks it asks, of what, and with how many workers."""

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, get_worker_info

from pytest_dataloader_faults import CheckResult, Verdict, check_dataset
from pytest_dataloader_faults.battery.checking import select_checks
from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FlakyCheckWarning,
    InvalidArgumentError,
)
from pytest_dataloader_faults.outcomes import Finding
from support.corpus.descriptors import Unpacked
from support.corpus.streams import RestDropped
from support.datasets import COUNT, Records, RecordStream, write_records
from support.plugin_datasets import Numbers, ZerosOnce
from support.results import failure_of, result_of
from support.specimens import BadSample, Unsharded, ZerosOnError

FIRST = "read-error"


@pytest.mark.parametrize(
    ("only", "exclude", "expected"),
    [
        (None, (), list(CHECKS)),
        (["truncated-file", "pickles"], (), ["pickles", "truncated-file"]),
        (None, "pickles", [name for name in CHECKS if name != "pickles"]),
        (["pickles", FIRST], {FIRST}, ["pickles"]),
        (["truncated-file,pickles"], (), ["pickles", "truncated-file"]),
        (
            None,
            " pickles,resumes,",
            [name for name in CHECKS if name not in ("pickles", "resumes")],
        ),
        ("quick", (), list(GROUPS["quick"])),
        ("quick, pickles", (), list(GROUPS["quick"])),
        ("quick", "pickles", [name for name in GROUPS["quick"] if name != "pickles"]),
        (
            "quick, stray-entries",
            (),
            [name for name in CHECKS if name in (*GROUPS["quick"], "stray-entries")],
        ),
    ],
)
def test_selection(only, exclude, expected):
    assert expected == select_checks(only, exclude)


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


@pytest.fixture(name="fails_once")
def _fails_once(records, tmp_path):
    (tmp_path / "note").touch()  # What a trial creates after a fault is removed.
    return lambda: ZerosOnce(records, tmp_path / "note")


def test_a_failure_that_is_not_reproduced_is_a_warning(fails_once):
    with pytest.warns(FlakyCheckWarning, match="flaky: 1 of 3 trials failed"):
        (result,) = check_dataset(fails_once, only="open-error")

    assert (result.verdict, result.passed, result.failed) == ("corrupted", False, False)
    assert (result.reproduced, len(result.trials)) == (False, 3)
    assert "trial 2: failed_cleanly" in result.explanation


def test_an_expected_failure_that_comes_and_goes_is_expected(fails_once):
    (result,) = check_dataset(
        fails_once, only="open-error", expected_failures={"open-error": "issue 7"}
    )

    assert (result.verdict, result.failed, len(result.trials)) == ("corrupted", False, 1)


def test_expected_failure_that_passes_is_raised(records):
    message = r"expected to fail \(issue 7\), but passed"
    with pytest.raises(CheckFailedError, match=message) as failed:
        check_dataset(lambda: Records(records), only=FIRST, expected_failures={FIRST: "issue 7"})
    again = str(failed.value).splitlines()[-1]
    assert f"only='{FIRST}', expected_failures={{'{FIRST}': 'issue 7'}}, " in again


def test_files_that_match_nothing_are_refused(records):
    with pytest.raises(InvalidArgumentError, match=r"files=.*\*\.jpg.* matches nothing.*\.rec"):
        check_dataset(lambda: Records(records), only=FIRST, files="*.jpg")


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


def test_samples_without_descriptors_do_not_fail_for_torch():
    """The fault befalls torch alone, which then waits forever."""
    result = result_of(lambda: [1, 2, 3], "descriptor-exhaustion", deadline=2)

    assert (result.verdict, result.applies, result.failed) == ("not_exercised", False, False)
    assert "torch's queue thread prints the error and drops the batch" in result.explanation


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


_run_checks = functools.partial(result_of, check="workers-agree")
_failure = functools.partial(failure_of, check="workers-agree")


def _numbers(result):
    return [len({each.worker for each in outcome.workers}) for outcome in result.trials]


def test_what_is_left_over_of_a_division_is_missed(records):
    result = _failure(lambda: RestDropped(records))

    sentence = f"corrupted: with 3 workers, 1 of {COUNT} samples is missing"
    assert result.explanation.startswith(sentence)
    assert result.cause == "loses or repeats samples when the number of workers changes"
    assert "shards[info.id :: info.num_workers]" in result.explanation
    assert "exclude 'workers-agree': 'two-epochs' still compares" in result.explanation
    assert "2 workers (survived); 3 workers (corrupted)" in result.explanation


@pytest.mark.parametrize(("dataset", "numbers"), [(Records, [2]), (RecordStream, [2, 3])])
def test_the_number_of_workers_is_kept_if_it_shows_nothing(dataset, numbers, records):
    """Torch divides indices, and of a stream without an end nobody knows what is missing."""
    result = _run_checks(lambda: dataset(records))

    assert (result.passed, _numbers(result)) == (True, numbers)


class _ForTwo(RecordStream):
    """Says so where the number of workers is one that it was not made for."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        if info and info.num_workers > 2:
            message = f"{info.num_workers} workers, and shards for 2"
            raise ValueError(message)
        return super().__iter__()


def test_a_stream_that_refuses_a_number_of_workers_loses_nothing(records):
    result = _run_checks(lambda: _ForTwo(records))

    assert (result.passed, _numbers(result)) == (True, [2])


def test_a_stream_for_one_worker_need_not_be_divided(records):
    alone = _run_checks(lambda: Unsharded(records), loader={"num_workers": 1})
    result = _failure(lambda: Unsharded(records))

    assert (alone.passed, _numbers(alone)) == (True, [1])
    assert (result.verdict, set(_numbers(result))) == ("corrupted", {2})
    assert "1 worker" not in result.explanation


def test_a_stream_that_fails_with_its_own_number_is_not_run_again(records):
    (records / "15.rec").unlink()
    result = _failure(lambda: RestDropped(records))

    assert result.explanation.startswith("corrupted: 1 of 15 samples is missing")
    assert set(_numbers(result)) == {2}
