"""Which rule wins if the facts violate two of them: the order of the rules is behavior.

Each row names facts that violate two neighboring rules, the first of which decides.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults import Contract, Outcome
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CAUSE_RULES, CHECKS
from pytest_dataloader_faults.battery.checks.resume import resumes
from pytest_dataloader_faults.battery.fault_free_run import FollowedRun
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.faults import CorruptedFile, WriteError
from pytest_dataloader_faults.outcomes import (
    Absence,
    Activity,
    AtDeadline,
    ChangedState,
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
from pytest_dataloader_faults.outcomes.agreement import Part
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Stage
from pytest_dataloader_faults.steps import run_epochs
from support.facts import (
    CLEAR,
    EIO,
    EPOCH_1,
    IN_LOCK,
    STRANGE,
    SWAPPED,
    TRUNCATED,
    UNCLEAR,
    WHOLE,
    batch_of,
    changed,
    drawing,
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
from support.judging import judge_trial

DONE = of_map((0, 1), (2, 3))
FAULT_FREE = ordinary(DONE)
REFERENCE = replace(map_reference(), readable=4)
RANKS = together(of_map((0, 2)), of_map((1, 3)))
NO_SUCH_STATE = SavedState(1, error="TypeError: no")


def _passes(outcome: Outcome, **facts) -> Outcome:
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
        outcome, delivered=(batch_of((0, 1), ("d2", "d1")), *outcome.epochs[-1].delivered[1:])
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
    *,
    after_one: bool = False,
) -> str:
    finding = judge_trial(outcome, reference, contract)
    if outcome.of(SavedState):
        finding = resumes.refine(finding, outcome, reference)
    cause = likely_cause(outcome, finding, fault_free, CAUSE_RULES, after_one=after_one)
    return _summarize(finding, cause)


def _summarize(finding: Finding, cause: Cause | None) -> str:
    wrong = f" ({finding.wrong})" if finding.wrong else ""
    return f"{finding.verdict}{f': {cause.phrase}' if cause else ''}{wrong}"


FACTS_OF_A_TRIAL = [
    "hang, crash",
    "hang in the recovery, crash in the recovery",
    "clear error, hang, crash",
    "crash, swapped samples",
    "before init, resized, substitute",
    "before init, resized, clear error, wrong recovery",
    "before init, resized, damaged bytes, wrong recovery",
    "swapped samples, drew too little",
    "substitute, cut short",
    "swapped samples, cut short",
    "swapped samples, states, unsaved state",
    "cut short, states",
    "no fault, left epoch, drew too little, states",
    "failed recovery, unclear error",
    "wrong recovery, unclear error",
    "before init, failed recovery, resized recovery",
    "before init, resized recovery, wrong recovery",
    "before init, resized recovery, damaged bytes, left processes",
    "no fault, before init, failed recovery",
    "no fault, before init, wrong recovery, left processes",
    "unclear error, left processes",
    "left processes, growth",
    "growth, unfired",
    "growth, clear error",
    "unfired, clear error",
    "unfired, unclear error",
    "no fault, clear error",
    "clear error",
    "before init",
]


def _of_facts():
    for facts in FACTS_OF_A_TRIAL:
        yield facts, _conclusion(_with_facts(ordinary(DONE, fired(EIO)), facts))


CONTRACTS = [
    ("clear error, left processes", Contract(survives=True)),
    ("clear error", Contract(survives=True)),
    ("no fault, clear error", Contract(survives=True)),
    ("unfired, clear error", Contract(survives=True)),
    ("unclear error", Contract(survives=True, names_file=True)),
    ("before init, resized, strange sample", Contract(may_skip=True)),
    ("damaged bytes, strange sample", Contract(detects_corruption=True)),
    ("damaged bytes, substitute", Contract()),
    ("damaged bytes, unclear error", Contract()),
]


def _of_contracts():
    for facts, contract in CONTRACTS:
        outcome = _with_facts(ordinary(DONE, fired(EIO)), facts)
        yield f"{facts}; {contract}", _conclusion(outcome, contract=contract)


STREAM = stream_reference("d0 d1 d2 d3 d4 d5 d6 d7")


FACTS_ABOUT_STATES = [
    "unsaved state, interrupted too late",
    "interrupted too late, wrong rest",
    "wrong rest, changed state",
    "changed state, growing state",
    "growing state",
]


FAILED = Pass(EPOCH_1, exception=raised("KeyError", "'place'"))


RESTS = [
    ((FAILED, part(0)), (3, 9)),
    ((part(*range(8)), part(0)), (3, 9)),
    ((part(*range(8)), FAILED), (3, 5)),
    ((part(3, 4, 5, 6, 7), part(0)), (3, 9)),
    ((part(0, 4, 5, 6, 7),), (3,)),
    ((part(4, 3, 5, 6, 7), WHOLE), (3, 9)),
    ((part(*range(8)),), (8,)),
]


def _of_states():
    for facts in FACTS_ABOUT_STATES:
        yield facts, _conclusion(_with_facts(resumed(part(3, 4, 5, 6, 7)), facts), STREAM)
    for number, (rests, batches) in enumerate(RESTS):
        yield f"rests {number}", _conclusion(resumed(*rests, batches=batches), STREAM)


def _waits(outcome: Outcome) -> Outcome:
    return waiting(outcome, 0, Absence(1, Reason.FINISHED, Position(1, 1)))


def _apart(outcome: Outcome) -> Outcome:
    return changed(outcome, 1, notes=(EpochsApart((Position(1, 2), Position(2, 1))),))


def _has_length_of_all(outcome: Outcome) -> Outcome:
    passes = [(replace(rank.epochs[0], batches=2),) for rank in outcome.ranks]
    return changed(changed(outcome, 0, epochs=passes[0]), 1, epochs=passes[1])


WRONG_RANK = replace(of_map((1, 3)), delivered=(batch_of((1, 3), ("d1", "d9")),))
UNCLEAR_RANK = of_map((1, 3), exception=UNCLEAR, complete=False)
WRONG = together(of_map((0, 2)), WRONG_RANK)
TWICE = together(of_map((0, 1)), of_map((0, 1)))
OF_RANKS = replace(REFERENCE, fault_free=drawing(4), members=(REFERENCE,) * 2)


RANK_OUTCOMES = {
    "a hang, then a wait": changed(_waits(RANKS), 0, timed_out=True, phase=EPOCH_1),
    "a crash, then a wait": changed(_waits(WRONG), 0, exitcode=-11, phase=EPOCH_1),
    "a wrong sample, then a wait": _waits(WRONG),
    "a hang of another rank, then a wait": _waits(changed(RANKS, 1, timed_out=True, phase=EPOCH_1)),
    "a wrong sample in other epochs": _apart(WRONG),
    "an unclear error in other epochs": _apart(faulty(RANKS, 1, epochs=(UNCLEAR_RANK,))),
    "the length of all in other epochs": _apart(_has_length_of_all(RANKS)),
    "the length of all and the same samples": _has_length_of_all(TWICE),
    "the same samples": TWICE,
    "the same samples under a fault": faulty(TWICE, 1, recovery=DONE),
    "a sample of no rank": together(of_map((0, 2)), of_map((1,))),
}


def _of_ranks():
    for title, outcome in RANK_OUTCOMES.items():
        yield title, _conclusion(outcome, OF_RANKS)


BY_FORM = Comparison(by_form=True)
FIRST_FOUR = replace(BY_FORM, limit=4)
ENDLESS = replace(stream_reference("s"), comparison=FIRST_FOUR)


def _stream_trial(*epochs: Pass, **facts) -> Outcome:
    return revised(ordinary(epochs[-1]), kind="iterable", epochs=epochs, **facts)


def _random_trial(*batches_by_worker: str, comparison: Comparison = FIRST_FOUR) -> Outcome:
    epoch = stream(*(batch for batches in batches_by_worker for batch in batches.split(",")))
    workers = [number for number, each in enumerate(batches_by_worker) for _ in each.split(",")]
    pairs = enumerate(zip(epoch.delivered, workers, strict=True))
    delivered = tuple(
        replace(batch, worker=worker, digest=f"{place % 2}") for place, (batch, worker) in pairs
    )
    return _stream_trial(replace(epoch, delivered=delivered), comparison=comparison)


STREAMS = {
    "repeated and different": (_stream_trial(stream("a a x")), stream_reference("a b c")),
    "different and missing": (_stream_trial(stream("a x")), stream_reference("a b c")),
    "missing": (_stream_trial(stream("a b")), stream_reference("a b c")),
    "endless, the same in each worker": (_random_trial("s s,s x", "s s,s x"), ENDLESS),
    "random, the same in each worker": (
        _random_trial("s s,s s", "s s,s s", comparison=BY_FORM),
        replace(stream_reference("s s s s s s s s"), comparison=BY_FORM),
    ),
    "endless, different": (_random_trial("s s,x", "s s,s s,s s"), ENDLESS),
    "endless, missing": (_random_trial("s s,s", "s s,s s,s s"), ENDLESS),
}


def _of_streams():
    for title, (outcome, reference) in STREAMS.items():
        yield title, _conclusion(outcome, reference)


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
WAITING = {"tallies": {"unlimited_waits": {"tcp://192.0.2.1:443": 1}}}
SLEEPS = AtDeadline(Activity.SLEEPS)


CAUSES = [
    (FAULT_FREE, "cut short", INHERITED, False),
    (FAULT_FREE, "swapped samples", INHERITED, False),
    (FAULT_FREE, "clear error", INHERITED, False),
    (READING, "unfired", INHERITED, False),
    (READING, "wrong recovery", INHERITED, False),
    (TORN, "cut short", WRITING, False),
    (TORN, "before init, failed recovery", WRITING, False),
    (TORN, "wrong recovery", WRITING, False),
    (TORN, "swapped samples", WRITING, False),
    (TRAINED, "wrong recovery", WRITING, False),
    (TRAINED, "hang in the recovery", WRITING, False),
    (_in_worker(CUT, **LENGTHENED), "swapped samples", FAULT_FREE, False),
    (_in_worker(CUT, **LENGTHENED), "unclear error", FAULT_FREE, False),
    (CUT, "substitute", FAULT_FREE, False),
    (CUT, "cut short", FAULT_FREE, False),
    (TRAINED, "swapped samples", FAULT_FREE, False),
    (READING, "damaged bytes, substitute", FAULT_FREE, False),
    (SPAWNED, "swapped samples", FAULT_FREE, False),
    (SPAWNED, "strange sample", FAULT_FREE, False),
    (FAULT_FREE, "left epoch, strange sample", FAULT_FREE, False),
    (_in_worker(FAULT_FREE), "left epoch, strange sample", FAULT_FREE, False),
    (_in_worker(FAULT_FREE), "strange sample", FAULT_FREE, False),
    (
        revised(SPAWNED, epochs=(replace(DONE, exception=LOST_MODULE, complete=False),)),
        "left processes",
        FAULT_FREE,
        False,
    ),
    (
        _in_worker(revised(FAULT_FREE, stderr=DROPPED, **IN_LOCK), **WAITING),
        "hang",
        FAULT_FREE,
        False,
    ),
    (_in_worker(revised(FAULT_FREE, **IN_LOCK), **WAITING), "hang", FAULT_FREE, False),
    (
        revised(FAULT_FREE, start_method="fork", at_deadline=SLEEPS, **IN_LOCK),
        "hang",
        FAULT_FREE,
        True,
    ),
    (revised(FAULT_FREE, start_method="fork", at_deadline=SLEEPS), "hang", FAULT_FREE, True),
    (revised(FAULT_FREE, at_deadline=SLEEPS), "hang", FAULT_FREE, False),
    (revised(READING, at_deadline=SLEEPS), "hang", FAULT_FREE, False),
    (READING, "hang", FAULT_FREE, False),
]


def _of_causes():
    for number, (trial, facts, fault_free, after_one) in enumerate(CAUSES):
        outcome = _with_facts(trial, facts)
        conclusion = _conclusion(outcome, fault_free=fault_free, after_one=after_one)
        yield f"{number}: {facts}", conclusion


COPY = WorkerFacts(0, 7, 1, {"/folder/a.rec": FileCounts(1, 3, 9)})
FOLLOWED = FollowedRun(
    revised(FAULT_FREE, processes=(WorkerFacts(None, 6, 1, {"/data/a.rec": FileCounts(1, 3, 9)}),))
)


def _judge_by_check(
    name: str, outcome: Outcome, reference: Reference, second: str = "", *, copies: bool = False
) -> str:
    """The verdict of the battery, and whether the judge, the check or a second call decides."""
    again = _with_facts(FAULT_FREE, second) if second else FAULT_FREE
    second_call = JudgedTrial(again, judge_trial(again, REFERENCE)) if second else None
    findings = {"second call": second_call}
    run = SimpleNamespace(
        contract=Contract(),
        reference=reference,
        reference_for=lambda _outcome: reference,
        own_folders=OwnFolders(("/folder",) if second else ()),
        find_once=lambda name, _find: findings[name],
        followed=FOLLOWED,
        working=revised(FAULT_FREE, processes=(COPY,) if copies else ()),
    )
    battery = SimpleNamespace(fault_free_run=run)
    check = CHECKS[name]
    processes = run_epochs(before_init=True) if outcome.before_init else check.scenario.processes
    scenario = replace(check.scenario, processes=processes)
    finding = Battery._judge(battery, outcome, check, scenario)
    cause = likely_cause(outcome, finding, FAULT_FREE)
    return _summarize(finding, cause)


def _epochs(*epochs: Pass, **facts) -> Outcome:
    return revised(FAULT_FREE, kind="iterable", epochs=epochs, **facts)


LONG = " ".join(f"d{number}" for number in range(16))
USED_UP = replace(
    stream_reference(LONG), second_pass_count=3, varying=(("", 16),), comparison=BY_FORM
)
RANDOM = replace(USED_UP, second_pass_count=None)
PARTS = (Part(".", "T (64,)", "a" * 24),)
AGAIN = tuple(
    replace(each, samples=tuple(sample._replace(parts=PARTS) for sample in each.samples))
    for each in stream(LONG).delivered
)
REPEATED = replace(stream(LONG), delivered=AGAIN)


OF_CHECKS = [
    ("two-epochs", _epochs(REPEATED, REPEATED, comparison=BY_FORM), USED_UP, ""),
    ("two-epochs", _epochs(REPEATED, REPEATED, comparison=BY_FORM), RANDOM, ""),
    (
        "two-epochs",
        _with_facts(_epochs(REPEATED, REPEATED, comparison=BY_FORM), "left processes"),
        USED_UP,
        "",
    ),
    (
        "two-epochs",
        revised(
            _with_facts(_epochs(REPEATED, REPEATED, comparison=BY_FORM), "unclear error"),
            schedule=(EIO,),
            faults=fired(EIO),
        ),
        USED_UP,
        "",
    ),
    (
        "empty-file",
        _with_facts(READING, "before init, failed recovery"),
        REFERENCE,
        "before init, failed recovery",
    ),
    ("empty-file", _with_facts(READING, "before init, failed recovery"), REFERENCE, "before init"),
    ("open-error", _with_facts(READING, "failed recovery"), REFERENCE, "clear error"),
]


def _of_checks():
    for number, (name, outcome, reference, second) in enumerate(OF_CHECKS):
        yield f"{name} {number}", _judge_by_check(name, outcome, reference, second)


@pytest.mark.parametrize(
    "conclusions",
    [_of_facts, _of_contracts, _of_states, _of_ranks, _of_streams, _of_causes, _of_checks],
)
def test_the_first_rule_that_is_violated_decides(golden, conclusions):
    golden(f"rule_order{conclusions.__name__}", dict(conclusions()))


def test_a_copy_is_the_cause_only_if_the_files_in_the_folder_have_names_of_sources():
    outcome = _with_facts(READING, "before init, failed recovery")
    conclusions = [
        _judge_by_check("empty-file", outcome, REFERENCE, "before init", copies=copies)
        for copies in (True, False)
    ]

    assert conclusions == [
        "poisoned: copies damaged files in make_dataset",
        "poisoned: keeps an index or a cache built from damaged files",
    ]
