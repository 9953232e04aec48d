"""Which rule wins if the facts violate two of them: the order of the rules is behavior.

Each row names facts that violate two neighboring rules, the first of which decides.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from pytest_dataloader_faults import Contract, Outcome
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CAUSE_RULES, CHECKS
from pytest_dataloader_faults.battery.checks.before_init import FollowedRun
from pytest_dataloader_faults.battery.checks.ranks.fault_free import FaultFreeRanks
from pytest_dataloader_faults.battery.checks.resume import RESUME
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.faults import CorruptedFile, WriteError
from pytest_dataloader_faults.outcomes import (
    Absence,
    Activity,
    AtDeadline,
    ChangedState,
    Compared,
    Comparison,
    EpochsApart,
    FileCounts,
    Finding,
    Footprint,
    Pass,
    Position,
    Reason,
    Reference,
    SavedState,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge.causes import Clues, likely_cause
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.outcomes.stages import (
    RECOVERY,
    Stage,
)
from support.facts import (
    CLEAR,
    EIO,
    EPOCH_1,
    STRANGE,
    SWAPPED,
    TRUNCATED,
    UNCLEAR,
    WHOLE,
    changed,
    delivery,
    faulty,
    fired,
    map_reference,
    moment,
    of_map,
    ordinary,
    part,
    raised,
    resumed,
    revised,
    stream,
    stream_reference,
    together,
    unfired,
    waiting,
)
from support.rows import rows

DONE = of_map((0, 1), (2, 3))
FAULT_FREE = ordinary(DONE)
REFERENCE = replace(map_reference(), readable=4)
RANKS = together(of_map((0, 2)), of_map((1, 3)))
NO_SUCH_STATE = SavedState(1, error="TypeError: no")


def _passes(outcome: Outcome, **facts) -> Outcome:
    """*outcome* with other facts of its last epoch."""
    return revised(outcome, epochs=(*outcome.epochs[:-1], replace(outcome.epochs[-1], **facts)))


def _grown(outcome: Outcome) -> Outcome:
    prints = tuple(Footprint(epoch, "loader", 0, epoch, 0) for epoch in range(1, 33))
    return revised(outcome, footprints=prints)


FACTS = {
    "before init": lambda outcome: revised(outcome, before_init=True),
    "changed state": lambda outcome: revised(
        outcome, notes=(outcome.notes[0], ChangedState(), *outcome.notes[1:])
    ),
    "clear error": lambda outcome: _passes(outcome, exception=CLEAR, complete=False),
    "crash": lambda outcome: revised(outcome, exitcode=-11, phase=EPOCH_1),
    "crash in the recovery": lambda outcome: revised(outcome, exitcode=-11, phase=RECOVERY),
    "cut short": lambda outcome: _passes(outcome, delivered=outcome.epochs[-1].delivered[:1]),
    "damaged bytes": lambda outcome: revised(
        outcome, schedule=(CorruptedFile(),), faults=fired(CorruptedFile())
    ),
    "drew too little": lambda outcome: _passes(
        outcome, drawn=((0, 1),), delivered=outcome.epochs[-1].delivered[:1], batches=2
    ),
    "failed recovery": lambda outcome: revised(outcome, recovery=Pass(RECOVERY, exception=CLEAR)),
    "growth": _grown,
    "growing state": lambda outcome: revised(
        outcome,
        notes=tuple(
            replace(each, size=100 * number) if isinstance(each, SavedState) else each
            for number, each in enumerate(outcome.notes)
        ),
    ),
    "hang": lambda outcome: revised(outcome, timed_out=True, phase=EPOCH_1),
    "hang in the recovery": lambda outcome: revised(outcome, timed_out=True, phase=RECOVERY),
    "interrupted too late": lambda outcome: revised(outcome, uninterrupted=WHOLE),
    "left processes": lambda outcome: revised(
        outcome, resources=(moment(Stage.START), moment(Stage.EPOCH, processes={"7": "sleep 600"}))
    ),
    "left epoch": lambda outcome: revised(outcome, epochs=(of_map((0, 1), complete=False), DONE)),
    "no fault": lambda outcome: revised(outcome, schedule=(), faults=()),
    "resized": lambda outcome: _passes(
        outcome, length=2, delivered=outcome.epochs[-1].delivered[:1]
    ),
    "resized recovery": lambda outcome: revised(
        outcome, recovery=replace(of_map((0, 1)), length=2)
    ),
    "states": lambda outcome: revised(outcome, notes=(SavedState(1), SavedState(2))),
    "strange sample": lambda outcome: _passes(
        outcome, delivered=(STRANGE, *outcome.epochs[-1].delivered[1:])
    ),
    "substitute": lambda outcome: _passes(
        outcome,
        delivered=(delivery((0, 1), ("d2", "d1")), *outcome.epochs[-1].delivered[1:]),
    ),
    "swapped samples": lambda outcome: _passes(
        outcome, delivered=(SWAPPED, *outcome.epochs[-1].delivered[1:])
    ),
    "truncated": lambda outcome: replace(outcome, schedule=(TRUNCATED,), faults=fired(TRUNCATED)),
    "unclear error": lambda outcome: _passes(outcome, exception=UNCLEAR, complete=False),
    "unfired": lambda outcome: revised(outcome, faults=unfired(EIO)),
    "unsaved state": lambda outcome: revised(outcome, notes=(*outcome.notes, NO_SUCH_STATE)),
    "wrong rest": lambda outcome: revised(outcome, resumed=(part(4, 5, 6, 7),)),
    "wrong recovery": lambda outcome: revised(
        outcome, recovery=replace(of_map((0, 1), (2, 3)), delivered=(SWAPPED,))
    ),
}


def _with_facts(outcome: Outcome, names: str) -> Outcome:
    for name in names.split(", "):
        outcome = FACTS[name](outcome)
    return outcome


def _conclusion(
    outcome: Outcome,
    reference: Reference = REFERENCE,
    contract: Contract | None = None,
    fault_free: Outcome = FAULT_FREE,
    clues: Clues | None = None,
) -> str:
    finding = outcome.judge(reference, contract)
    if outcome.of(SavedState):
        finding = RESUME[0].refine(finding, outcome, reference)
    return _summarize(
        finding, likely_cause(outcome, finding, fault_free, clues or Clues(), CAUSE_RULES)
    )


def _summarize(finding: Finding, cause: Cause | None) -> str:
    """The verdict, the likely cause, and what is wrong with the samples."""
    wrong = f" ({finding.wrong})" if finding.wrong else ""
    return f"{finding.verdict}{f': {cause.phrase}' if cause else ''}{wrong}"


@rows(
    ("facts", "conclusion"),
    [
        ("hang, crash", "hung: waits forever"),
        (
            "hang in the recovery, crash in the recovery",
            "poisoned: does not recover after the fault is removed",
        ),
        ("clear error, hang, crash", "leaked: leaves resources behind"),
        ("crash, swapped samples", "crashed: crashes the main process"),
        ("before init, resized, substitute", "corrupted: skips samples without an error (missing)"),
        (
            "before init, resized, clear error, wrong recovery",
            "poisoned: keeps an index or a cache built from damaged files (substituted)",
        ),
        (
            "before init, resized, damaged bytes, wrong recovery",
            "poisoned: ends the epoch early with a StopIteration",
        ),
        (
            "swapped samples, drew too little",
            "corrupted: returns a substitute for an unreadable sample (reordered)",
        ),
        (
            "substitute, cut short",
            "corrupted: returns a substitute for an unreadable sample (substituted)",
        ),
        (
            "swapped samples, cut short",
            "corrupted: returns a substitute for an unreadable sample (substituted)",
        ),
        (
            "swapped samples, states, unsaved state",
            "corrupted: returns a substitute for an unreadable sample (reordered)",
        ),
        ("cut short, states", "corrupted: ends the epoch early with a StopIteration"),
        (
            "no fault, left epoch, drew too little, states",
            "not_exercised: no operation matched the fault",
        ),
        ("failed recovery, unclear error", "poisoned: does not recover after the fault is removed"),
        (
            "wrong recovery, unclear error",
            "poisoned: does not recover after the fault is removed (substituted)",
        ),
        (
            "before init, failed recovery, resized recovery",
            "poisoned: keeps an index or a cache built from damaged files (missing)",
        ),
        (
            "before init, resized recovery, wrong recovery",
            "poisoned: keeps an index or a cache built from damaged files (substituted)",
        ),
        (
            "before init, resized recovery, damaged bytes, left processes",
            "leaked: leaves resources behind",
        ),
        (
            "no fault, before init, failed recovery",
            "fails_without_fault: cannot be created twice in the same folder",
        ),
        (
            "no fault, before init, wrong recovery, left processes",
            "fails_without_fault: cannot be created twice in the same folder",
        ),
        ("unclear error, left processes", "failed_unclearly: raises an error that hides its cause"),
        ("left processes, growth", "leaked: leaves resources behind"),
        ("growth, unfired", "leaked: leaves resources behind"),
        ("growth, clear error", "leaked: leaves resources behind"),
        ("unfired, clear error", "not_exercised: no operation matched the fault"),
        ("unfired, unclear error", "not_exercised: no operation matched the fault"),
        ("no fault, clear error", "fails_without_fault: fails without a fault"),
        ("clear error", "failed_cleanly"),
        ("before init", "survived"),
    ],
)
def test_the_first_rule_that_is_violated_decides(facts, conclusion):
    assert _conclusion(_with_facts(ordinary(DONE, fired(EIO)), facts)) == conclusion


@rows(
    ("facts", "contract", "conclusion"),
    [
        ("clear error, left processes", Contract(survives=True), "leaked: leaves resources behind"),
        (
            "clear error",
            Contract(survives=True),
            "contract_broken: fails although the contract promises survives=True",
        ),
        (
            "no fault, clear error",
            Contract(survives=True),
            "fails_without_fault: fails without a fault",
        ),
        (
            "unfired, clear error",
            Contract(survives=True),
            "not_exercised: no operation matched the fault",
        ),
        (
            "unclear error",
            Contract(survives=True, names_file=True),
            "failed_unclearly: raises an error that hides its cause",
        ),
        (
            "before init, resized, strange sample",
            Contract(may_skip=True),
            "corrupted: returns a substitute for an unreadable sample (differs)",
        ),
        (
            "damaged bytes, strange sample",
            Contract(detects_corruption=True),
            "corrupted: accepts damaged bytes (differs)",
        ),
        ("damaged bytes, substitute", Contract(), "survived"),
        ("damaged bytes, unclear error", Contract(), "failed_cleanly"),
    ],
)
def test_a_contract_changes_which_rule_decides(facts, contract, conclusion):
    outcome = _with_facts(ordinary(DONE, fired(EIO)), facts)

    assert _conclusion(outcome, contract=contract) == conclusion


STREAM = stream_reference("d0 d1 d2 d3 d4 d5 d6 d7")


@rows(
    ("facts", "conclusion"),
    [
        (
            "unsaved state, interrupted too late",
            "fails_without_fault: returns a state that cannot be saved",
        ),
        ("interrupted too late, wrong rest", "not_exercised: no operation matched the fault"),
        (
            "wrong rest, changed state",
            "corrupted: saves a state that is ahead of the loop",
        ),
        (
            "changed state, growing state",
            "corrupted: returns a state that keeps changing",
        ),
        ("growing state", "leaked: returns a state that grows with every batch"),
    ],
)
def test_the_first_rule_about_states_decides(facts, conclusion):
    outcome = _with_facts(resumed(part(3, 4, 5, 6, 7)), facts)

    assert _conclusion(outcome, STREAM) == conclusion


FAILED = Pass(EPOCH_1, exception=raised("KeyError", "'place'"))


@rows(
    ("rests", "batches", "conclusion"),
    [
        (
            (FAILED, part(0)),
            (3, 9),
            "fails_without_fault: cannot resume from its own state",
        ),
        (
            (part(*range(8)), part(0)),
            (3, 9),
            "corrupted: restarts the epoch instead of resuming it",
        ),
        (
            (part(*range(8)), FAILED),
            (3, 5),
            "corrupted: restarts the epoch instead of resuming it",
        ),
        (
            (part(3, 4, 5, 6, 7), part(0)),
            (3, 9),
            "corrupted: returns an incomplete epoch after a resumed one",
        ),
        (
            (part(0, 4, 5, 6, 7),),
            (3,),
            "corrupted: does not restore its shuffled order",
        ),
        (
            (part(4, 3, 5, 6, 7), WHOLE),
            (3, 9),
            "corrupted: does not restore its shuffled order",
        ),
        (
            (part(*range(8)),),
            (8,),
            "corrupted: starts another epoch after the last batch",
        ),
    ],
)
def test_the_first_wrong_epoch_decides(rests, batches, conclusion):
    assert _conclusion(resumed(*rests, batches=batches), STREAM) == conclusion


def _waits(outcome: Outcome) -> Outcome:
    return waiting(outcome, 0, Absence(1, Reason.FINISHED, Position(1, 1)))


def _apart(outcome: Outcome) -> Outcome:
    return changed(outcome, 1, notes=(EpochsApart((Position(1, 2), Position(2, 1))),))


def _has_length_of_all(outcome: Outcome) -> Outcome:
    passes = [(replace(rank.epochs[0], batches=2),) for rank in outcome.ranks]
    return changed(changed(outcome, 0, epochs=passes[0]), 1, epochs=passes[1])


WRONG_RANK = replace(of_map((1, 3)), delivered=(delivery((1, 3), ("d1", "d9")),))
UNCLEAR_RANK = of_map((1, 3), exception=UNCLEAR, complete=False)
WRONG = together(of_map((0, 2)), WRONG_RANK)
TWICE = together(of_map((0, 1)), of_map((0, 1)))
OF_RANKS = replace(REFERENCE, drawn=4, members=(replace(REFERENCE, drawn=None),) * 2)


@rows(
    ("outcome", "conclusion"),
    [
        (changed(_waits(RANKS), 0, timed_out=True, phase=EPOCH_1), "hung: waits forever"),
        (
            changed(_waits(WRONG), 0, exitcode=-11, phase=EPOCH_1),
            "crashed: crashes the main process",
        ),
        (_waits(WRONG), "hung: ranks get different numbers of batches"),
        (
            _waits(changed(RANKS, 1, timed_out=True, phase=EPOCH_1)),
            "hung: ranks get different numbers of batches",
        ),
        (
            _apart(WRONG),
            "corrupted: returns different samples in workers than in the main process (differs)",
        ),
        (
            _apart(faulty(RANKS, 1, epochs=(UNCLEAR_RANK,))),
            "failed_unclearly: raises an error that hides its cause",
        ),
        (
            _apart(_has_length_of_all(RANKS)),
            "corrupted: lets ranks drift into different epochs",
        ),
        (
            _has_length_of_all(TWICE),
            "corrupted: counts the samples of all ranks in its length",
        ),
        (TWICE, "corrupted: returns the same samples to several ranks"),
        (faulty(TWICE, 1, recovery=DONE), "survived"),
        (
            together(of_map((0, 2)), of_map((1,))),
            "corrupted: returns some samples to no rank",
        ),
    ],
)
def test_the_first_rule_about_ranks_decides(outcome, conclusion):
    assert _conclusion(outcome, OF_RANKS) == conclusion


EVERY_SAMPLE = "returns every sample from every worker (not split with get_worker_info())"
SHAPES = Comparison(Compared.SHAPES)
ENDLESS = replace(stream_reference("s"), comparison=SHAPES, stream_limit=4)


def _stream_trial(*epochs: Pass, **facts) -> Outcome:
    return revised(ordinary(epochs[-1]), kind="iterable", epochs=epochs, **facts)


def _endless_trial(*batches_by_worker: str) -> Outcome:
    epoch = stream(*(batch for batches in batches_by_worker for batch in batches.split(",")))
    workers = [number for number, each in enumerate(batches_by_worker) for _ in each.split(",")]
    pairs = enumerate(zip(epoch.delivered, workers, strict=True))
    delivered = tuple(
        replace(batch, worker=worker, digest=f"{place % 2}") for place, (batch, worker) in pairs
    )
    return _stream_trial(replace(epoch, delivered=delivered), comparison=SHAPES)


@rows(
    ("outcome", "reference", "conclusion"),
    [
        (
            _stream_trial(stream("a a x")),
            stream_reference("a b c"),
            f"corrupted: {EVERY_SAMPLE} (repeated)",
        ),
        (
            _stream_trial(stream("a x")),
            stream_reference("a b c"),
            "corrupted: returns different samples in workers than in the main process (differs)",
        ),
        (
            _stream_trial(stream("a b")),
            stream_reference("a b c"),
            "corrupted: returns different samples in workers than in the main process (missing)",
        ),
        (
            _endless_trial("s s,s x", "s s,s x"),
            ENDLESS,
            f"corrupted: {EVERY_SAMPLE} (same in each worker)",
        ),
        (
            _endless_trial("s s,x", "s s,s s,s s"),
            ENDLESS,
            "corrupted: returns different samples in workers than in the main process (differs)",
        ),
        (
            _endless_trial("s s,s", "s s,s s,s s"),
            ENDLESS,
            "corrupted: returns different samples in workers than in the main process (missing)",
        ),
    ],
)
def test_the_first_rule_about_streams_decides(outcome, reference, conclusion):
    assert _conclusion(outcome, reference) == conclusion


def _has_file(path: str, counts: FileCounts, **facts) -> Outcome:
    return revised(FAULT_FREE, processes=(WorkerFacts(0, 7, 1, {path: counts}, **facts),))


def _in_worker(outcome: Outcome, **facts) -> Outcome:
    return revised(outcome, processes=(WorkerFacts(0, 7, 1, {}, **facts),))


INHERITED = _has_file("/data/a.h5", FileCounts(0, 3, 9))
WRITING = _has_file("/data/a.rec", FileCounts(1, 1, 9, 1))
READING = ordinary(DONE, fired(EIO))
TORN = ordinary(DONE, fired(WriteError("*.rec"), call="write"))
CUT = ordinary(DONE, fired(TRUNCATED))
TRAINED = revised(READING, epochs=(of_map((0, 1), exception=CLEAR, complete=False), DONE))
SPAWNED = revised(FAULT_FREE, start_method="spawn")
LOST_MODULE = raised("RuntimeError", "ModuleNotFoundError: No module named 'mine'")
DROPPED = (
    'Traceback (most recent call last):\n  File "/lib/multiprocessing/queues.py", line 264, in'
    " _feed\n    obj = _ForkingPickler.dumps(obj)\nTypeError: cannot pickle 'x' object\n"
)
LENGTHENED = {"lengthened_files": ("/data/a.rec",)}
WAITING = {"unlimited_waits": ("tcp://192.0.2.1:443",)}
SLEEPS = AtDeadline(Activity.SLEEPS)


@rows(
    ("outcome", "facts", "fault_free", "clues", "conclusion"),
    [
        (
            FAULT_FREE,
            "cut short",
            INHERITED,
            Clues(),
            "corrupted: uses a file that was opened before the fork",
        ),
        (
            FAULT_FREE,
            "swapped samples",
            INHERITED,
            Clues(),
            "corrupted: uses a file that was opened before the fork (reordered)",
        ),
        (
            FAULT_FREE,
            "clear error",
            INHERITED,
            Clues(),
            "fails_without_fault: uses a file that was opened before the fork",
        ),
        (READING, "unfired", INHERITED, Clues(), "not_exercised: no operation matched the fault"),
        (
            READING,
            "wrong recovery",
            INHERITED,
            Clues(second_epoch_fails=True),
            "poisoned: uses a file that was opened before the fork (substituted)",
        ),
        (
            TORN,
            "cut short",
            WRITING,
            Clues(),
            "corrupted: ends the epoch early with a StopIteration",
        ),
        (
            TORN,
            "before init, failed recovery",
            WRITING,
            Clues(),
            "poisoned: keeps an index or a cache built from damaged files",
        ),
        (
            TORN,
            "wrong recovery",
            WRITING,
            Clues(),
            "poisoned: leaves a partially written file behind (substituted)",
        ),
        (
            TORN,
            "swapped samples",
            WRITING,
            Clues(),
            "corrupted: leaves a partially written file behind (reordered)",
        ),
        (
            TRAINED,
            "wrong recovery",
            WRITING,
            Clues(),
            "poisoned: leaves a partially written file behind (substituted)",
        ),
        (
            TRAINED,
            "hang in the recovery",
            WRITING,
            Clues(),
            "poisoned: does not recover after the fault is removed",
        ),
        (
            _in_worker(CUT, **LENGTHENED),
            "swapped samples",
            FAULT_FREE,
            Clues(),
            "corrupted: opens its data for writing (reordered)",
        ),
        (
            _in_worker(CUT, **LENGTHENED),
            "swapped samples",
            FAULT_FREE,
            Clues(is_caught=True),
            "corrupted: returns a substitute for an unreadable sample (reordered)",
        ),
        (
            _in_worker(CUT, **LENGTHENED),
            "unclear error",
            FAULT_FREE,
            Clues(),
            "failed_unclearly: opens its data for writing",
        ),
        (
            CUT,
            "substitute",
            FAULT_FREE,
            Clues(),
            "corrupted: accepts a truncated file (substituted)",
        ),
        (
            CUT,
            "substitute",
            FAULT_FREE,
            Clues(is_caught=True),
            "corrupted: returns a substitute for an unreadable sample (substituted)",
        ),
        (
            CUT,
            "cut short",
            FAULT_FREE,
            Clues(),
            "corrupted: ends the epoch early with a StopIteration",
        ),
        (
            TRAINED,
            "swapped samples",
            FAULT_FREE,
            Clues(),
            "corrupted: does not recover after the fault is removed (reordered)",
        ),
        (READING, "damaged bytes, substitute", FAULT_FREE, Clues(), "survived"),
        (
            SPAWNED,
            "swapped samples",
            FAULT_FREE,
            Clues(),
            "corrupted: orders its samples differently in each process (reordered)",
        ),
        (
            SPAWNED,
            "strange sample",
            FAULT_FREE,
            Clues(),
            "corrupted: returns different samples in workers than in the main process (differs)",
        ),
        (
            FAULT_FREE,
            "left epoch, strange sample",
            FAULT_FREE,
            Clues(),
            "corrupted: resumes where an interrupted epoch stopped (differs)",
        ),
        (
            _in_worker(FAULT_FREE),
            "left epoch, strange sample",
            FAULT_FREE,
            Clues(),
            "corrupted: resumes where an interrupted epoch stopped (differs)",
        ),
        (
            _in_worker(FAULT_FREE),
            "strange sample",
            FAULT_FREE,
            Clues(),
            "corrupted: loses or repeats samples when the number of workers changes (differs)",
        ),
        (
            revised(SPAWNED, epochs=(replace(DONE, exception=LOST_MODULE, complete=False),)),
            "left processes",
            FAULT_FREE,
            Clues(),
            "leaked: is defined where workers cannot import it",
        ),
        (
            _in_worker(revised(FAULT_FREE, stderr=DROPPED), **WAITING),
            "hang",
            FAULT_FREE,
            Clues(waits_for_thread=True),
            "hung: returns samples that cannot be pickled",
        ),
        (
            _in_worker(FAULT_FREE, **WAITING),
            "hang",
            FAULT_FREE,
            Clues(waits_for_thread=True),
            "hung: waits for a server without a timeout",
        ),
        (
            revised(FAULT_FREE, start_method="fork", at_deadline=SLEEPS),
            "hang",
            FAULT_FREE,
            Clues(waits_for_thread=True, was_read_before_fork=True),
            "hung: waits forever for a lock or a thread",
        ),
        (
            revised(FAULT_FREE, start_method="fork", at_deadline=SLEEPS),
            "hang",
            FAULT_FREE,
            Clues(was_read_before_fork=True),
            "hung: hangs after the main process has read a sample",
        ),
        (
            revised(FAULT_FREE, at_deadline=SLEEPS),
            "hang",
            FAULT_FREE,
            Clues(),
            "hung: waits forever",
        ),
        (
            revised(READING, at_deadline=SLEEPS),
            "hang",
            FAULT_FREE,
            Clues(),
            "hung: sleeps between retries past the deadline",
        ),
        (READING, "hang", FAULT_FREE, Clues(), "hung: waits forever"),
    ],
)
def test_the_first_cause_that_applies_is_named(outcome, facts, fault_free, clues, conclusion):
    outcome = _with_facts(outcome, facts)

    assert _conclusion(outcome, fault_free=fault_free, clues=clues) == conclusion


COPY = WorkerFacts(0, 7, 1, {"/folder/a.rec": FileCounts(1, 3, 9)})
FOLLOWED = FollowedRun(
    revised(FAULT_FREE, processes=(WorkerFacts(None, 6, 1, {"/data/a.rec": FileCounts(1, 3, 9)}),))
)


def _judge_by_check(
    name: str, outcome: Outcome, reference: Reference, second: str = "", *, copies: bool = False
) -> str:
    """The verdict of the battery, and whether the judge, the check or a second call decides."""
    again = _with_facts(FAULT_FREE, second) if second else FAULT_FREE
    second_call = JudgedTrial(again, again.judge(REFERENCE)) if second else None
    findings = {"second call": second_call, "followed": FOLLOWED, "ranks": FaultFreeRanks((), ())}
    run = SimpleNamespace(
        contract=Contract(),
        reference=reference,
        reference_for=lambda _outcome: reference,
        own_folders=OwnFolders(("/folder",) if second else ()),
        find_once=lambda name, _find: findings[name],
        working=revised(FAULT_FREE, processes=(COPY,) if copies else ()),
    )
    battery = SimpleNamespace(fault_free_run=run)
    check = CHECKS[name]
    finding = Battery._judge(battery, outcome, check, check.scenario)
    cause = likely_cause(outcome, finding, FAULT_FREE)
    return _summarize(finding, cause)


def _epochs(*epochs: Pass, **facts) -> Outcome:
    return revised(FAULT_FREE, kind="iterable", epochs=epochs, **facts)


LONG = " ".join(f"d{number}" for number in range(16))
USED_UP = replace(
    stream_reference(LONG), second_pass_count=3, nondeterministic_count=16, comparison=SHAPES
)
RANDOM = replace(USED_UP, second_pass_count=None)
AGAIN = tuple(
    replace(each, leaves=(((".", "T (64,)", "a" * 24),),) * 16) for each in stream(LONG).delivered
)
REPEATED = replace(stream(LONG), delivered=AGAIN)


@rows(
    ("name", "outcome", "reference", "second", "conclusion"),
    [
        (
            "two-epochs",
            _epochs(REPEATED, REPEATED, comparison=SHAPES),
            USED_UP,
            "",
            "corrupted: returns fewer samples in the second epoch",
        ),
        (
            "two-epochs",
            _epochs(REPEATED, REPEATED, comparison=SHAPES),
            RANDOM,
            "",
            "corrupted: repeats the same random samples in every epoch",
        ),
        (
            "two-epochs",
            _with_facts(_epochs(REPEATED, REPEATED, comparison=SHAPES), "left processes"),
            USED_UP,
            "",
            "leaked: leaves resources behind",
        ),
        (
            "two-epochs",
            revised(
                _with_facts(_epochs(REPEATED, REPEATED, comparison=SHAPES), "unclear error"),
                schedule=(EIO,),
                faults=fired(EIO),
            ),
            USED_UP,
            "",
            "corrupted: returns fewer samples in the second epoch",
        ),
        (
            "empty-before-init",
            _with_facts(READING, "before init, failed recovery"),
            REFERENCE,
            "before init, failed recovery",
            "fails_without_fault: cannot be created twice in the same folder",
        ),
        (
            "empty-before-init",
            _with_facts(READING, "before init, failed recovery"),
            REFERENCE,
            "before init",
            "poisoned: keeps an index or a cache built from damaged files",
        ),
        (
            "open-error",
            _with_facts(READING, "failed recovery"),
            REFERENCE,
            "clear error",
            "poisoned: does not recover after the fault is removed",
        ),
    ],
)
def test_the_rule_of_a_check_comes_after_those_of_the_judge(
    name, outcome, reference, second, conclusion
):
    assert _judge_by_check(name, outcome, reference, second) == conclusion


def test_a_copy_is_the_cause_only_if_the_files_in_the_folder_have_names_of_sources():
    outcome = _with_facts(READING, "before init, failed recovery")
    conclusions = [
        _judge_by_check("empty-before-init", outcome, REFERENCE, "before init", copies=copies)
        for copies in (True, False)
    ]

    assert conclusions == [
        "poisoned: copies damaged files in make_dataset",
        "poisoned: keeps an index or a cache built from damaged files",
    ]
