"""An epoch whose sampler drew too few samples is told from one of a sampler that varies."""

from __future__ import annotations

from dataclasses import replace

from pytest_dataloader_faults.outcomes import Pass
from pytest_dataloader_faults.outcomes.contract import Wrong
from support.facts import delivery, map_reference, ordinary, raised
from support.rows import rows

WHOLE, REST = ((0, 1), (2, 3)), ((2, 3),)
LEFT = Pass(WHOLE, batches=2)
FAILED = Pass(WHOLE, exception=raised("OSError", "no"), batches=2)


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
        ((FAILED, _pass(REST)), Wrong.RESUMED, "in epoch 2, after one that an error ended, the sa"),
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
