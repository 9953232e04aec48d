"""What a result says: the text of a failure, and how results are shown."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty

from pytest_dataloader_faults import Contract, Outcome, Verdict, run_trial
from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.outcomes import (
    CheckResult,
    FiringKind,
    Pass,
    SweepResult,
    SweepStep,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.contract import EXACT, SHAPES, TYPES, Comparison
from pytest_dataloader_faults.outcomes.judge.report import explain
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY
from pytest_dataloader_faults.search import Exploration
from support.facts import (
    EIO,
    EPOCH_1,
    KILLED,
    delivery,
    fired,
    map_reference,
    ordinary,
    raised,
    unfired,
)
from support.generated import contracts, outcomes, references
from support.rows import rows

ERROR = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
FAILED = Pass(((0, 1), (2, 3)), (), ERROR)
COMPLETE = Pass(
    ((0, 1), (2, 3)), (delivery((0, 1), ("d0", "d1")), delivery((2, 3), ("d2", "d3"))), None, True
)
HOW = "check_dataset(make_dataset, only='read-error-first')"
MOST_LINES = 100
"""On a busy machine an outcome takes long to draw."""


def _explained(outcome, how=HOW):
    return explain(outcome, outcome.judge(map_reference()), how)


def test_text_begins_with_the_verdict_and_ends_with_how_to_repeat_it():
    """The first line is the sentence, the last one the way to see it again."""
    lines = _explained(ordinary(FAILED, fired(EIO))).splitlines()

    assert lines[0].startswith("failed_cleanly: OSError was raised before the deadline")
    assert f"  reproduce: {HOW}" == lines[-1]


def test_text_names_the_python_engine_and_what_it_has_not_seen():
    """Over all workers. The kernel engine goes without saying."""
    workers = [WorkerFacts(id_, 100 + id_, 1, {}, {"dup in a.b": 2}) for id_ in (0, 1)]
    outcome = replace(ordinary(FAILED, fired(EIO)), workers=tuple(workers))

    assert "python" not in _explained(outcome)
    text = _explained(replace(outcome, engine="python"))
    sees = "engine: python, which sees only what Python code opens, reads and writes"
    assert f"  {sees}\n  hidden from the engine: dup in a.b (4)\n" in text
    assert f"  {sees}\n" in _explained(replace(outcome, engine="python", workers=()))


def test_text_names_fault_worker_fetch_and_path():
    """Each of the first firings has its worker, its batch, the call and the file."""
    text = _explained(ordinary(FAILED, fired(EIO, times=2)))

    assert (
        "fault: ReadError(path='*.rec') (reached by 3 operations, fired 2 times, surfaced in an"
        " exception)\n" in text
    )
    assert "in worker 1 (pid 4711), fetch 2: read /data/a.rec" in text
    assert "delivered 0 of 2 batches asked for, then an exception (0.25 s)" in text
    assert "OSError: [Errno 5] Input/output error: '/data/a.rec'" in text


@rows(("count", "is_cut"), [(1, False), (3, False), (4, True), (48, True)])
def test_text_names_the_first_of_many_globs(count, is_cut):
    """The line that repeats the trial has all of them, as the data has."""
    paths = tuple(f"/data/{number}.rec" for number in range(count))
    fault = vocabulary.TruncatedFile(paths, keep=0)
    (line,) = [
        each for each in _explained(ordinary(FAILED, fired(fault))).splitlines() if "fault:" in each
    ]
    few = f"TruncatedFile(path=('/data/0.rec', '/data/1.rec', ... and {count - 2} more), keep=0)"

    assert (few if is_cut else repr(fault)) in line
    assert repr(fault) in ordinary(FAILED, fired(fault)).reproduce()


def test_text_leaves_source_files_out():
    """The printing of a traceback opens them, and no data is concerned."""
    outcome = ordinary(FAILED, fired(EIO, times=2))
    (facts,) = outcome.faults
    code, data = (replace(facts.firings[0], path=path) for path in ("/app/m.py", "/data/b.rec"))
    text = _explained(replace(outcome, faults=(replace(facts, firings=(code, data)),)))

    assert "/data/b.rec" in text
    assert "/app/m.py" not in text
    assert "... and 1 more" in text


def test_text_names_the_signal():
    """A death is named by its signal."""
    text = _explained(ordinary(FAILED, fired(KILLED, path=None)))

    assert "in worker 1 (pid 4711), fetch 1: killed by SIGKILL\n" in text


@rows(
    ("fault", "says"),
    [
        (vocabulary.WorkerKilled(signal.SIGSTOP), "fetch 1: stopped by SIGSTOP\n"),
        (vocabulary.WorkerKilled(signal.SIGTERM), "fetch 1: killed by SIGTERM\n"),
        (vocabulary.WorkerExited(3), "fetch 1: exited by _exit(3)\n"),
        (vocabulary.WorkerHung(), "fetch 1: hang\n"),
    ],
)
def test_text_names_what_became_of_a_worker(fault, says):
    """A worker that is stopped lives, and one that exits gets no signal."""
    assert says in _explained(ordinary(FAILED, fired(fault, path=None, call="hang")))


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        (vocabulary.TruncatedFile("*.rec"), "cut off"),
        (vocabulary.CorruptedFile("*.rec"), "damaged"),
    ],
)
def test_text_tells_of_a_handle_from_before(fault, how):
    """A dup2(2) is how the engine does it, which means nothing to a reader."""
    text = _explained(ordinary(FAILED, fired(fault, kind=FiringKind.REPLACED)))

    assert f": /data/a.rec is {how} under a handle from before the worker's first batch\n" in text


def test_text_names_the_loaders_process():
    """What happened there has no worker and no batch."""
    (facts,) = fired(EIO)
    facts = replace(facts, firings=(replace(facts.firings[0], worker=None, fetch=0),))

    assert "  in the loader's process (pid 4711): read /" in _explained(ordinary(FAILED, (facts,)))


@rows(
    ("changes", "says"),
    [
        ({}, "delivered 0 of 2 batches asked for, then an exception (0.25 s)"),
        ({"passes": (COMPLETE,)}, "delivered 2 of 2 batches asked for, epoch complete (0.25 s)"),
        (
            {"passes": (COMPLETE, COMPLETE)},
            "delivered 4 of 4 batches asked for, 2 epochs complete (0.25 s)",
        ),
        (
            {"passes": (replace(COMPLETE, complete=False),)},
            "delivered 2 of 2 batches asked for, epoch not complete (0.25 s)",
        ),
        (
            {"passes": (COMPLETE,), "kind": "iterable"},
            "delivered 2 batches, epoch complete (0.25 s)",
        ),
        (
            {"timed_out": True, "phase": EPOCH_1},
            "delivered 0 batches, then nothing more in phase 'epoch 1' (0.25 s)",
        ),
        (
            {"exitcode": -signal.SIGBUS, "phase": EPOCH_1},
            "delivered 0 batches, then nothing more in phase 'epoch 1' (0.25 s)",
        ),
    ],
)
def test_text_says_how_many_batches_came(changes, says):
    """And of how many, where that is known, and how the last epoch ended."""
    assert f"  {says}\n" in _explained(replace(ordinary(FAILED, fired(EIO)), **changes))


@rows(
    ("comparison", "kind", "says"),
    [
        (EXACT, "map", None),
        (Comparison(seeded=0), "map", "samples are random: compared under seeds"),
        (Comparison(seeded=0), "iterable", None),
        (SHAPES, "iterable", "samples vary from reading to reading: compared by types and shapes"),
        (
            TYPES,
            "map",
            "samples vary from reading to reading: compared by types, since shapes differ, too",
        ),
        (
            Comparison(seeded=0, in_workers=True),
            "map",
            "samples vary from reading to reading: compared with an epoch of workers",
        ),
        (
            Comparison(varying=(("['time']", SHAPES.what), ("", TYPES.what))),
            "iterable",
            "compared: all parts but ['time'], all",
        ),
        (
            replace(SHAPES, limit=4),
            "iterable",
            "the stream does not end: the first 4 of each worker were taken, and compared by types",
        ),
        (
            replace(SHAPES, limit=4, own=True),
            "iterable",
            "samples are random, 4 of its own in each worker: compared by types and shapes",
        ),
    ],
)
def test_text_says_what_was_compared(comparison, kind, says):
    """Where it is not simply all there is to a sample."""
    outcome = replace(ordinary(COMPLETE, fired(EIO)), comparison=comparison, kind=kind)
    reference = replace(map_reference(), comparison=comparison)
    evidence = explain(outcome, outcome.judge(reference), HOW).partition("\n")[2]

    assert ("compared" in evidence) == bool(says)
    assert (says or "") in evidence


def test_text_counts_what_was_hidden():
    """Reads that the engine could not see are counted, where there were any."""
    worker = WorkerFacts(0, 4711, 1, {}, {"dup2": 8, "io_uring_setup": 1})
    outcome = replace(ordinary(FAILED, fired(EIO)), workers=(worker, worker))

    assert "  hidden from the engine: dup2 (16), io_uring_setup (2)\n" in _explained(outcome)
    assert "hidden" not in _explained(ordinary(FAILED, fired(EIO)))


def test_text_of_a_fault_that_never_fired_says_so():
    """The three counters are there also when there is nothing else to tell."""
    text = _explained(ordinary(FAILED, unfired(EIO)))

    assert "(reached by 1 operation, fired 0 times, surfaced in no exception)" in text
    assert text.startswith("not_exercised: ")


STACKS = """
Process 12 (sleeping):
Thread 0x1 (most recent call first):
  File "/usr/lib/python3/multiprocessing/queues.py", line 1 in _feed

Current thread 0x2 (most recent call first):
  File "/home/me/data.py", line 7 in __getitem__
  File "/usr/lib/torch/utils/data/_utils/worker.py", line 1 in _worker_loop
  File "/usr/lib/python3/multiprocessing/process.py", line 1 in run
"""


def test_text_of_a_hang_shows_where_it_is_stuck():
    """The user's own frames are shown, without those of torch's loop and of other threads."""
    hung = replace(
        ordinary(FAILED, fired(EIO)), timed_out=True, phase=EPOCH_1, stacks=STACKS, passes=()
    )

    text = _explained(hung)

    block = text.partition("  stacks at the deadline:\n")[2].partition("  reproduce")[0]
    assert block.splitlines() == [
        "    Process 12 (sleeping):",
        '      File "/home/me/data.py", line 7 in __getitem__',
    ]


@rows(
    ("changes", "is_shown"),
    [
        ({"timed_out": True, "phase": EPOCH_1, "passes": (), "stacks": STACKS}, True),
        ({"timed_out": True, "phase": RECOVERY, "stacks": STACKS}, True),
        ({"timed_out": True, "phase": EPOCH_1, "passes": (), "stacks": ""}, False),
        ({"stacks": STACKS}, False),
    ],
)
def test_stacks_are_shown_of_a_hang_only(changes, is_shown):
    """Where there are any."""
    text = _explained(replace(ordinary(FAILED, fired(EIO)), **changes))

    assert ("stacks at the deadline:" in text) == is_shown


@pytest.mark.parametrize(("count", "more"), [(5, None), (7, "... and 2 more processes")])
def test_text_shows_the_stacks_of_five_processes(count, more):
    """It says how many there are besides."""
    stacks = "".join(f"\nProcess {pid} (sleeping):\n  at {pid}\n" for pid in range(count))
    hung = {"timed_out": True, "phase": EPOCH_1, "passes": (), "stacks": stacks}
    text = _explained(replace(ordinary(FAILED, fired(EIO)), **hung))

    assert text.count("Process ") == 5
    assert ("more processes" in text) == bool(more)
    assert (more or "") in text


@rows(
    ("changes", "verdict"),
    [
        ({"timed_out": True, "phase": EPOCH_1, "passes": ()}, "hung"),
        ({"exitcode": -signal.SIGBUS}, "crashed"),
        ({"passes": (replace(FAILED, exception=raised("RuntimeError", "bad")),)}, "failed_unclear"),
    ],
)
def test_text_shows_what_workers_printed_where_the_cause_may_be_there(changes, verdict):
    """Some errors are printed and dropped by torch, so they are looked for in stderr."""
    outcome = replace(ordinary(FAILED, fired(EIO)), stderr="Segmentation fault\n", **changes)

    text = _explained(outcome)

    assert text.startswith(verdict)
    assert "Segmentation fault" in text


@rows("name", ["error", "stderr", "stacks", "firings"])
def test_text_is_bounded(name):
    """However much there is to tell, a person gets to see a page of it."""
    many = "\n".join(f"line {number}" + "x" * 1000 for number in range(1000))
    outcome = replace(ordinary(FAILED, fired(EIO)), timed_out=True, phase=EPOCH_1)
    changes = {
        "error": {"passes": (replace(FAILED, exception=raised("OSError", many)),)},
        "stderr": {"stderr": many},
        "stacks": {"stacks": "".join(f"\nProcess {pid} (x):\n{many}\n" for pid in range(9))},
        "firings": {"faults": fired(EIO, times=200)},
    }[name]

    lines = _explained(replace(outcome, **changes)).splitlines()

    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 400


@rows(
    ("count", "shown"),
    [
        (12, [*range(12)]),
        (14, [*range(6), "... 2 lines are left out here ...", *range(8, 14)]),
        (30, [*range(6), "... 18 lines are left out here ...", *range(24, 30)]),
    ],
)
def test_text_shows_the_first_and_the_last_lines(count, shown):
    """Twelve in all, and the number of those between them."""
    printed = "\n".join(f"line {number}" for number in range(count))
    died = replace(ordinary(FAILED, fired(EIO)), exitcode=3, stderr=printed)
    block = _explained(died).partition("printed by the workers:\n")[2].splitlines()[:-1]

    assert block == [f"    {f'line {each}' if isinstance(each, int) else each}" for each in shown]


def test_the_last_of_many_errors_is_shown():
    """It is the one that came out of the loop; those before it lead there."""
    chain = "\n".join(f"KeyError: {number}" for number in range(100))
    text = _explained(ordinary(replace(FAILED, exception=raised("OSError", f"{chain}\nthe last"))))

    assert "KeyError: 1\n" in text
    assert "lines are left out here" in text
    assert "the last\n" in text


def test_reproduce_is_code_that_runs_the_same_trial():
    """The line names everything but the dataset, and runs."""
    schedule = (EIO, vocabulary.OpenError(("*.a", "*.b"), nth=2))
    outcome = replace(ordinary(FAILED), schedule=schedule, epochs=2, seed=7)
    asked = {}

    def record(make_dataset, *faults, **options):
        asked.update(options, make_dataset=make_dataset, faults=faults)

    names = {name: getattr(vocabulary, name) for name in vocabulary.__all__}
    eval(outcome.reproduce(), {**names, "run_trial": record, "make_dataset": len})  # noqa: S307

    assert {
        "make_dataset": len,
        "faults": schedule,
        "loader": outcome.loader,
        "epochs": 2,
        "deadline": 30.0,
        "seed": 7,
    } == asked
    assert set(asked) - {"faults"} <= set(run_trial.__annotations__)


@given(outcomes(st.none() | st.lists(st.integers() | st.text()).map(tuple)))
def test_outcome_survives_json(outcome):
    """An outcome is plain data, both ways."""
    assert outcome == Outcome.from_dict(json.loads(json.dumps(outcome.to_dict())))


@given(outcomes(), references(), contracts())
def test_judge_is_total_and_deterministic(outcome, reference, contract):
    """Any facts have a verdict, the same one each time, also after a way through JSON."""
    first = outcome.judge(reference, contract)
    again = Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))).judge(reference, contract)

    assert first == again
    assert isinstance(first.verdict, Verdict)
    assert first.sentence
    assert explain(outcome, first, HOW).splitlines()[-1] == f"  reproduce: {HOW}"


@given(outcomes(), references(), contracts())
def test_nothing_but_what_was_shown_passes(outcome, reference, contract):
    """A pass needs an end, and a fault that fired unless none was asked for."""
    judgement = outcome.judge(reference, contract)

    assert judgement.passed == (judgement.verdict in ("survived", "failed_cleanly"))
    if judgement.passed:
        assert outcome.fired or not outcome.schedule
        assert (outcome.timed_out, outcome.died, outcome.phase) == (False, None, DONE)


@given(outcomes(), references())
def test_contract_that_promises_more_passes_less(outcome, reference):
    """A contract that promises to survive passes nothing that others fail."""
    strict = outcome.judge(reference, Contract(survives=True, names_file=True)).passed

    assert not strict or outcome.judge(reference, Contract()).passed


HOSTILE = "a\n\x1b[2J\x00<script>&\udcff'\""
OUTCOME = ordinary(Pass((), (), raised("OSError", HOSTILE)), fired(EIO))
STEP = SweepStep(OpenError(HOSTILE), 2, Verdict.CORRUPTED, False, HOSTILE)
RESULTS = [
    CheckResult("open-error", Verdict.CORRUPTED, False, HOSTILE, HOSTILE, OUTCOME, cause=HOSTILE),
    replace(OUTCOME, stderr=HOSTILE, phase=EPOCH_1),
    Exploration(9, 2, failure=HOSTILE, outcome=OUTCOME, verdict=Verdict.CORRUPTED),
    STEP,
    SweepResult((STEP,), next=OpenError(HOSTILE)),
]
each_result = rows("result", RESULTS, ids=lambda each: type(each).__name__)


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
    """Of printable characters, and short; IPython and Hypothesis print the same."""
    shown = repr(result)

    assert shown.isprintable()
    assert len(shown) < 600
    assert shown.startswith(f"<{type(result).__name__}: ")
    assert pretty(result) == shown


def test_repr_tells_results_apart():
    """The check, its verdict, whether it passed, the fault, how often it fired, and how long."""
    assert repr(CheckResult("open-error", Verdict.CORRUPTED, False, "why", "why", OUTCOME)) == (
        "<CheckResult: check=open-error, verdict=corrupted, passed=False,"
        " schedule=(ReadError(path='*.rec'),), fired=1, batches=0, exception=OSError,"
        " duration=0.25 s>"
    )
    skipped = CheckResult(
        "pinned", Verdict.NOT_EXERCISED, False, "none", "no accelerator", applies=False
    )
    assert repr(skipped) == (
        "<CheckResult: check=pinned, verdict=not_exercised, passed=False, applies=False>"
    )


def test_long_values_are_cut_off():
    """A schedule may name a thousand files."""
    many = replace(OUTCOME, schedule=(OpenError(tuple(f"{each}.rec" for each in range(1000))),))

    assert len(repr(many)) < 400


@each_result
def test_notebook_gets_a_table(result):
    """Every text in it is escaped, and can be encoded."""
    table = result._repr_html_()
    reader = _Reader()
    reader.feed(table)

    assert reader.tags <= {"table", "tr", "th", "td", "pre"}
    assert table.startswith("<table>")
    assert reader.text.replace("\n", "").isprintable()
    assert table.encode()
    if hasattr(result, "explanation"):
        assert "a\n\\x1b[2J\\x00<script>&\\udcff'\"" in reader.text
