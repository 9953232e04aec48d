"""What a dataset does wrong that gives wrong samples, and what mends it. Pure.

Some facts about what was caught. A file that is cut off and a read that is short raise no error of
their own: a reader may notice, and a dataset may catch what the reader raises. Or no code looks,
and what was in memory before comes as the rest of the sample, which may be the content of another
one. The samples are the same in both cases. But a dataset that catches the one error hardly ever
lets the other through. So the same files are tried once more, such that they cannot be opened: if
the same comes, an error was caught, and if not, a file was taken for whole.
"""

from __future__ import annotations

from pytest_dataloader_faults.faults import (
    CorruptedFile,
    Fault,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes._facts import TrialFacts, is_started_anew
from pytest_dataloader_faults.outcomes._judge._repeats import Trial
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._verdicts import Cause, Judgement, Wrong

_SAME_SHARDS = Cause(
    "each worker gives all samples (not split by get_worker_info())",
    "Each worker iterates over the whole stream. Let it take only its own part in __iter__, by"
    " info = torch.utils.data.get_worker_info(): shards[info.id :: info.num_workers]",
)
_IN_PLACE = "gives a sample in place of one that cannot be read"
_NEIGHBOUR = Cause(
    _IN_PLACE,
    "Another sample came in place of one that could not be read, without an error. Let the error"
    " reach the loader, or try the same file a few times and then raise. If it is meant, say"
    " Contract(may_substitute=True)",
)
_DUMMY = Cause(
    _IN_PLACE,
    "Zeros, or another sample that was made up, came in place of one that could not be read. Raise"
    " the error instead of catching it. If it is meant, say Contract(may_substitute=True)",
)
_OR_READER = (
    ". If nothing catches it, the reader does: np.fromfile and scipy.io.wavfile.read drop the error"
    " of a read, so read by open()"
)
_LOST = Cause(
    "leaves out samples without an error",
    "Raise the error instead of leaving out the sample. If it is meant, say"
    " Contract(may_skip=True)",
)
_SHORT_FILE = Cause(
    "accepts a truncated file",
    "Compare how many bytes or values came with how many a sample needs, and raise where there are"
    " fewer. If the reader raises for that, do not catch its error",
)
_SHORT_READ = Cause(
    "accepts a short read",
    "One read may return fewer bytes than it was asked for: read on until all are there, as a"
    " buffered open() does. If the reader raises for that, do not catch its error",
)
_DAMAGE = Cause("accepts damaged bytes", "Compare a checksum, and raise where it differs")
_OTHERS = Cause("workers give other samples than the main process")
_IMPORTS = (
    "A worker that is not forked imports the modules of the dataset again. It does not see what a"
    " test has changed in them, as monkeypatch does. Hand such values to the dataset, or, if your"
    " own loader forks its workers, pass loader={'multiprocessing_context': 'fork'}"
)
_ORDER_OF_SET = (
    "The order of a set of str differs in each interpreter (PYTHONHASHSEED), and a worker that is"
    " not forked is another one. Where indices follow that order, sort it"
)
_OTHERS_IF_NOT_FORKED = _OTHERS._replace(advice=f"{_IMPORTS}. {_ORDER_OF_SET}", overrides=True)
_UNORDERED = Cause("has another order of samples in each process", _ORDER_OF_SET, overrides=True)
_UNEVEN = Cause(
    "loses or repeats samples with another number of workers",
    "Split the stream by what get_worker_info() says, so that nothing is left over of a division:"
    " shards[info.id :: info.num_workers], and not len(shards) // info.num_workers for each. If the"
    " loop always has the same number of workers, exclude 'workers-agree': 'two-epochs' compares"
    " the samples of that number, too",
)
_USED_UP = Cause("has fewer samples in the second epoch")
_SAME_AGAIN = Cause("has the same random samples in each epoch")
_WITHOUT_FAULT = {Wrong.USED_UP: _USED_UP, Wrong.SAME_AGAIN: _SAME_AGAIN}
_WITHOUT_ERROR: tuple[tuple[type[Fault], Cause], ...] = (
    (TruncatedFile, _SHORT_FILE),
    (ShortRead, _SHORT_READ),
)
"""Faults after which no call fails, and what a dataset does that does not notice."""
_OF_ANOTHER = (Wrong.SUBSTITUTED, Wrong.REORDERED, Wrong.REPEATED)


def of_wrong_samples(
    outcome: TrialFacts, kind: Wrong | None, control: TrialFacts, *, is_caught: bool
) -> Cause:
    """What is likely to be wrong where samples are wrong in the way *kind*.

    *control*: an epoch without faults. *is_caught*: whether the dataset does the same after an
    error, which it must have caught.
    """
    if not outcome.fired:
        return _of_dataset_alone(outcome, kind, control)
    fault = next(each.fault for each in outcome.faults if each.fired)
    accepted = (cause for faults, cause in _WITHOUT_ERROR if isinstance(fault, faults))
    if not is_caught and (cause := next(accepted, None)):
        return cause
    if kind is Wrong.MISSING:
        return _LOST
    if isinstance(fault, CorruptedFile) and kind not in (*_OF_ANOTHER, Wrong.ALIKE):
        return _DAMAGE
    cause = _NEIGHBOUR if kind in _OF_ANOTHER else _DUMMY
    is_of_reads = isinstance(fault, ReadError)
    return cause._replace(advice=cause.advice + _OR_READER) if is_of_reads else cause


def _of_dataset_alone(outcome: TrialFacts, kind: Wrong | None, control: TrialFacts) -> Cause:
    if kind in _WITHOUT_FAULT:
        return _WITHOUT_FAULT[kind]
    if _count_workers(outcome) > _count_workers(control):
        return _UNEVEN
    if kind is Wrong.SAME_IN_EACH_WORKER or (outcome.kind == "iterable" and kind is Wrong.REPEATED):
        return _SAME_SHARDS
    if not is_started_anew(outcome):
        return _OTHERS
    return _UNORDERED if kind in _OF_ANOTHER else _OTHERS_IF_NOT_FORKED


def _count_workers(outcome: TrialFacts) -> int:
    return len({each.worker for each in outcome.workers})


def is_without_error(outcome: TrialFacts, judgement: Judgement) -> bool:
    """Whether samples are wrong after a fault that lets no call fail."""
    fired = [each.fault for each in outcome.faults if each.fired]
    kinds = tuple(kind for kind, _ in _WITHOUT_ERROR)
    return judgement.kind is not None and bool(fired) and isinstance(fired[0], kinds)


def is_alike(one: Trial, other: Trial, reference: Reference) -> bool:
    """Whether the dataset does the same in two trials: it loses samples, or gives the same ones.

    Which other sample of the dataset comes in place of one may be by chance.
    """
    kind = one.judgement.kind
    if kind in (*_OF_ANOTHER, Wrong.ALIKE, Wrong.MISSING) and kind is other.judgement.kind:
        return True
    known = {digest for _, digest in reference.samples}
    first, second = ({*_digests(each.outcome)} - known for each in (one, other))
    return not first.isdisjoint(second)


def _digests(outcome: TrialFacts) -> list[str]:
    return [digest for each in outcome.delivered for digest in each.rows or (each.digest,)]
