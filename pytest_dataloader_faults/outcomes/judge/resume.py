"""What a loader gives that goes on from a saved state, with what came before. Pure.

Some facts about what has to come. The part before the state and the part after it are one epoch
together. Which samples that epoch has, the process shows that saved the state, if it lived to the
end. Otherwise one shows it that did the same and was not killed; and where a sampler draws others
by chance, only how many there are. What is left may come in another order, since it may be shuffled
anew. But where a whole epoch has the same order with other random numbers, so does the rest.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.judge.streams import digests
from pytest_dataloader_faults.outcomes.records import Pass, TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import SavedState, Stage
from pytest_dataloader_faults.outcomes.text import counted, listed

CAUSES: dict[Wrong | None, Cause] = {
    Wrong.STATE_NOT_SAVED: Cause(
        "has a state that cannot be saved",
        "Return plain data from state_dict(): numbers, texts, tensors, and lists and dicts of them."
        " Leave out what is open, as files and generators, and make it anew in load_state_dict()",
    ),
    Wrong.STATE_NOT_LOADED: Cause(
        "cannot go on from its own state",
        "A new process has made the dataset anew, and then called load_state_dict(): it may use"
        " nothing that only iterating the dataset makes",
    ),
    Wrong.STATE_CHANGES: Cause(
        "gives out a state that goes on changing",
        "state_dict() returned what the loader goes on using. A checkpoint that is written in the"
        " background would hold a later state than the model's: return copy.deepcopy() of it",
    ),
    Wrong.STATE_GROWS: Cause(
        "has a state that grows with each batch",
        "Keep a position, as the number of samples or a place in a shard, and not what came",
    ),
    Wrong.BEGAN_ANEW: Cause(
        "begins the epoch anew when it is to go on",
        "What load_state_dict() sets has no effect on the next epoch. __iter__ may set it back, or"
        " the state may be that of the main process, while workers have copies of the dataset that"
        " count alone",
    ),
    Wrong.NEXT_EPOCH_BEGAN: Cause(
        "begins another epoch where the last batch was had",
        "A loop that saves after the last batch is still in that epoch, and goes on with it: it"
        " trains on one epoch more. Have the loader give nothing then, save after the epoch"
        " instead, or take the number of the epoch from the loader's state",
    ),
    Wrong.STATE_AHEAD: Cause(
        "saves a state that is ahead of the loop",
        "Workers make batches in advance. Count a batch where the loop gets it, or send the state"
        " of a worker with its batch, as torchdata's StatefulDataLoader does",
    ),
    Wrong.STATE_BEHIND: Cause(
        "saves a state that is behind the loop",
        "The state has to be that of the last sample that was given: where a stream reads shards,"
        " the shard and the place in it, in each worker",
    ),
    Wrong.ORDER_NOT_RESTORED: Cause(
        "does not restore its random order",
        "Save what the order comes from with the position: the state of the generator as the epoch"
        " began, or seed and epoch. torchdata's samplers do; torch's RandomSampler has no state",
    ),
    Wrong.NO_NEXT_EPOCH: Cause(
        "has no whole epoch after its end was restored",
        "Where state_dict() is called after the epoch, its state has to be that of the beginning of"
        " the next one. Have a loaded position hold for one epoch, and count anew in each",
    ),
}
_SHOWN = 5
_FEWEST_BATCHES = 8
_LEAST_GROWTH = 2
"""Bytes for each batch. A counter takes a byte more at 256, and none until 65,536."""
_STEPS_ALIKE = 2 / 3
"""So many of the batches may leave the size as it is."""


def judged(outcome: TrialFacts, reference: Reference) -> Finding | None:
    """What is wrong with the states of *outcome*, or with what came of them; None if nothing is."""
    return (
        _not_saved(outcome)
        or _not_asked(outcome)
        or next(_wrong_parts(outcome, reference), None)
        or _changes(outcome)
        or _grows(outcome)
    )


def _resumed(outcome: TrialFacts) -> list[SavedState]:
    """The states that new processes went on from."""
    return [each for each in outcome.states if each.resumed]


def latest(outcome: TrialFacts) -> str:
    """What the latest process went on from, as a sentence begins with it; "" if there is none."""
    states = _resumed(outcome) if outcome.phase.stage is Stage.RESUMED else []
    return f"{_begun(states[-1], outcome)}: " if states else ""


def survived(outcome: TrialFacts) -> str:
    """What to say where each state gave the rest."""
    states = _resumed(outcome)
    counts = [str(each.batches) for each in states if not each.at_end]
    last = counts.pop()
    first = f"{', '.join(counts)} and " if counts else ""
    end = " and after the epoch" if any(each.at_end for each in states) else ""
    batches = "batch" if not first and last == "1" else "batches"
    which = "each sample once" if outcome.comparison.is_of_content else "as many samples"
    after = f"after {first}{last} {batches}{end}"
    return f"{_again(outcome)} {after}, the loader gave the rest, {which}"


def _place(state: SavedState) -> str:
    return "after the epoch" if state.at_end else f"after {counted(state.batches, 'batch')}"


def _begun(state: SavedState, outcome: TrialFacts) -> str:
    whole = _epoch_of(outcome)
    place = _place(state)
    if not state.at_end and whole.complete:
        place = f"after {state.batches} of {counted(len(whole.delivered), 'batch')}"
    return f"{_again(outcome)} {place}"


def _again(outcome: TrialFacts) -> str:
    """How a sentence begins; it says if the loader's process was killed, and no worker."""
    was_killed = outcome.uninterrupted is not None and not outcome.deaths
    killed = "after its process was killed, " if was_killed else ""
    return f"{killed}begun again with its state"


def _not_saved(outcome: TrialFacts) -> Finding | None:
    failed = next((each for each in outcome.states if each.error), None)
    if failed is None:
        return None
    sentence = f"its state {_place(failed)} cannot be saved: {failed.error}"
    return Finding(Verdict.BROKEN, sentence, Wrong.STATE_NOT_SAVED)


def _wrong_parts(outcome: TrialFacts, reference: Reference) -> Iterator[Finding]:
    """What is wrong with the rest of the epoch after each state."""
    one, whole = outcome.passes[0] if outcome.passes else Pass(), _epoch_of(outcome)
    if not whole.complete:
        return
    states = list(zip(_resumed(outcome), outcome.resumed, strict=False))
    is_fixed = any(_keys(rest) == _keys(whole) for state, rest in states if state.at_end)
    for state, rest in states:
        found: Finding | None
        if rest.exception is not None:
            sentence = f"raised {error_line(rest.exception)}"
            found = Finding(Verdict.BROKEN, sentence, Wrong.STATE_NOT_LOADED)
        elif state.at_end:
            found = _next_epoch(_cut(rest, whole, reference), whole, outcome)
        else:
            parts = _Parts(one, state, rest, whole, reference)
            found = parts.wrong(is_fixed=is_fixed)
        if found is not None:
            sentence = f"{_begun(state, outcome)}, the loader {found.sentence}"
            yield found._replace(sentence=sentence)


def _epoch_of(outcome: TrialFacts) -> Pass:
    """The epoch whose parts are compared."""
    return outcome.uninterrupted or (outcome.passes[0] if outcome.passes else Pass())


def _keys(one: Pass) -> list[str]:
    """The samples that came; whole batches where those do not come apart."""
    return list(itertools.chain(*map(digests, one.delivered)))


def _next_epoch(came: list[str], whole: Pass, outcome: TrialFacts) -> Finding | None:
    """What is wrong with the epoch *came*, which is after the *whole* one."""
    keys = _keys(whole)
    may_differ = not outcome.comparison.is_of_content or _draws_others(whole, outcome)
    if len(came) == len(keys) and (may_differ or Counter(came) == Counter(keys)):
        return None
    has = counted(len(came), "sample") if came else "no sample"
    sentence = f"had a next epoch of {has}, and a whole one has {len(keys)}"
    if len(came) == len(keys):
        sentence = f"had other samples in the next epoch: {len(_more(came, keys))} of {len(keys)}"
    return Finding(Verdict.CORRUPTED, sentence, Wrong.NO_NEXT_EPOCH)


def _draws_others(whole: Pass, outcome: TrialFacts) -> bool:
    """Whether the sampler of a map-style dataset may draw other indices in each epoch."""
    drawn = [index for indices in whole.drawn for index in indices]
    return outcome.kind == "map" and not len(set(drawn)) == len(drawn) == whole.length


def _cut(rest: Pass, whole: Pass, reference: Reference, before: int = 0) -> list[str]:
    """The samples of *rest*, without those that are beyond the *whole* epoch, *before* it included.

    Of a dataset with many samples an epoch is the first batches of one. The part after a state may
    go on beyond these.
    """
    came, count = _keys(rest), len(_keys(whole))
    is_first = reference.kind == "map" and reference.limit is not None and count >= reference.limit
    return came[: max(0, count - before)] if is_first and whole.length != count else came


def _more(these: Sequence[str], those: Sequence[str]) -> list[str]:
    """What is in *these* more often than in *those*, in order."""
    left = Counter(these) - Counter(those)
    return list(left.elements())


class _Parts(NamedTuple):
    """An epoch in two parts: *one* up to *state*, and the *rest*, of a *whole* one."""

    one: Pass
    state: SavedState
    rest: Pass
    whole: Pass
    reference: Reference

    @property
    def before(self) -> list[str]:
        """What came before the state was taken."""
        return _keys(replace(self.one, delivered=self.one.delivered[: self.state.batches]))

    def wrong(self, *, is_fixed: bool) -> Finding | None:
        """What is wrong with both; *is_fixed*: whether the order has to be that of one epoch."""
        keys, before = _keys(self.whole), self.before
        came = [*before, *_cut(self.rest, self.whole, self.reference, len(before))]
        if not self._is_known:
            return self._wrong_count(len(came), len(keys))
        twice, never = _more(came, keys), _more(keys, came)
        if not never and len(self.before) == len(keys) and len(came) == 2 * len(keys):
            sentence = f"gave {counted(len(twice), 'sample')} more, a whole epoch"
            return Finding(Verdict.CORRUPTED, sentence, Wrong.NEXT_EPOCH_BEGAN)
        if twice or never:
            return self._wrong_samples(twice, never)
        if is_fixed and came != keys:
            sentence = "gave the rest in another order than without a break"
            return Finding(Verdict.CORRUPTED, sentence, Wrong.ORDER_NOT_RESTORED)
        return None

    @property
    def _is_known(self) -> bool:
        """Whether *whole* has the samples of *one*, by content: samplers may draw others."""
        is_part = not Counter(_keys(self.one)) - Counter(_keys(self.whole))
        return is_part and self.reference.comparison.is_of_content

    def _wrong_count(self, came: int, count: int) -> Finding | None:
        if came == count:
            return None
        sentence = f"gave {counted(came, 'sample')} in all, and an epoch has {count}"
        kind = Wrong.STATE_BEHIND if came > count else Wrong.STATE_AHEAD
        return Finding(Verdict.CORRUPTED, sentence, kind)

    def _wrong_samples(self, twice: list[str], never: list[str]) -> Finding:
        told = [f"gave {self._named(twice)} twice"] if twice else []
        told += [f"left out {self._named(never)}"] if never else []
        return Finding(Verdict.CORRUPTED, ", and ".join(told), self._kind(twice, never))

    def _named(self, keys: list[str]) -> str:
        """How many samples they are, and which, as far as they have names."""
        known = {digest: name for name, digest in reversed(self.reference.samples)}
        names = [known[each] for each in keys if each in known]
        if all(isinstance(each, int) for each in names):
            names.sort()
        what = "sample" if self.one.delivered[0].rows is not None else "batch"
        which = f" ({listed(names, _SHOWN)})" if names and what == "sample" else ""
        return f"{counted(len(keys), what)}{which}"

    def _kind(self, twice: list[str], never: list[str]) -> Wrong:
        """What the state has wrong, by which samples come twice and which never."""
        if not never:
            is_anew = Counter(twice) == Counter(self.before)
            return Wrong.BEGAN_ANEW if is_anew else Wrong.STATE_BEHIND
        return Wrong.ORDER_NOT_RESTORED if twice else Wrong.STATE_AHEAD


def _not_asked(outcome: TrialFacts) -> Finding | None:
    """What says nothing of a state, since no process went on from one, or none was killed."""
    if not outcome.states or (outcome.exception and not outcome.deaths):
        return None
    sentence = ""
    if not outcome.resumed:
        sentence = "no state was kept that a new process could go on from"
    elif outcome.uninterrupted and outcome.passes[0].complete:
        sentence = "the epoch was over before its process, or a worker of it, was killed"
    elif not _epoch_of(outcome).complete:
        sentence = "no epoch came to its end with which the parts could be compared"
    return Finding(Verdict.NOT_EXERCISED, sentence) if sentence else None


def _changes(outcome: TrialFacts) -> Finding | None:
    changed = next((each for each in outcome.states if each.changed), None)
    if changed is None:
        return None
    sentence = (
        f"the state that was taken {_place(changed)} changed while the next batch was made:"
        " state_dict() gives what the loader goes on using"
    )
    return Finding(Verdict.CORRUPTED, sentence, Wrong.STATE_CHANGES)


def _grows(outcome: TrialFacts) -> Finding | None:
    """A state that was larger after nearly each batch of the second half.

    In the first half each worker may have had its first batch, or a buffer may have been filled.
    """
    states = [each for each in outcome.states if not each.at_end]
    late = [each.size for each in states[len(states) // 2 :]]
    if len(states) < _FEWEST_BATCHES:
        return None
    steps = [later - earlier for earlier, later in itertools.pairwise(late)]
    alike = sum(each == 0 for each in steps)
    is_small = late[-1] - late[0] < _LEAST_GROWTH * len(steps)
    if min(steps) < 0 or alike > len(steps) * _STEPS_ALIKE or is_small:
        return None
    first, last = states[0], states[-1]
    sizes = [f"{counted(each.size, 'byte', ',')} {_place(each)}" for each in (first, last)]
    sentence = f"its state grows with each batch, from {sizes[0]} to {sizes[1]}"
    return Finding(Verdict.LEAKED, sentence, Wrong.STATE_GROWS)
