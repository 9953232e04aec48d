"""What several trials show together, and how long chains of exceptions are shortened."""

import errno
import multiprocessing
import os
import re
import signal
import traceback
from dataclasses import replace

import pytest
import torch
from torch._utils import ExceptionWrapper

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults._trial import driver, journal, loaders
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import (
    CheckResult,
    FaultFacts,
    Finding,
    Pass,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.chains import (
    MOST,
    Raised,
    error_line,
    exception_lines,
    is_of_this_package,
    origin_of,
    related_lines,
    shorten_chain,
)
from pytest_dataloader_faults.outcomes.repeats import (
    JudgedTrial,
    combine,
    conclude,
    deciding_trial,
    describe_fault_free_failure,
    fails_intermittently,
    hangs_or_dies,
    needs_another_trial,
)
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from support.facts import EPOCH_1, ordinary, raised, revised
from support.judging import explains
from support.rows import rows

FAULT_FREE = ordinary(Pass(EPOCH_1))
SHARING = revised(
    FAULT_FREE, processes=(WorkerFacts(0, 1, 1, {}, shared_offset_files=("/data/a.rec",)),)
)
VERDICTS = {
    "+": Verdict.SURVIVED,
    "-": Verdict.CORRUPTED,
    "h": Verdict.HUNG,
    "p": Verdict.POISONED,
    "e": Verdict.FAILED_CLEANLY,
    "u": Verdict.FAILED_UNCLEARLY,
    "w": Verdict.FAILED_UNCLEARLY,
}
LIBRARIES = {"w": "openslide"}
"""Those that make a failure a warning."""


def _trials(marks: str) -> list[JudgedTrial]:
    return [
        JudgedTrial(
            revised(FAULT_FREE, seed=number),
            Finding(VERDICTS[mark], f"sentence {mark}", library=LIBRARIES.get(mark, "")),
        )
        for number, mark in enumerate(marks)
    ]


@rows(
    ("marks", "is_needed"),
    [("", True), ("+", False), ("-", True), ("--", False), ("-h", False), ("-+", True)],
)
def test_a_failure_is_repeated_until_it_is_confirmed(marks, is_needed):
    """One pass or two failures are enough; otherwise there are three trials."""
    assert needs_another_trial(_trials(marks), should_fail=False) == is_needed


@rows(("marks", "is_needed"), [("-", False), ("+", True), ("++", False), ("+-", True)])
def test_an_expected_failure_that_passes_is_repeated(marks, is_needed):
    """The pass would fail the item, so the pass must be confirmed."""
    assert needs_another_trial(_trials(marks), should_fail=True) == is_needed


@rows(
    ("marks", "decides", "reproduced", "note"),
    [
        ("+", 0, True, None),
        ("-", 0, True, None),
        ("--", 0, True, "confirmed: 2 of 2 trials failed"),
        ("-h", 0, True, "confirmed: 2 of 2 trials failed, the second one with hung: sentence h"),
        ("-+-", 0, True, "2 of 3 trials failed"),
        ("-++", 0, False, "flaky: 1 of 3 trials failed"),
        ("+-", 1, True, None),
        ("++", 0, True, None),
    ],
)
def test_what_trials_show_together(marks, decides, reproduced, note):
    """The first failed trial decides, and the notes say how many failed."""
    trials = _trials(marks)
    result = conclude("open-error", trials, FAULT_FREE)

    deciding = deciding_trial(result)
    assert deciding.outcome is trials[decides].outcome
    assert (deciding.finding.sentence, result.reproduced) == (
        trials[decides].finding.sentence,
        reproduced,
    )
    if note:
        assert result.notes[0] == note


def test_each_trial_is_listed_if_they_differ():
    _, *notes = conclude("open-error", _trials("-++"), FAULT_FREE).notes

    assert notes == [
        "trial 1: corrupted: sentence -",
        "trial 2: survived: sentence +",
        "trial 3: survived: sentence +",
    ]


@pytest.mark.parametrize("where", ["fault_free", "trial"])
def test_a_race_in_the_dataset_explains_one_of_three(where):
    """Workers that share a file offset may be lucky in two of three trials."""
    trials = _trials("-++")
    if where == "trial":
        trials[0] = trials[0]._replace(outcome=SHARING)
    result = conclude("open-error", trials, SHARING if where == "fault_free" else FAULT_FREE)

    assert result.reproduced
    assert result.notes[0].startswith("1 of 3 trials failed: a race")
    assert "/data/a.rec" in result.notes[0]


@rows(
    ("marks", "decides", "reproduced"),
    [
        (["+"], 0, True),
        (["+", "+"], 0, True),
        (["+", "--"], 1, True),
        (["-++", "+"], 0, False),
        (["-++", "--"], 1, True),
        (["+", "e", "+"], 1, True),
        (["e", "-++"], 1, False),
    ],
)
def test_the_most_severe_scenario_decides(marks, decides, reproduced):
    """Confirmed failures come first, then flaky ones, clean errors and other passes."""
    results = [(f"scenario {place}", _concluded(each)) for place, each in enumerate(marks)]
    result = combine(results)

    assert (result.outcome, result.reproduced) == (results[decides][1].outcome, reproduced)
    assert len(result.trials) == len("".join(marks))
    assert result.notes[-1].startswith(f"tried: scenario 0 ({VERDICTS[marks[0][0]]})")


def _with_verdict(verdict):
    result = _concluded("--")
    return replace(result, finding=replace(result.finding, verdict=verdict))


@pytest.mark.parametrize("need_fire", [False, True])
def test_a_fault_that_did_not_fire_counts_if_no_other_did(need_fire):
    unfired = ("", _with_verdict(Verdict.NOT_EXERCISED))
    passed = combine([unfired, ("", _concluded("+"))], need_fire=need_fire).passed

    assert passed is not need_fire
    assert combine([unfired, unfired]).verdict is Verdict.NOT_EXERCISED


DIED = (WorkerDeath(1, 7, -9),)


@rows(
    ("changes", "expected"),
    [
        ({}, False),
        ({"timed_out": True}, True),
        ({"exitcode": -signal.SIGSEGV}, True),
        ({"epochs": (Pass(EPOCH_1, deaths=DIED),)}, True),
        ({"recovery": Pass(RECOVERY, deaths=DIED)}, True),
        ({"recovery": Pass(RECOVERY)}, False),
    ],
)
def test_a_failure_that_may_occur_without_a_fault(changes, expected):
    """It is a hang or a death, at the end or under the faults, and never a pass."""
    (failed,), (passed,) = _trials("-"), _trials("+")
    outcome = revised(FAULT_FREE, **changes)

    assert hangs_or_dies(failed._replace(outcome=outcome)) is expected
    assert not hangs_or_dies(passed._replace(outcome=outcome))


STACKS = f"""
Process 7 (sleeping):
Current thread 0x1 (most recent call first):
  File "/home/me/data.py", line 7 in read
  File "{os.path.dirname(torch.__file__)}/utils/data/_utils/fetch.py", line 1 in fetch
"""
ALONE = "it also fails without a fault, as a fault-free trial just showed"


@rows(
    ("mark", "changes", "sentence"),
    [
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
def test_a_failure_without_a_fault_is_described(mark, changes, sentence):
    """The sentence has the line of the hang, and the output about forks."""
    (trial,) = _trials(mark)

    assert (
        describe_fault_free_failure(trial._replace(outcome=revised(FAULT_FREE, **changes)))
        == sentence
    )


def _concluded(marks: str) -> CheckResult:
    return conclude("open-error", _trials(marks), FAULT_FREE)


OF_FAULT = FaultFacts(ReadError("*.rec"), 1, 1)
OUT_OF_MEMORY = Pass(EPOCH_1, exception=raised("MemoryError", ""))


@rows(
    ("marks", "changes", "is_evidence"),
    [
        ("-++", {}, True),
        ("-+-", {}, True),
        ("--", {}, False),
        ("h++", {}, False),
        ("-++", {"timed_out": True}, False),
        ("-++", {"epochs": (Pass(EPOCH_1, deaths=DIED),)}, False),
        ("-++", {"faults": (OF_FAULT,)}, False),
        ("p++", {"faults": (OF_FAULT,)}, True),
        ("-++", {"epochs": (OUT_OF_MEMORY,)}, False),
    ],
)
def test_what_fails_intermittently_without_a_fault(marks, changes, is_evidence):
    """Wrong samples and errors of the dataset: not what a busy machine or a fault causes."""
    trials = _trials(marks)
    trials[0] = trials[0]._replace(outcome=revised(FAULT_FREE, **changes))

    assert fails_intermittently(trials) is is_evidence


def test_one_of_three_trials_without_a_fault_has_its_own_cause():
    result = _concluded("-++")

    assert (result.failed, result.reproduced) == (False, False)
    assert result.cause == "fails intermittently without a fault"


@rows(
    ("marks", "decides", "warns"),
    [("ww", "w", True), ("wu", "u", False), ("uw", "u", False), ("w+-", "-", False)],
)
def test_a_warning_hides_no_failure_of_a_repeat(marks, decides, warns):
    result = conclude("read-error", _trials(marks), FAULT_FREE)

    assert (result.sentence, result.warns) == (f"sentence {decides}", warns)
    assert result.failed is not warns


PATH = "/data/0042.jpg"
HOW = "During handling of the above exception, another exception occurred:"


class _Substitutes:
    """Looks for another sample in the handler, and reaches one that does not exist."""

    def __init__(self, errors):
        self.errors = errors

    def __getitem__(self, index):
        error = self.errors[index]
        try:
            raise error
        except Exception:  # noqa: BLE001  # as datasets do
            return self[index + 1]


class _Forever:
    """Looks for another sample until Python reaches its recursion limit."""

    def __getitem__(self, index):
        try:
            raise OSError(errno.EIO, os.strerror(errno.EIO), PATH)
        except Exception:  # noqa: BLE001  # as datasets do
            return self.another(index)

    def another(self, index):
        return self[index + 1]


def _wide(text):
    return text.replace("    ", " " * 200)


def _text(samples):
    try:
        samples[0]
    except Exception as error:  # noqa: BLE001  # whatever it is
        return "".join(traceback.format_exception(error))
    raise AssertionError("it raised nothing")


def _through_torch(samples):
    try:
        samples[0]
    except Exception:  # noqa: BLE001  # whatever it is
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    return _text(_Reraised(wrapper))


class _Reraised:
    def __init__(self, wrapper):
        self.wrapper = wrapper

    def __getitem__(self, index):
        self.wrapper.reraise()


BOTH_WAYS = pytest.mark.parametrize("printed", [_text, _through_torch])


def _three_io_errors():
    return _Substitutes([OSError(errno.EIO, os.strerror(errno.EIO), PATH) for _ in range(3)])


@BOTH_WAYS
def test_every_link_of_an_endless_search_is_kept(printed):
    """Only frames are omitted, so the lines of all errors are those of the full text."""
    text = printed(_Forever())
    shortened_text = shorten_chain(_wide(text))

    assert len(shortened_text) < 2 * MOST < len(_wide(text))
    assert shortened_text.count(HOW) == text.count(HOW) > 100
    assert exception_lines(shortened_text) == exception_lines(text)
    assert related_lines(shortened_text).startswith(
        "RecursionError: maximum recursion depth exceeded"
    )
    assert not explains(shortened_text, ReadError(), PATH, "read")


def test_a_last_frame_stays_complete():
    """It does so even if the kept part of the other frames ends just before it."""
    frame, last_frame = (
        f'  File "{"a" * 90}", line 1\n',
        f'  File "{"b" * 200}", line 2\n    raise\n',
    )
    link = f"Traceback (most recent call last):\n{frame}{last_frame}ValueError: no\n\n{HOW}\n\n"
    text = shorten_chain(link * 500)

    assert len(link * 500) > MOST
    assert text.count(last_frame) == 500


def test_long_messages_keep_both_ends():
    """A message that is too long loses its middle, which is counted. A short one stays complete."""
    full_text = f"{_text(_three_io_errors())}ValueError: begin {'0123456789 ' * MOST} end\n"
    text = shorten_chain(full_text)
    omission = re.search(r"  \.\.\. (\d+) characters omitted \.\.\.\n", text)

    assert len(text) <= MOST + 200
    assert len(text) - len(omission[0]) + int(omission[1]) == len(full_text)
    assert "ValueError: begin 0123" in text
    assert text.endswith("789  end\n")
    assert exception_lines(text).count("OSError: [Errno 5]") == 3


@rows(
    ("message", "line"),
    [
        ("", "OSError: no message"),
        ("bad\nthe last", "OSError: the last"),
        ("OSError: bad", "OSError: bad"),
        ("  indented only", "OSError: no message"),
        ("x" * 200, f"OSError: {'x' * 200}"),
        ("x" * 201, f"OSError: {'x' * 197}..."),
    ],
)
def test_an_error_in_one_line(message, line):
    """It has the type once, and the last line of the message, shortened if it is very long."""
    assert error_line(Raised("OSError", message, "")) == line


def test_a_short_text_stays_as_it_is():
    assert shorten_chain(_text(_three_io_errors())) == _text(_three_io_errors())


@rows(
    "module, function, is_ours",
    [
        (loaders, "length_of", False),
        (driver, "take", False),
        (driver, "end_workers", True),
        (journal, "write", True),
    ],
)
def test_a_module_is_known_by_its_mark_and_not_by_its_name(monkeypatch, module, function, is_ours):
    """Renamed, it would make an error of the user's one of ours, or the other way round."""
    for path in (module.__file__, module.__file__.replace(".py", "_renamed.py")):
        monkeypatch.setattr(module, "__file__", path)
        text = f'  File "{path}", line 1, in {function}\nValueError: bad sample\n'
        assert is_of_this_package(text) == is_ours


def _fail():
    message = "bad sample"
    raise ValueError(message)


def test_the_origin_of_an_error_is_its_innermost_frame():
    with pytest.raises(ValueError, match="bad sample") as raised:
        _fail()
    assert origin_of(raised.value) == __file__


def test_the_origin_of_an_error_from_a_pool_is_unknown():
    """Its frames are those of the pool, which is not to blame."""
    with (
        multiprocessing.get_context("fork").Pool(1) as pool,
        pytest.raises(ValueError, match="bad sample") as raised,
    ):
        pool.apply(_fail)
    assert origin_of(raised.value) == ""
