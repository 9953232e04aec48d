"""Which verdict the facts of a trial get; what a sampler drew too little of, and what grows."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, Verdict, faults
from pytest_dataloader_faults.outcomes import (
    Activity,
    AtDeadline,
    Delivery,
    Footprint,
    Pass,
    Reference,
    records,
)
from pytest_dataloader_faults.outcomes.contract import EXACT, SHAPES, TYPES, Comparison, Wrong
from pytest_dataloader_faults.outcomes.judge.leaks import judge_growth
from pytest_dataloader_faults.outcomes.stages import RECOVERY, START, Stage
from support.facts import (
    EIO,
    EPOCH_1,
    EPOCH_2,
    KILLED,
    TRUNCATED,
    delivery,
    fired,
    map_reference,
    moment,
    ordinary,
    raised,
    stream,
    stream_reference,
    unfired,
)
from support.rows import rows

CLEAR = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
UNCLEAR = raised("RuntimeError", "bad sample")
SWAPPED = delivery((0, 1), ("d1", "d0"))
STRANGE = delivery((0, 1), ("d0", "other"))
GOOD = delivery((0, 1), ("d0", "d1"))
FAILED = Pass(((0, 1), (2, 3)), (GOOD,), CLEAR)
DONE = Pass(((0, 1), (2, 3)), (GOOD, delivery((2, 3), ("d2", "d3"))), complete=True)
SHORT = replace(DONE, delivered=(GOOD,))
HELPER = moment(Stage.EPOCH, processes={"7": "sleep 600"})
OPEN = moment(Stage.RECOVERY, descriptors={"3": "/data/a.rec"})


def _verdict(outcome, reference=None, contract=None):
    return outcome.judge(reference or map_reference(), contract).verdict


@rows(
    ("error", "told"),
    [
        (UNCLEAR, "in epoch 2, RuntimeError does not say that its cause is"),
        (CLEAR, "in epoch 2, OSError was raised before the deadline"),
    ],
)
def test_an_error_after_the_first_epoch_is_told_with_its_epoch(error, told):
    """Where there is one epoch, no epoch is named."""
    first, second = replace(FAILED, exception=CLEAR), replace(FAILED, exception=error)
    outcome = replace(ordinary(second, fired(EIO)), epochs=2, passes=(first, second))

    assert outcome.judge(map_reference()).sentence.startswith(told)
    alone = ordinary(second, fired(EIO)).judge(map_reference())
    assert alone.sentence.startswith(told.removeprefix("in epoch 2, "))


def test_an_unclear_error_is_told_the_errno():
    """Users know errnos, and not the classes of this plugin; a collated None has its own advice."""
    found = "default_collate: batch must contain tensors; found <class 'NoneType'>"
    for error, advice in ((UNCLEAR, "Read by open()"), (raised("TypeError", found), "drops None")):
        outcome = ordinary(replace(FAILED, exception=error), fired(EIO))
        judgement = outcome.judge(map_reference())
        assert "its cause is [Errno 5] Input/output error" in judgement.sentence
        assert advice in judgement.sentence


MAP = [
    pytest.param({}, "survived", id="all came"),
    pytest.param({"passes": (FAILED,)}, "failed_cleanly", id="clear error"),
    pytest.param({"passes": (replace(FAILED, exception=UNCLEAR),)}, "failed_unclearly", id="bad"),
    pytest.param({"timed_out": True, "phase": EPOCH_1, "recovery": None}, "hung", id="hung"),
    pytest.param({"timed_out": True, "phase": START, "passes": ()}, "hung", id="hung at start"),
    pytest.param({"timed_out": True, "phase": RECOVERY}, "poisoned", id="recovery hung"),
    pytest.param(
        {"timed_out": True, "phase": EPOCH_1, "passes": (FAILED,)}, "leaked", id="did not end"
    ),
    pytest.param(
        {"timed_out": True, "phase": EPOCH_2, "passes": (FAILED,)}, "hung", id="hung after error"
    ),
    pytest.param({"exitcode": -signal.SIGBUS, "phase": EPOCH_1}, "crashed", id="crashed"),
    pytest.param({"passes": (replace(FAILED, delivered=(SWAPPED,)),)}, "corrupted", id="swapped"),
    pytest.param({"passes": (replace(FAILED, delivered=(STRANGE,)),)}, "corrupted", id="strange"),
    pytest.param({"passes": (SHORT,)}, "corrupted", id="missing"),
    pytest.param({"passes": (DONE, SHORT)}, "corrupted", id="missing in epoch 2"),
    pytest.param({"resources": (moment(Stage.START), HELPER)}, "leaked", id="process"),
    pytest.param(
        {"resources": (replace(HELPER, stage=Stage.START), HELPER)}, "survived", id="before"
    ),
    pytest.param({"resources": (moment(Stage.EPOCH), OPEN)}, "leaked", id="descriptor"),
    pytest.param(
        {"resources": (replace(OPEN, stage=Stage.EPOCH), OPEN)},
        "survived",
        id="open from the start",
    ),
    pytest.param(
        {"resources": (moment(Stage.EPOCH), moment(Stage.RECOVERY, descriptors={"3": "pipe:[1]"}))},
        "survived",
        id="pipe",
    ),
    pytest.param({"recovery": FAILED}, "poisoned", id="recovery raised"),
    pytest.param({"recovery": SHORT}, "poisoned", id="recovery short"),
    pytest.param({"recovery": replace(DONE, delivered=(STRANGE,))}, "poisoned", id="strange later"),
    pytest.param({"faults": unfired(EIO)}, "not_exercised", id="unfired"),
    pytest.param({"faults": unfired(EIO), "passes": (FAILED,)}, "not_exercised", id="own error"),
    pytest.param({"faults": unfired(EIO), "passes": (SHORT,)}, "corrupted", id="short anyway"),
    pytest.param({"faults": unfired(EIO), "timed_out": True}, "hung", id="hung anyway"),
    pytest.param({"faults": unfired(EIO), "exitcode": 3}, "crashed", id="died anyway"),
]


@rows(("changes", "expected"), MAP)
def test_verdict_on_a_map_style_dataset(changes, expected):
    """Each set of facts gets its verdict."""
    assert expected == _verdict(replace(ordinary(DONE, faults=fired(EIO)), **changes))


def test_trial_that_came_to_no_end_is_not_survived():
    """A trial whose process was ended from outside, half way, has not shown that all is well."""
    outcome = replace(ordinary(DONE, faults=fired(EIO)), passes=(), recovery=None, phase=EPOCH_1)

    assert outcome.judge(map_reference()).passed is False


@rows(("number", "is_told"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_who_may_have_sent_a_signal_is_known_by_its_number(number, is_told, monkeypatch):
    """However the signal is called in the sentence."""
    monkeypatch.setattr(records, "exit_in_words", lambda code: "by a signal")
    outcome = replace(ordinary(Pass()), exitcode=-number, phase=EPOCH_1)
    found = outcome.judge(map_reference())

    assert found.sentence.startswith("the process that iterates the loader died: by a signal")
    assert ("OOM killer" in found.sentence) == is_told


GRAVITY = [
    ("hung", {"timed_out": True, "phase": EPOCH_2}),
    ("crashed", {"exitcode": -signal.SIGSEGV}),
    ("corrupted", {"passes": (replace(FAILED, delivered=(STRANGE,), exception=UNCLEAR),)}),
    ("poisoned", {"recovery": SHORT}),
    ("failed_unclearly", {"passes": (replace(FAILED, exception=UNCLEAR),)}),
    ("leaked", {"resources": (moment(Stage.START), HELPER)}),
]


@rows("grave", range(len(GRAVITY)))
def test_gravest_rule_decides(grave):
    """Of several things that are wrong the gravest names the verdict."""
    changes = {}
    for _, each in reversed(GRAVITY[grave:]):
        changes.update(each)

    assert GRAVITY[grave][0] == _verdict(replace(ordinary(DONE, faults=fired(EIO)), **changes))


def test_sentence_names_the_sample_that_came_instead():
    """A sample that is another's differs from one that is no sample of the reference."""
    swapped, strange = (
        ordinary(replace(FAILED, delivered=(each,)), faults=fired(EIO)).judge(map_reference())
        for each in (SWAPPED, STRANGE)
    )

    assert "sample 0 (batch 0) is wrong: it has the content of sample 1" in swapped.sentence
    assert "sample 1 (batch 0) is wrong" in strange.sentence


@rows(
    ("seeded", "facts", "is_told"),
    [(0, fired(EIO), True), (None, fired(EIO), False), (0, unfired(EIO), False)],
)
def test_a_retry_that_draws_more_random_numbers_is_told_of(seeded, facts, is_told):
    """Where they are seeded for each sample, and a fault was there to retry after."""
    comparison = Comparison(seeded=seeded)
    outcome = replace(ordinary(replace(DONE, delivered=(STRANGE,)), facts), comparison=comparison)
    judgement = outcome.judge(replace(map_reference(), comparison=comparison))

    assert judgement.verdict == "corrupted"
    assert ("a retry that draws more of them gives another sample" in judgement.sentence) == is_told


@rows(
    ("length", "facts", "error", "told", "kind"),
    [
        (2, fired(TRUNCATED), None, "a.rec has 50 % fewer bytes; 2 of 4 sam", Wrong.MISSING),
        (1, fired(EIO), None, "a.rec cannot be read; 1 of 4 samples is there", Wrong.MISSING),
        (5, fired(EIO), None, "a.rec cannot be read; 5 samples are there in", Wrong.UNKNOWN),
        (2, (*unfired(TRUNCATED), *fired(EIO)), None, "a.rec cannot be read; 2 of", Wrong.MISSING),
        (2, fired(EIO), CLEAR, "OSError was raised before the deadline", None),
        (4, fired(EIO), None, "every sample was delivered", None),
    ],
)
def test_a_dataset_that_was_made_of_bad_files_has_another_length(length, facts, error, told, kind):
    """Said where it is silent about it, by the fault that happened."""
    came = (GOOD, delivery((2, 3), ("d2", "d3")))[: (length + 1) // 2]
    one = replace(DONE, delivered=came, exception=error, complete=error is None, length=length)
    outcome = replace(ordinary(one, facts), from_start=True)
    judgement = outcome.judge(replace(map_reference(), total=4))

    assert (judgement.verdict == "corrupted", judgement.kind) == (kind is not None, kind)
    assert judgement.sentence.startswith(told)


STREAM = [
    pytest.param(stream("a b", "c d"), "survived", id="all"),
    pytest.param(stream("c a", "d b"), "survived", id="another order"),
    pytest.param(stream("a b"), "corrupted", id="short"),
    pytest.param(stream("a b", "c d", "a"), "corrupted", id="repeated"),
    pytest.param(stream("a b", "c x"), "corrupted", id="strange"),
    pytest.param(stream("a b", error=CLEAR), "failed_cleanly", id="short with an error"),
    pytest.param(stream("a a", error=CLEAR), "corrupted", id="repeated before an error"),
]


@rows(("one", "expected"), STREAM)
def test_verdict_on_an_iterable_dataset(one, expected):
    """Samples of a stream count in any order, each as often as in the reference."""
    outcome = replace(ordinary(one, faults=fired(EIO)), recovery=stream("a b", "c d"))

    assert expected == _verdict(outcome, stream_reference("a b c d"))


def test_equal_samples_of_a_stream_are_counted():
    """A sample that is in the stream twice may come twice, and must."""
    reference = stream_reference("a a b")

    twice, once = (
        _verdict(replace(ordinary(one, faults=fired(EIO)), recovery=stream("a b a")), reference)
        for one in (stream("a b a"), stream("a b"))
    )

    assert (twice, once) == ("survived", "corrupted")


BATCHES = Reference("map", (), (((0, 1), "b01"), ((2, 3), "b23")))


@rows(
    ("digests", "expected"),
    [(("b01", "b23"), "survived"), (("b01", "x"), "corrupted"), (("b01",), "corrupted")],
)
def test_batches_that_cannot_be_split_are_judged_whole(digests, expected):
    """Where a batch has no rows its own digest counts."""
    came = tuple(
        Delivery(indices, None, digest)
        for indices, digest in zip(((0, 1), (2, 3)), digests, strict=False)
    )
    whole = Pass(((0, 1), (2, 3)), came, complete=True)
    right = tuple(Delivery(indices, None, digest) for indices, digest in BATCHES.batches)
    recovery = replace(whole, delivered=right)
    outcome = replace(ordinary(whole, faults=fired(EIO)), recovery=recovery)

    assert expected == _verdict(outcome, BATCHES)


def test_batch_without_rows_does_not_pass_where_samples_are_known():
    """A batch that cannot be split, though the reference's could, is not what it should be."""
    odd = Pass(((0, 1),), (Delivery((0, 1), None, "whatever"),), CLEAR)

    judgement = ordinary(odd, faults=fired(EIO)).judge(map_reference())

    assert judgement.verdict == "corrupted"
    assert "[0, 1]" in judgement.sentence


def test_reference_must_know_what_is_judged():
    """Samples that are not in the reference cannot be compared."""
    with pytest.raises(ValueError, match=r"does not know batch \[2, 3\]"):
        ordinary(DONE, faults=fired(EIO)).judge(map_reference(2))


@rows(
    ("contract", "one", "passed"),
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
def test_contract(contract, one, passed):
    """An author can promise more than to survive or to fail cleanly."""
    outcome = ordinary(one, faults=fired(EIO, path="/data/a.rec"))

    assert bool(passed) == outcome.judge(map_reference(), contract).passed


def test_names_file_asks_nothing_of_faults_without_a_file():
    """A death has no file that its error could name."""
    dead = raised("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ")
    outcome = ordinary(replace(FAILED, exception=dead), faults=fired(KILLED, path=None))

    assert _verdict(outcome, contract=Contract(names_file=True)) == "failed_cleanly"


def test_without_faults_only_surviving_passes():
    """An error that needs no fault is no clean failure, and has a verdict of its own."""
    survived, failed = (ordinary(one).judge(map_reference()) for one in (DONE, FAILED))

    assert (survived.verdict, survived.passed) == (Verdict.SURVIVED, True)
    assert (failed.verdict, failed.passed) == (Verdict.BROKEN, False)
    assert "without any fault" in failed.sentence


def test_failure_that_the_contract_forbids_is_broken():
    """However clean it is, nobody shall read "cleanly" of it; the sentence has the promise."""
    judgement = ordinary(FAILED, fired(EIO)).judge(map_reference(), Contract(survives=True))

    assert (judgement.verdict, judgement.passed) == (Verdict.BROKEN, False)
    assert "but the contract promises survives=True" in judgement.sentence


def test_error_that_tells_of_one_of_two_faults_is_clear():
    """With several faults fired, the error need tell of one."""
    facts = (*fired(TRUNCATED, path="/data/b.rec"), *fired(EIO))

    assert _verdict(ordinary(FAILED, faults=facts)) == "failed_cleanly"


@rows("fault", [faults.OpenError(), faults.WorkerKilled(), TRUNCATED])
@rows("one", [DONE, FAILED])
def test_fault_that_never_fired_is_never_a_pass(fault, one):
    """Nothing was shown, whatever the contract."""
    judgement = ordinary(one, faults=unfired(fault)).judge(map_reference())

    assert (judgement.verdict, judgement.passed) == ("not_exercised", False)


@rows(
    ("comparison", "says"),
    [
        (EXACT, "every sample was delivered and matches the reference"),
        (Comparison(seeded=0), "every sample was delivered and matches the reference"),
        (
            Comparison(varying=(("[1]", SHAPES.what),)),
            "every sample was delivered and matches the reference in all parts that were compared",
        ),
        (SHAPES, "with the right types and shapes; no more was compared"),
        (replace(SHAPES, limit=4), "with the right types and shapes; no more was"),
        (TYPES, "every sample was delivered with the right types; no more was compared"),
    ],
)
def test_survival_claims_no_more_than_was_compared(comparison, says):
    """Where only types were asked, nobody shall read that the content is right."""
    outcome = replace(ordinary(DONE, fired(EIO)), comparison=comparison)

    assert says in outcome.judge(replace(map_reference(), comparison=comparison)).sentence


SLOW = {"timed_out": True, "phase": EPOCH_1, "recovery": None, "batches": 2, "passes": (SHORT,)}
HAD_LONGER = "within its deadline of 30 s and 120 s more"


@rows(
    ("changes", "activity", "more", "sentence"),
    [
        ({}, "delivers", 120, f"{HAD_LONGER}: 1 of 2 batches came, and it goes on"),
        ({"batches": None}, "delivers", 120, f"{HAD_LONGER}: 1 batch came, and it goes on"),
        ({"passes": ()}, "reads", 120, f"{HAD_LONGER}: 0 of 2 batches came, and workers read on"),
        ({}, "sleeps", 0, "within 30 s: a worker sleeps, as between retries"),
        ({}, "computes", 0, "within 30 s: a worker computes, or tries again, all the time"),
        ({}, "waits", 0, "no exception and no end of the epoch within 30 s"),
    ],
)
def test_the_sentence_says_what_it_did_at_the_deadline(changes, activity, more, sentence):
    """With the numbers, where it goes on; nothing is added where nothing moved."""
    found = AtDeadline(Activity(activity), more)
    outcome = replace(ordinary(SHORT, fired(EIO)), **{**SLOW, **changes}, at_deadline=found)
    judgement = outcome.judge(map_reference())

    assert judgement.verdict == "hung"
    assert judgement.sentence.endswith(sentence)


def test_a_slow_recovery_is_not_called_hung():
    """It had not come to its end, and nobody can tell more."""
    found = AtDeadline(Activity.DELIVERS, 120)
    slow = {**SLOW, "phase": RECOVERY, "recovery": SHORT, "at_deadline": found}
    judgement = replace(ordinary(SHORT, fired(EIO)), **slow).judge(map_reference())

    assert judgement.verdict == "poisoned"
    assert f"was not over {HAD_LONGER}: 1 of 2 batches came, and it goes on" in judgement.sentence


WHOLE, REST = ((0, 1), (2, 3)), ((2, 3),)
LEFT = Pass(WHOLE, batches=2)
FAILED_EPOCH = Pass(WHOLE, exception=raised("OSError", "no"), batches=2)


def _pass(drawn, batches=2):
    """A complete epoch that gave all that was drawn."""
    came = tuple(delivery(each, tuple(f"d{index}" for index in each)) for each in drawn)
    return Pass(drawn, came, complete=True, batches=batches)


def _judged(*passes, drawn=4, kind="map"):
    outcome = replace(ordinary(passes[-1]), kind=kind, passes=passes)
    return outcome.judge(replace(map_reference(), drawn=drawn))


@rows(
    ("passes", "kind", "told"),
    [
        ((LEFT, _pass(REST)), Wrong.RESUMED, "in epoch 2, after one that was left early, the samp"),
        (
            (FAILED_EPOCH, _pass(REST)),
            Wrong.RESUMED,
            "in epoch 2, after one that an error ended, the sa",
        ),
        ((_pass(WHOLE), _pass(REST)), Wrong.USED_UP, "in epoch 2, the sampler drew 2 of the 4 sam"),
        ((LEFT, _pass(())), Wrong.USED_UP, "in epoch 2, after one that was left early, the sampl"),
        ((_pass(WHOLE), _pass((), None)), Wrong.USED_UP, "in epoch 2, the sampler drew no index"),
    ],
)
def test_an_epoch_of_too_few_samples_is_corrupted(passes, kind, told):
    """The sentence names the epoch, and what had become of the one before."""
    judgement = _judged(*passes)

    assert ("corrupted", kind) == (judgement.verdict, judgement.kind)
    assert judgement.sentence.startswith(told)


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
def test_a_sampler_that_varies_is_not_accused(second, drawn):
    """Its length has to hold without a fault, and for this epoch, and samples have to be fewer."""
    assert "survived" == _judged(LEFT, second, drawn=drawn).verdict


_KIB = 1024


def _outcome(**each_epoch):
    """One whose loader's process has so much more of something after each epoch."""
    prints = tuple(
        Footprint(epoch, "loader", **{**_nothing(), **_times(epoch, each_epoch)})
        for epoch in range(1, 33)
    )
    return dataclasses.replace(ordinary(Pass()), footprints=prints)


def _nothing():
    return dict.fromkeys(("memory", "descriptors", "threads", "pinned", "device"), 0)


def _times(epoch, each_epoch):
    return {name: epoch * count for name, count in each_epoch.items()}


@rows(
    ("each_epoch", "says"),
    [
        ({"memory": 70 * _KIB}, "takes 70 KiB more memory in the loader's process"),
        ({"pinned": 4 * _KIB}, "takes 4 KiB more pinned memory in the loader's process"),
        ({"device": 4 * _KIB}, "takes 4 KiB more memory of the accelerator in the loader's"),
        ({"threads": 1}, "leaves 1 more thread in the loader's process"),
        ({"threads": 2}, "leaves 2 more threads in the loader's process"),
        ({"descriptors": 1}, "leaves 1 more descriptor in the loader's process"),
        ({"pinned": 90 * _KIB, "memory": 90 * _KIB}, "90 KiB more pinned memory"),
    ],
)
def test_what_grows_is_told_by_its_name(each_epoch, says):
    """The most particular first: pinned memory may be counted as memory, too."""
    verdict, sentence, _ = judge_growth(_outcome(**each_epoch))

    assert (verdict, says in sentence) == ("leaked", True), sentence


@rows("each_epoch", [{"pinned": 1000}, {"device": 1000}, {"memory": 60 * _KIB}])
def test_less_than_that_is_not_told(each_epoch):
    """Below it a healthy process may lie."""
    assert judge_growth(_outcome(**each_epoch)) is None


@rows(
    ("each_epoch", "told"),
    [({"descriptors": 1}, "process (/data/a.rec)"), ({"threads": 1}, "process")],
)
def test_only_descriptors_have_an_example(each_epoch, told):
    """The file that was opened last is no thread."""
    outcome = _outcome(**each_epoch)
    prints = tuple(replace(one, newly_open="/data/a.rec") for one in outcome.footprints)

    assert judge_growth(replace(outcome, footprints=prints)).sentence.endswith(told)
