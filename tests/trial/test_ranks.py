"""Several ranks in one trial: each is a process as torchrun starts it, and they end together."""

import functools
import os
import signal

import psutil
import pytest
import torch.distributed

from pytest_dataloader_faults import Verdict, check_dataset, run_trial
from pytest_dataloader_faults.exceptions import UnusableDatasetError, UnusableEnvironmentError
from pytest_dataloader_faults.faults import HungRead, ReadError
from pytest_dataloader_faults.outcomes import Absence, Reason
from pytest_dataloader_faults.outcomes.stages import DONE
from support import ranked
from support.datasets import Records
from support.inner import start_forked
from support.judging import judge_trial, survey
from support.rows import rows
from support.waiting import output_of, until

ANY = ReadError("*.rec")


@pytest.fixture(name="make")
def _make(records):
    return functools.partial(Records, records)


def _indices(epoch):
    return sorted(index for each in epoch.delivered for index in each.keys)


def test_ranks_share_a_map_style_dataset(make, reference, left_behind):
    """By torch's DistributedSampler, which shuffles; together they have each sample once.

    A survey of one rank judges the outcome of several.
    """
    outcome = run_trial(make, ranks=2)
    rank_0, second = map(_indices, outcome.ranks)

    assert sorted([*rank_0, *second]) == list(range(16))
    assert rank_0 != list(range(8))
    assert [each.request.rank for each in outcome.ranks] == [0, 1]
    assert judge_trial(outcome, reference).verdict is Verdict.SURVIVED
    assert survey(make).judge(outcome).verdict is Verdict.SURVIVED
    assert left_behind() == []


def test_workers_know_their_rank():
    expected = [
        {"RANK": rank, "WORLD_SIZE": "3", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "3"}
        for rank in "012"
    ]
    loader = {"num_workers": 1, "batch_size": None}
    outcome = run_trial(ranked.Environment, ranks=3, loader=loader)
    values = [
        {path.strip("[]'\""): value for path, _, value in each.delivered[0].samples[0].parts}
        for each in outcome.ranks
    ]

    for environment, variables in zip(values, expected, strict=True):
        assert {name: environment[name].strip("'\"") for name in variables} == variables


@pytest.mark.parametrize("factory", ranked.INITIALISING)
def test_a_factory_may_use_a_process_group_or_make_its_own(records, factory):
    outcome = run_trial(functools.partial(factory, records), ranks=2)

    assert [len(each.delivered) for each in outcome.ranks] == [2, 2]
    assert [each.phase for each in outcome.ranks] == [DONE, DONE]


@rows("on_rank, armed", [(0, [True, False]), ("all", [True, True])])
def test_faults_are_armed_where_they_are_requested(make, on_rank, armed):
    outcome = run_trial(make, ANY, ranks=2, on_rank=on_rank)

    assert [bool(each.fired) for each in outcome.ranks] == armed
    assert [bool(each.schedule) for each in outcome.ranks] == armed


def test_an_error_in_one_rank_ends_all_and_is_the_cause_once(make, reference, left_behind):
    outcome = run_trial(make, ReadError("*.rec", nth=7), ranks=2)
    waited, failed = outcome.ranks
    judgement = judge_trial(outcome, reference)

    assert (outcome.request.rank, failed.exception.type) == (1, "OSError")
    assert [(each.rank, each.reason) for each in waited.of(Absence)] == [(1, Reason.FAILED)]
    assert waited.exception is None
    assert [each.recovery.complete for each in outcome.ranks] == [True, True]
    assert judgement.verdict is Verdict.FAILED_CLEANLY
    assert "rank 0 then stopped in time" in judgement.sentence
    assert left_behind() == []


def test_a_rank_whose_process_dies_ends_the_others(records, reference, left_behind):
    outcome = run_trial(functools.partial(ranked.Killing, records), ranks=2)
    judgement = judge_trial(outcome, reference)

    assert (outcome.request.rank, outcome.end.exitcode) == (1, -signal.SIGKILL)
    assert [each.reason for each in outcome.ranks[0].of(Absence)] == [Reason.GONE]
    assert judgement.verdict is Verdict.CRASHED
    assert judgement.sentence.startswith("rank 1: the main process was killed by SIGKILL")
    assert left_behind() == []


def test_a_rank_that_hangs_is_the_cause_and_not_those_that_wait(make, reference, left_behind):
    outcome = run_trial(make, HungRead("*.rec"), ranks=3, on_rank=1, deadline=2)
    waited = [outcome.ranks[number] for number in (0, 2)]

    assert (outcome.request.rank, outcome.timed_out) == (1, True)
    assert [each.timed_out for each in waited] == [False, False]
    assert [note.reason for each in waited for note in each.of(Absence)] == [Reason.GONE] * 2
    assert judge_trial(outcome, reference).sentence.startswith("rank 1: the epoch neither finished")
    assert left_behind() == []


def test_a_rank_that_cannot_be_made_is_the_error(records, left_behind):
    with pytest.raises(UnusableDatasetError, match=r"^rank 1: .* rank 1 has no data"):
        run_trial(functools.partial(ranked.fail_in_rank, 1, records), ranks=2)
    assert left_behind() == []


def test_a_torch_without_gloo_is_refused(make, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(UnusableEnvironmentError, match="gloo, which this build of torch lacks"):
        check_dataset(make, only="ranks-agree", ranks=2)


REFUSED = """
import sys
import torch.distributed
from pathlib import Path
from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableEnvironmentError
from support.datasets import Records

records, *has_group = sys.argv[1:]
if has_group:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
try:
    run_trial(lambda: Records(Path(records)), ranks=2)
except (InvalidArgumentError, UnusableEnvironmentError) as error:
    print(error)
"""
TRIAL = """
import sys
from pathlib import Path
from pytest_dataloader_faults import run_trial
from support.troublemakers import Announced

make = lambda: Announced(Path(sys.argv[1]), Path(sys.argv[2]))
run_trial(make, ranks=2, deadline=600)
"""


def test_a_process_group_of_pytests_process_is_refused(records):
    with start_forked(REFUSED, records, "group") as process:
        printed, errors = output_of(process)
    assert "pytest's process already has one" in printed, errors


def test_ranks_end_with_the_process_that_requested_them(records, tmp_path, left_behind):
    announced = tmp_path / "announced"
    announced.mkdir()
    with start_forked(TRIAL, records, announced) as process:
        assert until(lambda: len(os.listdir(announced)) == 4 or process.poll() is not None, 60)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(below) >= 10  # of each rank: warden, loader's process, supervisor, two workers
    assert until(lambda: not any(each.is_running() for each in below))
    assert left_behind() == []


def test_each_rank_has_a_folder_and_random_numbers_of_its_own(records, left_behind):
    outcome = run_trial(functools.partial(ranked.copy_records, records), ranks=2, seed=7)

    assert [len(each.delivered) for each in outcome.ranks] == [2, 2]
    assert outcome.request.seed == 7
    assert len({each.request.seed for each in outcome.ranks}) == 2
    assert left_behind() == []
