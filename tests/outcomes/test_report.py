"""The text of a failure, and how results are shown."""

import json
import pickle
import signal
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis.vendor.pretty import pretty

from pytest_dataloader_faults import Contract, Verdict, run_trial
from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.outcomes import (
    Cause,
    CheckResult,
    Finding,
    FiringKind,
    Pass,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.agreement import BY_FORM, EXACT, Comparison, Mask
from pytest_dataloader_faults.outcomes.judge import comparison_notes, explain
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.search import Exploration
from support.facts import (
    EIO,
    EPOCH_1,
    batch_of,
    fired,
    map_reference,
    ordinary,
    raised,
    revised,
    unfired,
)
from support.generated import contracts, outcomes, references
from support.judging import judge_trial
from support.rows import rows

ERROR = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
FAILED = Pass(EPOCH_1, ((0, 1), (2, 3)), (), ERROR)
COMPLETE = Pass(
    EPOCH_1,
    ((0, 1), (2, 3)),
    (batch_of((0, 1), ("d0", "d1")), batch_of((2, 3), ("d2", "d3"))),
    None,
    True,
)
HOW = "check_dataset(make_dataset, only='read-error')"
MOST_LINES = 100
"""On a busy machine an outcome takes long to draw."""


def _explained(outcome):
    return explain(outcome, judge_trial(outcome, map_reference()), HOW)


ENDS = [
    ({}, "delivered 0 of 2 batches", "an exception"),
    ({"epochs": (COMPLETE,)}, "delivered 2 of 2 batches", "epoch complete"),
    ({"epochs": (COMPLETE, COMPLETE)}, "delivered 4 of 4 batches", "2 epochs complete"),
    (
        {"epochs": (replace(COMPLETE, complete=False),)},
        "delivered 2 of 2 batches",
        "epoch incomplete",
    ),
    ({"epochs": (COMPLETE,), "kind": "iterable"}, "delivered 2 batches", "epoch complete"),
    ({"timed_out": True, "phase": EPOCH_1}, "delivered 0 batches", "in epoch 1"),
    ({"exitcode": -signal.SIGBUS, "phase": EPOCH_1}, "delivered 0 batches", "in epoch 1"),
]


BY_TYPE = replace(BY_FORM, mask=Mask(types_only=("",)))
COMPARISONS = [
    (EXACT, "map"),
    (Comparison(seeded=0), "map"),
    (Comparison(seeded=0), "iterable"),
    (BY_FORM, "iterable"),
    (BY_TYPE, "map"),
    (Comparison(seeded=0, in_workers=True), "map"),
    (Comparison(mask=Mask(form_only=("['time']",), types_only=("['boxes']",))), "iterable"),
    (replace(BY_FORM, limit=4), "iterable"),
    (replace(BY_FORM, limit=4, differs_per_worker=True), "iterable"),
]


def _evidence(comparison, kind):
    outcome = revised(ordinary(COMPLETE, fired(EIO)), comparison=comparison, kind=kind)
    reference = replace(map_reference(), comparison=comparison)
    return explain(outcome, judge_trial(outcome, reference), HOW).partition("\n")[2]


def _texts():
    failed = ordinary(FAILED, fired(EIO, times=4))
    (facts,) = fired(EIO)
    in_main = replace(facts, firings=(replace(facts.firings[0], worker=None, fetch=0),))
    in_init = replace(facts, firings=(replace(in_main.firings[0], epoch=0),))
    worker = WorkerFacts(0, 1, 1, {}, {"dup in a.b": 2}, shared_offset_files=("/data/a.rec",))
    died = {"exitcode": 3, "stderr": "\n".join(map(str, range(20)))}
    hung = {"timed_out": True, "phase": EPOCH_1, "epochs": (), "stacks": STACKS}
    replaced = [
        fired(fault("*.rec"), kind=FiringKind.REPLACED)
        for fault in (vocabulary.TruncatedFile, vocabulary.CorruptedFile)
    ]
    outcomes = {
        "error": failed,
        "main process": revised(failed, faults=(in_main,)),
        "make_dataset": revised(failed, faults=(in_init,)),
        "hidden uses": revised(failed, processes=(worker, worker)),
        "died": revised(failed, **died),
        "hung": revised(failed, **hung),
        "truncated": revised(failed, faults=replaced[0]),
        "damaged": revised(failed, faults=replaced[1]),
        "not fired": revised(failed, faults=unfired(EIO)),
    }
    yield from ((title, _explained(outcome)) for title, outcome in outcomes.items())
    for changes, count, end in ENDS:
        yield f"{count}, {end}", _explained(revised(failed, **changes))
    for comparison, kind in COMPARISONS:
        yield f"{kind}, {comparison}", _evidence(comparison, kind)
    yield "stacks of no hang", _explained(revised(failed, stacks=STACKS))
    died = vocabulary.WorkerKilled(signal.SIGTERM), vocabulary.WorkerExited(3)
    for fault in (*died, vocabulary.WorkerHung()):
        yield repr(fault), _explained(ordinary(FAILED, fired(fault, path=None, call="hang")))
    for count in (3, 4, 48):
        paths = tuple(f"/data/{number}.rec" for number in range(count))
        fault = vocabulary.TruncatedFile(paths, keep=0)
        yield f"{count} globs", _explained(ordinary(FAILED, fired(fault)))
    code, data = (replace(facts.firings[0], path=path) for path in ("/app/m.py", "/data/b.rec"))
    sources = replace(facts, matched=3, fired=2, firings=(code, data))
    yield "source files", _explained(revised(failed, faults=(sources,)))
    for count in (5, 7):
        stacks = "".join(f"\nProcess {pid} (sleeping):\n  at {pid}\n" for pid in range(count))
        yield f"{count} processes", _explained(revised(failed, **{**hung, "stacks": stacks}))
    for count in (12, 14, 30):
        printed = "\n".join(f"line {number}" for number in range(count))
        yield f"{count} lines", _explained(revised(failed, exitcode=3, stderr=printed))
    unclear = replace(FAILED, exception=raised("RuntimeError", "bad"))
    for changes in (hung, {"epochs": (unclear,)}):
        printed = revised(failed, stderr="Segmentation fault\n", **changes)
        yield f"output of workers, {len(changes)}", _explained(printed)


def test_texts_of_failures(golden):
    golden(
        "failures", {f"{number}: {title}": text for number, (title, text) in enumerate(_texts())}
    )


def test_texts_about_comparisons(golden):
    others = (Comparison(mask=Mask(form_only=("['time']", "['id']"))), Comparison(seeded=7))
    texts = {
        f"{comparison}{', or others' * comparison.allows_for_randomness}": "\n".join(
            comparison_notes(comparison)
        )
        for comparison in (*(each for each, _ in COMPARISONS), *others)
    }
    golden("comparisons", texts)


STACKS = """
Process 12 (sleeping):
Thread 0x1 (most recent call first):
  File "/usr/lib/python3/multiprocessing/queues.py", line 1 in _feed

Current thread 0x2 (most recent call first):
  File "/home/me/data.py", line 7 in __getitem__
  File "/usr/lib/torch/utils/data/_utils/worker.py", line 1 in _worker_loop
  File "/usr/lib/python3/multiprocessing/process.py", line 1 in run
"""


@rows("name", ["error", "stderr", "stacks", "firings"])
def test_text_is_bounded(name):
    """The text fits on a page."""
    long_text = "\n".join(f"line {number}" + "x" * 1000 for number in range(1000))
    outcome = revised(ordinary(FAILED, fired(EIO)), timed_out=True, phase=EPOCH_1)
    changes = {
        "error": {"epochs": (replace(FAILED, exception=raised("OSError", long_text)),)},
        "stderr": {"stderr": long_text},
        "stacks": {"stacks": "".join(f"\nProcess {pid} (x):\n{long_text}\n" for pid in range(9))},
        "firings": {"faults": fired(EIO, times=200)},
    }[name]

    lines = _explained(revised(outcome, **changes)).splitlines()

    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 400


def test_reproduce_is_code_that_runs_the_same_trial():
    """The line contains everything but the dataset, and runs."""
    schedule = (EIO, vocabulary.OpenError(("*.a", "*.b"), nth=2))
    outcome = revised(ordinary(FAILED), schedule=schedule, seed=7)
    outcome = replace(outcome, request=replace(outcome.request, epochs=2))
    call = {}

    def record(make_dataset, *faults, **options):
        call.update(options, make_dataset=make_dataset, faults=faults)

    names = {name: getattr(vocabulary, name) for name in vocabulary.__all__}
    eval(outcome.reproduce(), {**names, "run_trial": record, "make_dataset": len})  # noqa: S307

    assert {
        "make_dataset": len,
        "faults": schedule,
        "loader": outcome.request.loader,
        "epochs": 2,
        "deadline": 30.0,
        "seed": 7,
    } == call
    assert set(call) - {"faults"} <= set(run_trial.__annotations__)


@settings(max_examples=25)
@given(outcomes(), references(), contracts())
def test_any_facts_have_one_verdict(outcome, reference, contract):
    """A pass needs a complete trial, and a fault that fired if one was requested.

    A contract that promises more passes less.
    """
    finding = judge_trial(outcome, reference, contract)
    again = pickle.loads(pickle.dumps(outcome))

    assert outcome == again
    assert finding == judge_trial(again, reference, contract)
    assert json.loads(json.dumps(outcome.to_dict())) == outcome.to_dict()
    assert isinstance(finding.verdict, Verdict)
    assert finding.sentence
    assert explain(outcome, finding, HOW).splitlines()[-1] == f"  reproduce: {HOW}"
    assert finding.passed == (finding.verdict in ("survived", "failed_cleanly"))
    if finding.passed:
        assert outcome.fired or not outcome.schedule
        assert (outcome.timed_out, outcome.died, outcome.phase) == (False, None, DONE)
    strict = judge_trial(outcome, reference, Contract(survives=True, names_file=True)).passed
    assert not strict or judge_trial(outcome, reference, Contract()).passed


HOSTILE = "a\n\x1b[2J\x00<script>&\udcff'\""
OUTCOME = ordinary(Pass(EPOCH_1, (), (), raised("OSError", HOSTILE)), fired(EIO))
RESULTS = [
    CheckResult(
        "open-error", Finding(Verdict.CORRUPTED, HOSTILE, Cause(HOSTILE)), HOSTILE, OUTCOME
    ),
    revised(OUTCOME, stderr=HOSTILE, phase=EPOCH_1),
    Exploration(9, 2, failure=HOSTILE, outcome=OUTCOME, verdict=Verdict.CORRUPTED),
]
each_result = rows("result", RESULTS, ids=lambda result: type(result).__name__)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert attrs == []

    def handle_data(self, data):
        self.text += data


@each_result
def test_repr_is_one_line(result):
    """It is printable and short; IPython and Hypothesis print the same."""
    text = repr(result)

    assert text.isprintable()
    assert len(text) < 600
    assert text.startswith(f"<{type(result).__name__}: ")
    assert pretty(result) == text


def test_repr_distinguishes_results():
    """It has the check, the verdict, the fault, how often it fired, and the duration."""
    assert repr(CheckResult("open-error", Finding(Verdict.CORRUPTED, "why"), "why", OUTCOME)) == (
        "<CheckResult: check=open-error, verdict=corrupted, passed=False,"
        " schedule=(ReadError(path='*.rec'),), fired=1, batches=0, exception=OSError,"
        " duration=0.25 s>"
    )
    skipped = CheckResult(
        "pin-memory", Finding(Verdict.NOT_EXERCISED, "none"), "no accelerator", applies=False
    )
    assert repr(skipped) == (
        "<CheckResult: check=pin-memory, verdict=not_exercised, passed=False, applies=False>"
    )


@each_result
def test_notebook_gets_the_whole_text(result):
    """All of it is escaped, and can be encoded."""
    shown = result._repr_html_()
    reader = _Reader()
    reader.feed(shown)

    assert reader.tags == {"pre"}
    assert reader.text.startswith(repr(result))
    assert reader.text.replace("\n", "").isprintable()
    assert shown.encode()
    if hasattr(result, "explanation"):
        assert "a\n\\x1b[2J\\x00<script>&\\udcff'\"" in reader.text
