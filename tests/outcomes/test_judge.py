"""The verdicts on facts of a trial, on samplers that draw too little, and on growing resources."""

import signal
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, Verdict
from pytest_dataloader_faults.outcomes import (
    Activity,
    AtDeadline,
    Footprint,
    Pass,
)
from pytest_dataloader_faults.outcomes.agreement import BY_FORM, EXACT, Comparison, Mask
from pytest_dataloader_faults.outcomes.contract import Wrong
from pytest_dataloader_faults.outcomes.judge import rules
from pytest_dataloader_faults.outcomes.judge.rules import SAMPLER_CONTINUES, USED_UP
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


def _verdict(outcome, reference=None, contract=None):
    return judge_trial(outcome, reference or map_reference(), contract).verdict


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


def test_texts_of_verdicts(golden):
    outcomes = {
        title: revised(ordinary(DONE, fired(EIO)), **changes) for title, changes in MAP.items()
    }
    outcomes["swapped again"] = ordinary(replace(DONE, delivered=(GOOD, SWAPPED)), fired(EIO))
    outcomes["grows"] = _outcome(descriptors=1)
    findings = {title: judge_trial(each, map_reference()) for title, each in outcomes.items()}
    strict = Contract(survives=True)
    findings["promised"] = judge_trial(ordinary(FAILED, fired(EIO)), map_reference(), strict)
    findings["no fault"] = judge_trial(ordinary(FAILED), map_reference())
    findings["recovery slow"] = _slow_recovery()
    for name, passes in EPOCHS.items():
        findings[name] = _judged(*passes)
    texts = {title: f"{each.verdict}: {each.sentence}" for title, each in findings.items()}
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


@rows(
    ("seeded", "facts", "is_mentioned"),
    [(0, fired(EIO), True), (None, fired(EIO), False), (0, unfired(EIO), False)],
)
def test_a_retry_that_draws_more_random_numbers_is_explained(seeded, facts, is_mentioned):
    """It needs seeded samples, and a fault to retry after."""
    comparison = Comparison(seeded=seeded)
    outcome = revised(ordinary(replace(DONE, delivered=(STRANGE,)), facts), comparison=comparison)
    finding = judge_trial(outcome, replace(map_reference(), comparison=comparison))

    assert finding.verdict == "corrupted"
    assert ("Contract(key=...)" in finding.sentence) == is_mentioned


@rows(
    ("length", "facts", "error", "parts", "wrong"),
    [
        (2, fired(TRUNCATED), None, ("a.rec", "50 %", "2 of 4 samples"), Wrong.MISSING),
        (1, fired(EIO), None, ("a.rec", "1 of 4 samples is"), Wrong.MISSING),
        (5, fired(EIO), None, ("a.rec", "5 samples", "4"), Wrong.DIFFERS),
        (2, (*unfired(TRUNCATED), *fired(EIO)), None, ("a.rec", "2 of 4"), Wrong.MISSING),
        (2, fired(EIO), CLEAR, ("OSError",), None),
        (4, fired(EIO), None, (), None),
    ],
)
def test_a_dataset_of_damaged_files_has_another_length(length, facts, error, parts, wrong):
    """The sentence names the fault that fired, unless the dataset raised an error."""
    batches = (GOOD, batch_of((2, 3), ("d2", "d3")))[: (length + 1) // 2]
    epoch = replace(DONE, delivered=batches, exception=error, complete=error is None, length=length)
    outcome = revised(ordinary(epoch, facts), before_init=True)
    finding = judge_trial(outcome, replace(map_reference(), readable=4))

    assert (finding.verdict == "corrupted", finding.wrong) == (wrong is not None, wrong)
    assert [part for part in parts if part not in finding.sentence] == []


STREAM = [
    pytest.param(stream("a b", "c d"), "survived", id="all"),
    pytest.param(stream("c a", "d b"), "survived", id="another order"),
    pytest.param(stream("a b"), "corrupted", id="short"),
    pytest.param(stream("a b", "c d", "a"), "corrupted", id="repeated"),
    pytest.param(stream("a b", "c x"), "corrupted", id="strange"),
    pytest.param(stream("a b", error=CLEAR), "failed_cleanly", id="short with an error"),
    pytest.param(stream("a a", error=CLEAR), "corrupted", id="repeated before an error"),
]


@rows(("epoch", "expected"), STREAM)
def test_verdict_on_an_iterable_dataset(epoch, expected):
    """Samples of a stream count in any order, each as often as in the reference."""
    outcome = revised(ordinary(epoch, faults=fired(EIO)), recovery=stream("a b", "c d"))

    assert expected == _verdict(outcome, stream_reference("a b c d"))


def test_equal_samples_of_a_stream_are_counted():
    """A sample that is in the stream twice must be delivered twice."""
    reference = stream_reference("a a b")

    twice, once = (
        _verdict(revised(ordinary(epoch, faults=fired(EIO)), recovery=stream("a b a")), reference)
        for epoch in (stream("a b a"), stream("a b"))
    )

    assert (twice, once) == ("survived", "corrupted")


BATCHES = batch_reference(b01=(0, 1), b23=(2, 3))


@rows(
    ("digests", "expected"),
    [(("b01", "b23"), "survived"), (("b01", "x"), "corrupted"), (("b01",), "corrupted")],
)
def test_batches_that_cannot_be_split_are_judged_whole(digests, expected):
    """A batch without rows is compared by its own digest."""
    batches = tuple(
        whole_batch(indices, digest)
        for indices, digest in zip(((0, 1), (2, 3)), digests, strict=False)
    )
    epoch = Pass(EPOCH_1, ((0, 1), (2, 3)), batches, complete=True)
    right = tuple(whole_batch(indices, digest) for indices, digest in BATCHES.digests.items())
    recovery = replace(epoch, delivered=right)
    facts = {"recovery": recovery, "comparison": IN_BATCHES}
    outcome = revised(ordinary(epoch, faults=fired(EIO)), **facts)

    assert expected == _verdict(outcome, BATCHES)


@rows(("survives", "verdict"), [(False, "survived"), (True, "contract_broken")])
def test_an_error_of_an_earlier_epoch_breaks_the_promise_to_survive(survives, verdict):
    """The epoch after it is complete."""
    outcome = revised(ordinary(DONE, faults=fired(EIO)), epochs=(FAILED, DONE))
    assert judge_trial(outcome, map_reference(), Contract(survives=survives)).verdict == verdict


@rows(
    ("contract", "epoch", "passed"),
    [
        (Contract(), DONE, True),
        (Contract(), FAILED, True),
        (Contract(survives=True), DONE, True),
        (Contract(survives=True), FAILED, False),
        (Contract(names_file=True), DONE, True),
        (Contract(names_file=True), FAILED, True),
        (Contract(names_file=True), replace(FAILED, exception=raised("OSError", "[Errno 5] ")), 0),
    ],
)
def test_contract(contract, epoch, passed):
    outcome = ordinary(epoch, faults=fired(EIO, path="/data/a.rec"))

    assert bool(passed) == judge_trial(outcome, map_reference(), contract).passed


def test_names_file_ignores_faults_without_a_file():
    """The error of a death has no file to name."""
    dead = raised("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ")
    outcome = ordinary(replace(FAILED, exception=dead), faults=fired(KILLED, path=None))

    assert _verdict(outcome, contract=Contract(names_file=True)) == "failed_cleanly"


def test_error_that_explains_one_of_two_faults_is_clear():
    facts = (*fired(TRUNCATED, path="/data/b.rec"), *fired(EIO))

    assert _verdict(ordinary(FAILED, faults=facts)) == "failed_cleanly"


@rows(
    ("comparison", "says"),
    [
        (EXACT, "the reference"),
        (Comparison(seeded=0), "the reference"),
        (Comparison(mask=Mask(form_only=("[1]",))), "all parts that were compared"),
        (BY_FORM, "types and shapes"),
        (replace(BY_FORM, limit=4), "types and shapes"),
        (replace(BY_FORM, mask=Mask(types_only=("[1]",))), "right types;"),
    ],
)
def test_survival_claims_no_more_than_was_compared(comparison, says):
    """If only types were compared, the sentence does not claim that the content is correct."""
    outcome = revised(ordinary(DONE, fired(EIO)), comparison=comparison)

    assert says in judge_trial(outcome, replace(map_reference(), comparison=comparison)).sentence


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
    """A complete epoch that delivered everything that was drawn."""
    deliveries = tuple(batch_of(each, tuple(f"d{index}" for index in each)) for each in drawn)
    return Pass(EPOCH_1, drawn, deliveries, complete=True, batches=batches)


def _judged(*passes, drawn=4, kind="map"):
    outcome = revised(ordinary(passes[-1]), kind=kind, epochs=passes)
    fault_free = None if drawn is None else drawing(drawn)
    return judge_trial(outcome, replace(map_reference(), fault_free=fault_free))


@rows(
    ("passes", "cause", "text"),
    [
        ((LEFT, _pass(REST)), SAMPLER_CONTINUES, "left early"),
        ((FAILED_EPOCH, _pass(REST)), SAMPLER_CONTINUES, "an error"),
        ((_pass(WHOLE), _pass(REST)), USED_UP, "2 of the 4 samples"),
        ((LEFT, _pass(())), USED_UP, "left early"),
        ((_pass(WHOLE), _pass((), None)), USED_UP, "no indices"),
    ],
)
def test_an_epoch_of_too_few_samples_is_corrupted(passes, cause, text):
    """The sentence names the epoch, and how the previous one ended."""
    finding = _judged(*passes)

    assert ("corrupted", cause) == (finding.verdict, finding.cause)
    assert finding.sentence.startswith("in epoch 2, ")
    assert text in finding.sentence


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
}
_KIB = 1024


def _outcome(**each_epoch):
    """An outcome whose main process has this much more of a resource after each epoch."""
    prints = tuple(
        Footprint(epoch, "loader", **{**_nothing(), **_times(epoch, each_epoch)})
        for epoch in range(1, 33)
    )
    return revised(ordinary(Pass(EPOCH_1)), footprints=prints)


def _nothing():
    return dict.fromkeys(("memory", "descriptors", "threads", "pinned", "device"), 0)


def _times(epoch, each_epoch):
    return {name: epoch * count for name, count in each_epoch.items()}


@rows(
    ("each_epoch", "says"),
    [
        ({"memory": 70 * _KIB}, "70 KiB more memory"),
        ({"pinned": 4 * _KIB}, "4 KiB more pinned memory"),
        ({"device": 4 * _KIB}, "4 KiB more accelerator memory"),
        ({"threads": 1}, "1 more thread "),
        ({"threads": 2}, "2 more threads "),
        ({"descriptors": 1}, "1 more descriptor "),
        ({"pinned": 90 * _KIB, "memory": 90 * _KIB}, "90 KiB more pinned memory"),
    ],
)
def test_a_growing_resource_is_named(each_epoch, says):
    """The most specific one comes first: pinned memory may be counted as memory as well."""
    finding = judge_growth(_outcome(**each_epoch))

    assert (finding.verdict, says in finding.sentence) == ("leaked", True), finding


@rows("each_epoch", [{"pinned": 1000}, {"device": 1000}, {"memory": 60 * _KIB}])
def test_less_growth_is_not_reported(each_epoch):
    """A healthy process may grow as much."""
    assert judge_growth(_outcome(**each_epoch)) is None


@rows(
    ("each_epoch", "ending"),
    [({"descriptors": 1}, "process (/data/a.rec)"), ({"threads": 1}, "process")],
)
def test_only_descriptors_have_an_example(each_epoch, ending):
    """The file that was opened last does not explain a thread."""
    outcome = _outcome(**each_epoch)
    prints = tuple(replace(footprint, newly_open="/data/a.rec") for footprint in outcome.footprints)

    assert judge_growth(revised(outcome, footprints=prints)).sentence.endswith(ending)
