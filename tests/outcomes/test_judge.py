"""The verdicts on facts of a trial, on samplers that draw too little, and on growing resources."""

import signal
from dataclasses import replace

from pytest_dataloader_faults import Contract, Verdict
from pytest_dataloader_faults.outcomes import Activity, AtDeadline, Footprint, Pass
from pytest_dataloader_faults.outcomes.agreement import BY_FORM, EXACT, Comparison, Mask
from pytest_dataloader_faults.outcomes.judge import rules
from pytest_dataloader_faults.outcomes.leaks import judge_growth
from pytest_dataloader_faults.outcomes.stages import RECOVERY, START, Stage
from support.facts import (
    CLEAR,
    EIO,
    EPOCH_1,
    EPOCH_2,
    IN_BATCHES,
    KILLED,
    STRANGE,
    SWAPPED,
    TRUNCATED,
    UNCLEAR,
    batch_of,
    batch_reference,
    drawing,
    fired,
    map_reference,
    moment,
    ordinary,
    raised,
    revised,
    stream,
    stream_reference,
    unfired,
    whole_batch,
)
from support.judging import judge_trial
from support.rows import rows

GOOD = batch_of((0, 1), ("d0", "d1"))
FAILED = Pass(EPOCH_1, ((0, 1), (2, 3)), (GOOD,), CLEAR)
DONE = Pass(EPOCH_1, ((0, 1), (2, 3)), (GOOD, batch_of((2, 3), ("d2", "d3"))), complete=True)
SHORT = replace(DONE, delivered=(GOOD,))
HELPER = moment(Stage.EPOCH, processes={"7": "sleep 600"})
OPEN = moment(Stage.RECOVERY, descriptors={"3": "/data/a.rec"})


def test_each_failure_has_its_own_severity():
    """What is no defect has none, and only two verdicts pass."""
    severities = [each.severity for each in Verdict if each.fails]

    assert sorted(severities) == list(range(1, 9))
    assert {each for each in Verdict if each.passes} == {"survived", "failed_cleanly"}
    assert {each for each in Verdict if not (each.passes or each.fails)} == {"not_exercised"}


MAP = {
    "all came": {},
    "clear error": {"epochs": (FAILED,)},
    "bad": {"epochs": (replace(FAILED, exception=UNCLEAR),)},
    "hung": {"timed_out": True, "phase": EPOCH_1, "recovery": None},
    "hung at start": {"timed_out": True, "phase": START, "epochs": ()},
    "recovery hung": {"timed_out": True, "phase": RECOVERY},
    "did not end": {"timed_out": True, "phase": EPOCH_1, "epochs": (FAILED,)},
    "hung after error": {"timed_out": True, "phase": EPOCH_2, "epochs": (FAILED,)},
    "crashed": {"exitcode": -signal.SIGBUS, "phase": EPOCH_1},
    "swapped": {"epochs": (replace(FAILED, delivered=(SWAPPED,)),)},
    "strange": {"epochs": (replace(FAILED, delivered=(STRANGE,)),)},
    "missing": {"epochs": (SHORT,)},
    "missing in epoch 2": {"epochs": (DONE, SHORT)},
    "process": {"resources": (moment(Stage.START), HELPER)},
    "before": {"resources": (replace(HELPER, stage=Stage.START), HELPER)},
    "descriptor": {"resources": (moment(Stage.EPOCH), OPEN)},
    "open from the start": {"resources": (replace(OPEN, stage=Stage.EPOCH), OPEN)},
    "pipe": {
        "resources": (moment(Stage.EPOCH), moment(Stage.RECOVERY, descriptors={"3": "pipe:[1]"}))
    },
    "recovery raised": {"recovery": FAILED},
    "recovery short": {"recovery": SHORT},
    "strange later": {"recovery": replace(DONE, delivered=(STRANGE,))},
    "unfired": {"faults": unfired(EIO)},
    "own error": {"faults": unfired(EIO), "epochs": (FAILED,)},
    "short anyway": {"faults": unfired(EIO), "epochs": (SHORT,)},
    "hung anyway": {"faults": unfired(EIO), "timed_out": True},
    "died anyway": {"faults": unfired(EIO), "exitcode": 3},
    "error in epoch 2": {"epochs": (FAILED, FAILED)},
    "ended from outside": {"epochs": (), "recovery": None, "phase": EPOCH_1},
}


def _text(finding):
    facts = (finding.wrong, finding.cause and finding.cause.phrase)
    return f"{finding.verdict}{''.join(f' ({each})' for each in facts if each)}: {finding.sentence}"


def test_texts_of_verdicts(golden):
    outcomes = {
        title: revised(ordinary(DONE, fired(EIO)), **changes) for title, changes in MAP.items()
    }
    outcomes["swapped again"] = ordinary(replace(DONE, delivered=(GOOD, SWAPPED)), fired(EIO))
    findings = {title: judge_trial(each, map_reference()) for title, each in outcomes.items()}
    for each in GROWTH:
        findings[f"grows, {each}"] = judge_growth(_outcome(**each))
        findings[f"grows, {each}, with a file"] = judge_growth(_outcome("/data/a.rec", **each))
    for number, row in enumerate(LENGTHS):
        findings[f"length {number}"] = _of_length(*row)
    for number, comparison in enumerate(COMPARISONS):
        findings[f"comparison {number}"] = _survived(comparison)
    strict = Contract(survives=True)
    findings["promised"] = judge_trial(ordinary(FAILED, fired(EIO)), map_reference(), strict)
    findings["no fault"] = judge_trial(ordinary(FAILED), map_reference())
    findings["recovery slow"] = _slow_recovery()
    for name, passes in EPOCHS.items():
        findings[name] = _judged(*passes)
    findings |= _judge_others()
    texts = {title: _text(each) for title, each in findings.items()}
    texts |= {f"meaning of {verdict}": verdict.meaning for verdict in Verdict}
    golden("verdicts", texts)


@rows(("number", "is_mentioned"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_who_may_have_sent_a_signal_is_known_by_its_number(number, is_mentioned, monkeypatch):
    """The name of the signal in the sentence does not matter."""
    monkeypatch.setattr(rules, "describe_end", lambda code: "got a signal")
    outcome = revised(ordinary(Pass(EPOCH_1)), exitcode=-number, phase=EPOCH_1)
    finding = judge_trial(outcome, map_reference())

    assert "main process got a signal" in finding.sentence
    assert ("OOM killer" in finding.sentence) == is_mentioned


LENGTHS = [
    (2, fired(TRUNCATED), None),
    (1, fired(EIO), None),
    (5, fired(EIO), None),
    (2, (*unfired(TRUNCATED), *fired(EIO)), None),
    (2, fired(EIO), CLEAR),
    (4, fired(EIO), None),
]
"""Of datasets that were made of damaged files, with what fired, and the error if there is one."""


def _of_length(length, facts, error):
    batches = (GOOD, batch_of((2, 3), ("d2", "d3")))[: (length + 1) // 2]
    epoch = replace(DONE, delivered=batches, exception=error, complete=error is None, length=length)
    outcome = revised(ordinary(epoch, facts), before_init=True)
    return judge_trial(outcome, replace(map_reference(), readable=4))


STREAMS = {
    "all": stream("a b", "c d"),
    "another order": stream("c a", "d b"),
    "short": stream("a b"),
    "repeated": stream("a b", "c d", "a"),
    "strange": stream("a b", "c x"),
    "short with an error": stream("a b", error=CLEAR),
    "repeated before an error": stream("a a", error=CLEAR),
}
"""Samples of a stream count in any order, each as often as in the reference."""
BATCHES = batch_reference(b01=(0, 1), b23=(2, 3))
DIGESTS = [("b01", "b23"), ("b01", "x"), ("b01",)]
"""Of batches that cannot be split, and are compared whole."""
PROMISES = [Contract(), Contract(survives=True), Contract(names_file=True)]
UNNAMED = replace(FAILED, exception=raised("OSError", "[Errno 5] "))
DEAD = raised("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ")


def _judge_others():
    for seeded, facts in ((0, fired(EIO)), (None, fired(EIO)), (0, unfired(EIO))):
        comparison = Comparison(seeded=seeded)
        outcome = ordinary(replace(DONE, delivered=(STRANGE,)), facts)
        reference = replace(map_reference(), comparison=comparison)
        finding = judge_trial(revised(outcome, comparison=comparison), reference)
        yield f"strange, {'fired' if facts[0].fired else 'unfired'}, {comparison}", finding
    for title, epoch in STREAMS.items():
        outcome = revised(ordinary(epoch, faults=fired(EIO)), recovery=stream("a b", "c d"))
        yield f"stream, {title}", judge_trial(outcome, stream_reference("a b c d"))
    for epoch in (stream("a b a"), stream("a b")):
        outcome = revised(ordinary(epoch, faults=fired(EIO)), recovery=stream("a b a"))
        title = f"stream with a twice, {len(epoch.delivered[0].samples)} samples"
        yield title, judge_trial(outcome, stream_reference("a a b"))
    right = tuple(whole_batch(indices, digest) for indices, digest in BATCHES.digests.items())
    for digests in DIGESTS:
        batches = map(whole_batch, ((0, 1), (2, 3)), digests)
        epoch = Pass(EPOCH_1, ((0, 1), (2, 3)), tuple(batches), complete=True)
        recovery = replace(epoch, delivered=right)
        outcome = revised(ordinary(epoch, fired(EIO)), recovery=recovery, comparison=IN_BATCHES)
        yield f"whole batches, {' '.join(digests)}", judge_trial(outcome, BATCHES)
    promised = {
        "an earlier error": revised(ordinary(DONE, faults=fired(EIO)), epochs=(FAILED, DONE)),
        "no error": ordinary(DONE, faults=fired(EIO)),
        "an error": ordinary(FAILED, faults=fired(EIO)),
        "an error without the file": ordinary(UNNAMED, faults=fired(EIO)),
        "a death": ordinary(replace(FAILED, exception=DEAD), faults=fired(KILLED, path=None)),
    }
    for title, outcome in promised.items():
        for contract in PROMISES:
            yield f"{contract}, {title}", judge_trial(outcome, map_reference(), contract)


def test_error_that_explains_one_of_two_faults_is_clear():
    facts = (*fired(TRUNCATED, path="/data/b.rec"), *fired(EIO))

    assert judge_trial(ordinary(FAILED, faults=facts), map_reference()).verdict == "failed_cleanly"


COMPARISONS = [
    EXACT,
    Comparison(seeded=0),
    Comparison(mask=Mask(form_only=("[1]",))),
    BY_FORM,
    replace(BY_FORM, limit=4),
    replace(BY_FORM, mask=Mask(types_only=("[1]",))),
]
"""Survival claims no more than was compared."""


def _survived(comparison):
    outcome = revised(ordinary(DONE, fired(EIO)), comparison=comparison)
    return judge_trial(outcome, replace(map_reference(), comparison=comparison))


SLOW = {"timed_out": True, "phase": EPOCH_1, "recovery": None, "batches": 2, "epochs": (SHORT,)}
HANGS = [
    ({}, "delivers", 120),
    ({"batches": None}, "delivers", 120),
    ({"epochs": ()}, "reads", 120),
    ({}, "sleeps", 0),
    ({}, "computes", 0),
    ({}, "waits", 0),
]


def _hang(changes, activity, extension):
    at_deadline = AtDeadline(Activity(activity), extension)
    outcome = revised(ordinary(SHORT, fired(EIO)), **{**SLOW, **changes}, at_deadline=at_deadline)
    return judge_trial(outcome, map_reference())


def test_texts_of_hangs(golden):
    findings = {f"{row[1]} {row[0] or ''}".strip(): _hang(*row) for row in HANGS}
    golden("hangs", {title: f"{each.verdict}: {each.sentence}" for title, each in findings.items()})


def _slow_recovery():
    at_deadline = AtDeadline(Activity.DELIVERS, 120)
    slow = {**SLOW, "phase": RECOVERY, "recovery": SHORT, "at_deadline": at_deadline}
    return judge_trial(revised(ordinary(SHORT, fired(EIO)), **slow), map_reference())


WHOLE, REST = ((0, 1), (2, 3)), ((2, 3),)
LEFT = Pass(EPOCH_1, WHOLE, batches=2)
FAILED_EPOCH = Pass(EPOCH_1, WHOLE, exception=raised("OSError", "no"), batches=2)


def _pass(drawn, batches=2):
    deliveries = tuple(batch_of(each, tuple(f"d{index}" for index in each)) for each in drawn)
    return Pass(EPOCH_1, drawn, deliveries, complete=True, batches=batches)


def _judged(*passes, drawn=4, kind="map"):
    outcome = revised(ordinary(passes[-1]), kind=kind, epochs=passes)
    fault_free = None if drawn is None else drawing(drawn)
    return judge_trial(outcome, replace(map_reference(), fault_free=fault_free))


@rows(
    ("second", "drawn"),
    [
        (_pass(REST, batches=None), 4),
        (_pass(REST, batches=1), 4),
        (_pass(REST), None),
        (_pass(REST), 2),
        (_pass(((0, 1, 2, 3),)), 4),
    ],
    ids=["no length", "another length", "never as long", "never as many", "packed in fewer"],
)
def test_a_sampler_that_varies_is_not_the_cause(second, drawn):
    """Its length must hold without a fault, and for this epoch, and there must be fewer samples."""
    assert "survived" == _judged(LEFT, second, drawn=drawn).verdict


EPOCHS = {
    "after an epoch that was left": (LEFT, _pass(REST)),
    "after an error": (FAILED_EPOCH, _pass(REST)),
    "second epoch short": (_pass(WHOLE), _pass(REST)),
    "second epoch empty": (_pass(WHOLE), _pass((), None)),
    "second epoch empty after one that was left": (LEFT, _pass(())),
}
_KIB = 1024


def _outcome(newly_open="", **each_epoch):
    """An outcome whose main process has this much more of a resource after each epoch."""
    prints = tuple(
        Footprint(
            epoch, "loader", **{**_nothing(), **_times(epoch, each_epoch)}, newly_open=newly_open
        )
        for epoch in range(1, 33)
    )
    return revised(ordinary(Pass(EPOCH_1)), footprints=prints)


def _nothing():
    return dict.fromkeys(("memory", "descriptors", "threads", "pinned", "device"), 0)


def _times(epoch, each_epoch):
    return {name: epoch * count for name, count in each_epoch.items()}


GROWTH = [
    {"memory": 70 * _KIB},
    {"pinned": 4 * _KIB},
    {"device": 4 * _KIB},
    {"threads": 1},
    {"threads": 2},
    {"descriptors": 1},
    {"pinned": 90 * _KIB, "memory": 90 * _KIB},
]
"""The most specific resource is named: pinned memory may be counted as memory as well."""


@rows("each_epoch", [{"pinned": 1000}, {"device": 1000}, {"memory": 60 * _KIB}])
def test_less_growth_is_not_reported(each_epoch):
    """A healthy process may grow as much."""
    assert judge_growth(_outcome(**each_epoch)) is None
