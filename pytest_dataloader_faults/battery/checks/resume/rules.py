"""The samples of a loader that resumes from a saved state, together with the earlier ones. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import Outcome, Pass
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import (
    ChangedState,
    LoadedState,
    Phase,
    SavedState,
    Stage,
)
from pytest_dataloader_faults.outcomes.text import join_some, pluralize

# Some facts about the expected samples. The part before the state and the part after it form one
# epoch. The process that saved the state shows which samples that epoch has, if it lived to the
# end. Otherwise, a process that did the same and was not killed shows it; if a sampler draws other
# samples at random, only their number is known. The rest may be delivered in a different order,
# because it may be shuffled again. But if a complete epoch keeps its order with other random
# numbers, so must the rest.


STATE_NOT_SAVED = Cause(
    "returns a state that cannot be saved",
    "Return plain data from state_dict(): numbers, strings, tensors, and lists and dicts of"
    " them. Leave out open resources, such as files and generators, and recreate them in"
    " load_state_dict()",
    fix="return plain data from state_dict()",
)
STATE_NOT_LOADED = Cause(
    "cannot resume from its own state",
    "A new process created the dataset and then called load_state_dict(), so that method must"
    " not rely on anything that only iterating creates",
    fix="use only what the constructor creates in load_state_dict()",
)
STATE_CHANGES = Cause(
    "returns a state that keeps changing",
    "state_dict() returned an object that the loader keeps using. A checkpoint written in the"
    " background would hold a later state than the model's: return copy.deepcopy() of it",
    fix="return copy.deepcopy() of the state",
)
STATE_GROWS = Cause(
    "returns a state that grows with every batch",
    "Store a position, such as a sample count or an offset in a shard, instead of the samples"
    " delivered so far",
    fix="store a position instead of samples",
)
RESTARTED = Cause(
    "restarts the epoch instead of resuming it",
    "The state that load_state_dict() sets has no effect on the next epoch. Either __iter__"
    " resets it, or it is the main process's state while each worker counts in its own copy of"
    " the dataset",
    fix="start __iter__ at the position that load_state_dict() set",
)
NEXT_EPOCH_BEGAN = Cause(
    "starts another epoch after the last batch",
    "A loop that saves after the last batch is still in that epoch and resumes it, so it would"
    " train for one epoch too many. Have the loader yield nothing then, save after the epoch"
    " instead, or take the epoch number from the loader's state",
    fix="deliver nothing when resumed after the last batch",
)
STATE_AHEAD = Cause(
    "saves a state that is ahead of the loop",
    "Workers prefetch batches. Count a batch when the loop receives it, or send a worker's"
    " state with its batch, as torchdata's StatefulDataLoader does",
    fix="count a batch when the loop receives it",
)
STATE_BEHIND = Cause(
    "saves a state that is behind the loop",
    "Save the state of the last sample delivered: for a sharded stream, the shard and"
    " the position in it, for each worker",
    fix="save the position of the last sample delivered",
)
ORDER_NOT_RESTORED = Cause(
    "does not restore its shuffled order",
    "Save the source of the order with the position: the generator's state at the start of the"
    " epoch, or the seed and the epoch. torchdata's samplers do; torch's RandomSampler has no"
    " state",
    fix="save the seed or the generator's state with the position",
)
NO_NEXT_EPOCH = Cause(
    "returns an incomplete epoch after a resumed one",
    "A state saved after the epoch must describe the start of the next one. Apply a restored"
    " position to one epoch only, and count from zero in the others",
    fix="apply a restored position to one epoch only",
)
POSITION_FROM_ZERO = Cause(
    "returns a wrong state after it has resumed",
    "A job may be stopped more than once. Start counting at the position that load_state_dict()"
    " restored, so that the state describes the position in the whole epoch. (torchdata's"
    " StatefulDataLoader cannot do that for a stream that has no state of its own: give the stream"
    " state_dict() and load_state_dict())",
    fix="start counting at the restored position",
)
OTHER_WORKERS = Cause(
    "resumes wrongly with another number of workers",
    "A stream is divided among its workers, so its batches are others if there are more or fewer."
    " Save num_workers with the state, and raise an error in load_state_dict() if it differs, as"
    " torchdata's StatefulDataLoader does",
    fix="raise an error in load_state_dict() if the number of workers differs",
)
_SHOWN = 5
_FEWEST_BATCHES = 8
_LEAST_GROWTH = 2
"""Bytes per batch. A counter grows by one byte at 256, and by the next one at 65,536."""
_CONSTANT_STEPS = 2 / 3
"""The share of batches that may leave the size unchanged."""


def find_violation(outcome: Outcome, reference: Reference) -> Finding | None:
    """What is wrong with the states of *outcome*, or with the epochs resumed from them, or None."""
    return (
        _find_unsaved_state(outcome)
        or _find_missing_evidence(outcome)
        or next(_find_wrong_epochs(outcome, reference), None)
        or _find_changed_state(outcome)
        or _find_growth(outcome)
    )


def describe(outcome: Outcome, finding: Finding) -> str:
    """The sentence of *finding*, with the states that new processes resumed from."""
    resumptions = _resumptions(outcome)
    if resumptions and outcome.phase.stage is Stage.RESUMED:
        return f"{_describe_resumption(resumptions[-1], outcome)}: {finding.sentence}"
    if not (resumptions and finding.passed):
        return finding.sentence
    count = sum(not each.more_workers for each in resumptions)
    states = _resumed_from(pluralize(count, "state"), outcome)
    samples = "as many as expected" if outcome.comparison.by_form else "each exactly once"
    return f"{states}, the loader delivered the remaining samples, {samples}"


class _Resumption(NamedTuple):
    """A new process that resumed from *state*.

    *origin* is the resumed process that had saved it, or None if the first process had. *epoch* is
    what it delivered, or None if it did not come to an end. *more_workers*: it has one more.
    """

    state: SavedState
    origin: _Resumption | None
    epoch: Pass | None
    more_workers: bool


def _resumptions(outcome: Outcome) -> list[_Resumption]:
    """The new processes, in order. The notes of a process follow the state that it loaded."""
    saved: list[tuple[SavedState, _Resumption | None]] = []
    resumptions: list[_Resumption] = []
    passes = iter(outcome.passes_in(Stage.RESUMED))
    for note in outcome.notes:
        if isinstance(note, SavedState):
            saved.append((note, resumptions[-1] if resumptions else None))
        elif isinstance(note, LoadedState):
            epoch = next(passes, None)
            resumptions.append(_Resumption(*saved[note.number], epoch, note.more_workers))
    return resumptions


def _place(state: SavedState) -> str:
    return "after the epoch" if state.at_end else f"after {pluralize(state.batches, 'batch')}"


def _describe_resumption(resumption: _Resumption, outcome: Outcome) -> str:
    state, origin = resumption.state, resumption.origin
    if origin is not None:
        later = pluralize(state.batches, "batch")
        return f"{_describe_resumption(origin, outcome)} and again {later} later"
    epoch = _compared_epoch(outcome)
    place = _place(state)
    if not state.at_end and epoch.complete:
        place = f"after {state.batches} of {pluralize(len(epoch.delivered), 'batch')}"
    workers = " with one more worker" if resumption.more_workers else ""
    return _resumed_from(f"its state {place}{workers}", outcome)


def _resumed_from(states: str, outcome: Outcome) -> str:
    """The start of a sentence about these *states*, which mentions a killed process."""
    killed = " (its process was killed)" if outcome.passes_in(Stage.UNINTERRUPTED) else ""
    return f"resumed from {states}{killed}"


def _find_unsaved_state(outcome: Outcome) -> Finding | None:
    failed = next((each for each in outcome.of(SavedState) if each.error), None)
    if failed is None:
        return None
    sentence = f"the loader's state {_place(failed)} cannot be saved: {failed.error}"
    return Finding(Verdict.FAILS_WITHOUT_FAULT, sentence, STATE_NOT_SAVED)


def _find_wrong_epochs(outcome: Outcome, reference: Reference) -> Iterator[Finding]:
    """What is wrong with the rest of the epoch after each state."""
    epoch = _compared_epoch(outcome)
    resumptions = _resumptions(outcome) if epoch.complete else []
    keeps_order = any(
        each.state.at_end and each.epoch is not None and _keys(each.epoch) == _keys(epoch)
        for each in resumptions
    )
    for resumption in resumptions:
        finding = _find_mistake(resumption, outcome, reference, keeps_order=keeps_order)
        if finding is not None:
            sentence = f"{_describe_resumption(resumption, outcome)}, the loader {finding.sentence}"
            yield replace(finding, sentence=sentence)


def _find_mistake(
    resumption: _Resumption, outcome: Outcome, reference: Reference, *, keeps_order: bool
) -> Finding | None:
    """What is wrong with the epoch of *resumption*, or None, also if it did not end."""
    state, origin, resumed, more_workers = resumption
    if resumed is None or (more_workers and resumed.exception):
        return None
    if resumed.exception is not None:
        sentence = f"raised {error_line(resumed.exception)}"
        cause = POSITION_FROM_ZERO if origin else STATE_NOT_LOADED
        return Finding(Verdict.FAILS_WITHOUT_FAULT, sentence, cause)
    if origin is None:
        interrupted, epoch = _first_epoch(outcome), _compared_epoch(outcome)
    elif origin.epoch is not None:
        # That process went on after it had saved the state, to the end of its epoch.
        interrupted = epoch = origin.epoch
    else:
        return None
    if state.at_end:
        epoch = _compared_epoch(outcome)
        rest = _limit_to_epoch(resumed, epoch, reference)
        return _check_next_epoch(rest, epoch, outcome)
    parts = _Parts(interrupted, state, resumed, epoch, reference)
    finding = parts.find_mistake(keeps_order=keeps_order and not more_workers)
    cause = OTHER_WORKERS if more_workers else POSITION_FROM_ZERO
    return replace(finding, cause=cause) if finding and (origin or more_workers) else finding


def _compared_epoch(outcome: Outcome) -> Pass:
    """The complete epoch that the parts are compared with."""
    return next(iter(outcome.passes_in(Stage.UNINTERRUPTED)), _first_epoch(outcome))


def _first_epoch(outcome: Outcome) -> Pass:
    return next(iter(outcome.epochs), Pass(Phase(Stage.EPOCH, 1)))


def _keys(epoch: Pass) -> list[str]:
    """The delivered samples; batches if these cannot be split."""
    return list(itertools.chain.from_iterable(each.digests for each in epoch.delivered))


def _check_next_epoch(samples: list[str], epoch: Pass, outcome: Outcome) -> Finding | None:
    """What is wrong with the *samples* of the next epoch, after the complete *epoch*."""
    keys = _keys(epoch)
    may_differ = outcome.comparison.by_form or _draws_new_indices(epoch, outcome)
    if len(samples) == len(keys) and (may_differ or Counter(samples) == Counter(keys)):
        return None
    has = pluralize(len(samples), "sample") if samples else "no samples"
    sentence = f"delivered {has} instead of {len(keys)} in the next epoch"
    if len(samples) == len(keys):
        wrong = len(_surplus(samples, keys))
        sentence = f"delivered different samples in the next epoch: {wrong} of {len(keys)}"
    return Finding(Verdict.CORRUPTED, sentence, NO_NEXT_EPOCH)


def _draws_new_indices(epoch: Pass, outcome: Outcome) -> bool:
    """Whether the sampler of a map-style dataset may draw different indices in each epoch."""
    drawn = [index for indices in epoch.drawn for index in indices]
    return outcome.kind == "map" and not len(set(drawn)) == len(drawn) == epoch.length


def _limit_to_epoch(
    resumed: Pass, uninterrupted: Pass, reference: Reference, delivered: int = 0
) -> list[str]:
    """The samples of *resumed* that belong to the epoch, of which *delivered* came before.

    For a dataset with many samples, an epoch is limited to the first batches. The part after a
    state may continue beyond these.
    """
    samples, count = _keys(resumed), len(_keys(uninterrupted))
    is_limited = reference.kind == "map" and reference.limit is not None
    if is_limited and count >= (reference.limit or 0) and uninterrupted.length != count:
        return samples[: max(0, count - delivered)]
    return samples


def _surplus(samples: Sequence[str], expected: Sequence[str]) -> list[str]:
    """The keys that are in *samples* more often than in *expected*, in order."""
    surplus = Counter(samples) - Counter(expected)
    return list(surplus.elements())


class _Parts(NamedTuple):
    """An epoch in two parts, *interrupted* at *state* and *resumed*, and an *uninterrupted* one."""

    interrupted: Pass
    state: SavedState
    resumed: Pass
    uninterrupted: Pass
    reference: Reference

    def find_mistake(self, *, keeps_order: bool) -> Finding | None:
        """What is wrong with the parts; *keeps_order*: whether the order must be the same."""
        expected = _keys(self.uninterrupted)
        batches = self.interrupted.delivered[: self.state.batches]
        saved = _keys(replace(self.interrupted, delivered=batches))
        rest = _limit_to_epoch(self.resumed, self.uninterrupted, self.reference, len(saved))
        samples, count = [*saved, *rest], len(expected)
        repeated, skipped = _surplus(samples, expected), _surplus(expected, samples)
        is_known = not _surplus(_keys(self.interrupted), expected)  # Samplers may draw others.
        if self.reference.comparison.by_form or not is_known:
            sentence = f"delivered {pluralize(len(samples), 'sample')} in total, but an epoch has"
            cause = STATE_BEHIND if len(samples) > count else STATE_AHEAD
            is_wrong = len(samples) != count
            return Finding(Verdict.CORRUPTED, f"{sentence} {count}", cause) if is_wrong else None
        if not skipped and len(saved) == count and len(samples) == 2 * count:
            sentence = f"delivered {pluralize(len(repeated), 'more sample')}, a whole extra epoch"
            return Finding(Verdict.CORRUPTED, sentence, NEXT_EPOCH_BEGAN)
        if repeated or skipped:
            mistakes = {"repeated": repeated, "skipped": skipped}
            sentence = " and ".join(
                f"{verb} {self._name_samples(keys)}" for verb, keys in mistakes.items() if keys
            )
            cause = ORDER_NOT_RESTORED if repeated else STATE_AHEAD
            if not skipped:
                cause = RESTARTED if Counter(repeated) == Counter(saved) else STATE_BEHIND
            return Finding(Verdict.CORRUPTED, sentence, cause)
        if keeps_order and samples != expected:
            sentence = "delivered the rest in a different order than an uninterrupted epoch"
            return Finding(Verdict.CORRUPTED, sentence, ORDER_NOT_RESTORED)
        return None

    def _name_samples(self, keys: list[str]) -> str:
        """How many samples they are, and their names, if they have any."""
        names_by_digest = {sample.digest: name for name, sample in reversed(self.reference.samples)}
        names = [names_by_digest[each] for each in keys if each in names_by_digest]
        if all(isinstance(each, int) for each in names):
            names.sort()
        noun = "batch" if self.interrupted.delivered[0].is_whole else "sample"
        examples = f" ({join_some(names, _SHOWN)})" if names and noun == "sample" else ""
        return f"{pluralize(len(keys), noun)}{examples}"


def _find_missing_evidence(outcome: Outcome) -> Finding | None:
    """A trial in which no process resumed from a state, or none was killed."""
    if not outcome.of(SavedState) or outcome.exception:
        return None
    was_interrupted = not (outcome.passes_in(Stage.UNINTERRUPTED) and outcome.epochs[0].complete)
    if was_interrupted and outcome.passes_in(Stage.RESUMED) and _compared_epoch(outcome).complete:
        return None
    sentence = "no epoch was interrupted, resumed, and compared with a complete one"
    return Finding(Verdict.NOT_EXERCISED, sentence)


def _find_changed_state(outcome: Outcome) -> Finding | None:
    notes = [each for each in outcome.notes if isinstance(each, (SavedState, ChangedState))]
    for state, following in itertools.pairwise(notes):
        if isinstance(state, SavedState) and isinstance(following, ChangedState):
            sentence = (
                f"the state taken {_place(state)} changed while the next batch was made:"
                " state_dict() returns an object that the loader keeps using"
            )
            return Finding(Verdict.CORRUPTED, sentence, STATE_CHANGES)
    return None


def _find_growth(outcome: Outcome) -> Finding | None:
    """A state that grew after nearly every batch of the second half.

    In the first half, a worker may have had its first batch, or a buffer may have been filled.
    """
    first = itertools.takewhile(lambda note: not isinstance(note, LoadedState), outcome.notes)
    states = [each for each in first if isinstance(each, SavedState) and not each.at_end]
    late = [each.size for each in states[len(states) // 2 :]]
    if len(states) < _FEWEST_BATCHES:
        return None
    steps = [later - earlier for earlier, later in itertools.pairwise(late)]
    constant = sum(step == 0 for step in steps)
    is_small = late[-1] - late[0] < _LEAST_GROWTH * len(steps)
    if min(steps) < 0 or constant > len(steps) * _CONSTANT_STEPS or is_small:
        return None
    ends = states[0], states[-1]
    sizes = [f"{pluralize(state.size, 'byte', ',')} {_place(state)}" for state in ends]
    sentence = f"the loader's state grows with every batch, from {sizes[0]} to {sizes[1]}"
    return Finding(Verdict.LEAKED, sentence, STATE_GROWS)
