"""When a trial is repeated, and what several of them show together."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.outcomes import Judgement, Pass, WorkerDeath, WorkerFacts
from pytest_dataloader_faults.outcomes.judge.repeats import (
    Conclusion,
    Trial,
    combine,
    conclude,
    hangs_or_dies,
    needs_another,
    told_alone,
)
from support.facts import ordinary
from support.rows import rows

FAULT_FREE = ordinary(Pass())
SHARING = replace(
    FAULT_FREE, workers=(WorkerFacts(0, 1, 1, {}, shared_offset_files=("/data/a.rec",)),)
)
VERDICTS = {
    "+": Verdict.SURVIVED,
    "-": Verdict.CORRUPTED,
    "h": Verdict.HUNG,
}


def _trials(marks: str) -> list[Trial]:
    """A trial for each mark, with an outcome of its own."""
    return [
        Trial(
            replace(FAULT_FREE, seed=number),
            Judgement(VERDICTS[mark], f"sentence {mark}", passed=mark == "+"),
        )
        for number, mark in enumerate(marks)
    ]


@rows(
    ("marks", "more"),
    [("", True), ("+", False), ("-", True), ("--", False), ("-h", False), ("-+", True)],
)
def test_a_failure_is_repeated_until_it_is_sure(marks, more):
    """One trial that passes is enough, as are two that fail; else there are three."""
    assert needs_another(_trials(marks), should_fail=False) == more


@pytest.mark.parametrize("marks", ["-++", "-+-"])
def test_three_trials_decide(marks):
    """There is never a fourth."""
    assert not needs_another(_trials(marks), should_fail=False)
    assert not needs_another(_trials(marks), should_fail=True)


@rows(("marks", "more"), [("-", False), ("+", True), ("++", False), ("+-", True)])
def test_an_expected_failure_that_passes_is_repeated(marks, more):
    """It is the pass that would fail the item, so that is what has to be sure."""
    assert needs_another(_trials(marks), should_fail=True) == more


@rows(
    ("marks", "decides", "reproduced", "note"),
    [
        ("+", 0, True, None),
        ("-", 0, True, None),
        ("--", 0, True, "confirmed: 2 of 2 trials failed"),
        ("-h", 0, True, "confirmed: 2 of 2 trials failed, the second as hung: sentence h"),
        ("-+-", 0, True, "2 of 3 trials failed"),
        ("-++", 0, False, "not reproduced: 1 of 3 trials failed"),
        ("+-", 1, True, None),
        ("++", 0, True, None),
    ],
)
def test_what_trials_show_together(marks, decides, reproduced, note):
    """The first that failed decides, and the notes say how many did."""
    trials = _trials(marks)
    found = conclude(trials, FAULT_FREE)

    assert (found.trial, found.reproduced) == (trials[decides], reproduced)
    if note:
        assert found.notes[0] == note


def test_each_trial_is_told_where_they_differ():
    """Nothing that was seen is left out."""
    _, *others = conclude(_trials("-++"), FAULT_FREE).notes

    assert others == [
        "trial 1: corrupted: sentence -",
        "trial 2: survived: sentence +",
        "trial 3: survived: sentence +",
    ]


@pytest.mark.parametrize("where", ["fault_free", "trial"])
def test_a_race_of_the_datasets_own_explains_one_of_three(where):
    """Workers that read a file through one offset may be lucky twice of three times."""
    trials = _trials("-++")
    if where == "trial":
        trials[0] = replace(trials[0], outcome=SHARING)
    found = conclude(trials, SHARING if where == "fault_free" else FAULT_FREE)

    assert found.reproduced
    assert found.notes[0] == (
        "1 of 3 trials failed: workers share the file offset of /data/a.rec, which is a race"
    )


@rows(
    ("marks", "decides", "reproduced"),
    [
        (["+"], 0, True),
        (["+", "+"], 0, True),
        (["+", "--"], 1, True),
        (["-++", "+"], 0, False),
        (["-++", "--"], 1, True),
    ],
)
def test_the_gravest_variant_decides(marks, decides, reproduced):
    """A failure that is confirmed comes before one that is not, and that before a pass."""
    variants = [(f"variant {place}", _concluded(each)) for place, each in enumerate(marks)]
    found = combine(variants)

    assert (found.trial, found.reproduced) == (variants[decides][1].trial, reproduced)
    assert len(found.trials) == len("".join(marks))
    assert found.notes[-1].startswith(f"tried: variant 0 ({VERDICTS[marks[0][0]]})")


def test_the_only_variant_of_a_check_needs_no_title():
    """No note tells of it."""
    assert combine([("", _concluded("+"))]).notes == ()


DIED = (WorkerDeath(1, 7, -9),)


@rows(
    ("changes", "is_so"),
    [
        ({}, False),
        ({"timed_out": True}, True),
        ({"exitcode": -signal.SIGSEGV}, True),
        ({"passes": (Pass(deaths=DIED),)}, True),
        ({"recovery": Pass(deaths=DIED)}, True),
        ({"recovery": Pass()}, False),
    ],
)
def test_a_failure_that_may_be_the_datasets_own(changes, is_so):
    """A hang or a death, at the end or under the faults; and nothing that passed."""
    (failed,), (passed,) = _trials("-"), _trials("+")
    outcome = replace(FAULT_FREE, **changes)

    assert hangs_or_dies(replace(failed, outcome=outcome)) is is_so
    assert not hangs_or_dies(replace(passed, outcome=outcome))


STACKS = f"""
Process 7 (sleeping):
Current thread 0x1 (most recent call first):
  File "/home/me/data.py", line 7 in read
  File "{os.path.dirname(torch.__file__)}/utils/data/_utils/fetch.py", line 1 in fetch
"""
ALONE = "it also fails with no fault, as a trial like this one just did"


@rows(
    ("mark", "changes", "told"),
    [
        ("+", {"stderr": "after fork()"}, ""),
        ("-", {}, f"{ALONE} (corrupted: sentence -)"),
        ("-", {"stacks": STACKS}, f"{ALONE} (corrupted: sentence -)"),
        (
            "h",
            {"stacks": STACKS, "timed_out": True},
            f"{ALONE} (hung: sentence h, at /home/me/data.py:7 in read)",
        ),
        (
            "-",
            {"stderr": "one\n  H5 was forked here \ntwo"},
            f"{ALONE} (corrupted: sentence -). It printed: H5 was forked here",
        ),
    ],
)
def test_a_failure_without_a_fault_is_told(mark, changes, told):
    """With the line at which it hung, and with what it printed of forks."""
    (trial,) = _trials(mark)

    assert told_alone(replace(trial, outcome=replace(FAULT_FREE, **changes))) == told


def _concluded(marks: str) -> Conclusion:
    trials = _trials(marks)
    return replace(conclude(trials, FAULT_FREE), trials=tuple(trials))
