"""The judge: facts in, verdict out. Pure.

The rules are asked in order of gravity and the first that objects decides. A fault that did not
fire excuses nothing that was seen to go wrong; but without a fault that fired, nothing good was
shown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pytest_dataloader_faults._clarity import messages, names, tells
from pytest_dataloader_faults.outcomes import Delivery, Outcome, Pass, Reference, Resources
from pytest_dataloader_faults.verdicts import Contract, Verdict

_SHOWN = 5
_HARMLESS = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")


@dataclass(frozen=True)
class Judgement:
    """A verdict, the sentence that says why, and whether the contract allows it."""

    verdict: Verdict
    sentence: str
    passed: bool


def judge(outcome: Outcome, reference: Reference, contract: Contract) -> Judgement:
    """The verdict on *outcome*, given what the dataset gives when nothing is wrong.

    Raises:
        ValueError: The reference does not know a batch that was delivered.

    """
    if lacking := reference.lacks(outcome):
        message = f"the reference does not know batch {list(lacking[0])}: take it of these indices"
        raise ValueError(message)
    verdict, sentence = _verdict(outcome, reference, contract)
    may_fail = outcome.schedule and not contract.survives
    accepted = (Verdict.SURVIVED, Verdict.FAILED_CLEANLY) if may_fail else (Verdict.SURVIVED,)
    return Judgement(verdict, sentence, verdict in accepted)


def _verdict(outcome: Outcome, reference: Reference, contract: Contract) -> tuple[Verdict, str]:
    found = (
        _hung(outcome)
        or _crashed(outcome)
        or _corrupted(outcome, reference)
        or _unclear(outcome, contract)
        or _leaked(outcome)
        or _poisoned(outcome, reference)
    )
    if found:
        return found
    if outcome.schedule and not outcome.fired:
        return Verdict.NOT_EXERCISED, "no fault fired, so nothing was shown"
    if outcome.exception is None:
        return Verdict.SURVIVED, "every sample came and was right"
    kind = outcome.exception.type
    if not outcome.schedule:
        return Verdict.FAILED_CLEANLY, f"{kind} came although there was no fault"
    return Verdict.FAILED_CLEANLY, f"{kind} came in time, told its cause, and left nothing behind"


def _hung(outcome: Outcome) -> tuple[Verdict, str] | None:
    if not outcome.timed_out:
        return None
    if outcome.phase == "recovery":
        after = "although the fault was gone, a fresh pass over the same dataset object hung"
        return Verdict.POISONED, f"{after} for {outcome.deadline:g} s"
    return Verdict.HUNG, f"neither an error nor an end within {outcome.deadline:g} s"


def _crashed(outcome: Outcome) -> tuple[Verdict, str] | None:
    if outcome.died is None and outcome.phase == "done":
        return None
    how = outcome.died or f"it ended in phase {outcome.phase!r}, without a word"
    return Verdict.CRASHED, f"the process that drives the loader died: {how}"


def _corrupted(outcome: Outcome, reference: Reference) -> tuple[Verdict, str] | None:
    for number, one in enumerate(outcome.passes, start=1):
        wrong = _wrong(one, reference)
        if wrong:
            where = f" in epoch {number}" if len(outcome.passes) > 1 else ""
            return Verdict.CORRUPTED, f"{wrong}{where}, and no error came before it"
    return None


def _wrong(one: Pass, reference: Reference) -> str | None:
    """What is not as it should be in the batches of *one*, or None."""
    if reference.kind == "iterable":
        return _wrong_in_stream(one, reference)
    return _wrong_batch(one, reference) or _missing(one)


def _wrong_batch(one: Pass, reference: Reference) -> str | None:
    samples, batches = dict(reference.samples), dict(reference.batches)
    owners = {digest: index for index, digest in reference.samples}
    for place, delivery in enumerate(one.delivered):
        indices = delivery.indices or ()
        if delivery.rows is not None and samples:
            for index, digest in zip(indices, delivery.rows, strict=False):
                if samples[index] != digest:
                    return f"sample {index!r} in batch {place} {_instead(digest, owners)}"
        elif samples or batches[indices] != delivery.digest:
            return _wrong_size(delivery, place, indices)
    return None


def _wrong_size(delivery: Delivery, place: int, indices: tuple[object, ...]) -> str:
    if delivery.rows is None:
        return f"batch {place} does not hold the samples {list(indices)} that were asked for"
    return f"batch {place} has wrong content"


def _instead(digest: str, owners: dict[str, object]) -> str:
    if digest in owners:
        return f"holds the content of sample {owners[digest]!r}"
    return "has wrong content"


def _missing(one: Pass) -> str | None:
    if not one.complete:
        return None
    asked = Counter(index for indices in one.drawn for index in indices)
    came = Counter(index for each in one.delivered for index in each.indices or ())
    missing = list((asked - came).elements())
    return f"{len(missing)} samples never came ({_first(missing)})" if missing else None


def _wrong_in_stream(one: Pass, reference: Reference) -> str | None:
    known = Counter(digest for _, digest in reference.samples)
    came = Counter(digest for each in one.delivered for digest in each.rows or (each.digest,))
    extra, missing = came - known, known - came
    if repeated := sum(count for digest, count in extra.items() if digest in known):
        return f"{repeated} samples came more often than they should"
    if extra:
        return f"{sum(extra.values())} samples have wrong content"
    if one.complete and missing:
        return f"{sum(missing.values())} of {sum(known.values())} samples never came"
    return None


def _first(items: list[object]) -> str:
    shown = ", ".join(map(repr, items[:_SHOWN]))
    return f"{shown}, ..." if len(items) > _SHOWN else shown


def _unclear(outcome: Outcome, contract: Contract) -> tuple[Verdict, str] | None:
    raised = outcome.exception
    if raised is None or not outcome.fired:
        return None
    fired = [(each.fault, one) for each in outcome.faults for one in each.firings]
    if not any(tells(raised.text, fault, one.path, one.call) for fault, one in fired):
        kinds = ", ".join(sorted({type(fault).__name__ for fault, _ in fired}))
        return Verdict.FAILED_UNCLEARLY, f"{raised.type} hides that its cause is {kinds}"
    paths = [one.path for _, one in fired if one.path]
    said = messages(raised.text)
    if contract.names_file and paths and not any(names(said, path) for path in paths):
        return Verdict.FAILED_UNCLEARLY, f"{raised.type} does not name the file, as promised"
    return None


def _leaked(outcome: Outcome) -> tuple[Verdict, str] | None:
    moments = {each.when: each for each in outcome.resources}
    for when in ("after", "recovery"):
        if left := _new_processes(moments.get("before"), moments.get(when)):
            command = next(iter(left.values()))
            return Verdict.LEAKED, f"{len(left)} processes were left running ({command})"
    if "after" in moments and "recovery" in moments:
        grown = _new_files(moments["after"], moments["recovery"])
        if grown:
            sentence = f"{sum(grown.values())} descriptors more are open after another pass"
            return Verdict.LEAKED, f"{sentence} ({next(iter(grown))})"
    return None


def _new_processes(before: Resources | None, after: Resources | None) -> dict[str, str]:
    if before is None or after is None:
        return {}
    return {pid: what for pid, what in after.processes.items() if pid not in before.processes}


def _new_files(before: Resources, after: Resources) -> Counter[str]:
    """Data files that are open more often than before."""
    counts = [Counter(moment.descriptors.values()) for moment in (after, before)]
    grown = counts[0] - counts[1]
    return Counter({path: n for path, n in grown.items() if not path.startswith(_HARMLESS)})


def _poisoned(outcome: Outcome, reference: Reference) -> tuple[Verdict, str] | None:
    recovery = outcome.recovery
    if recovery is None:
        return None
    after = "although the fault was gone, a fresh pass over the same dataset object"
    if recovery.exception is not None:
        kind, message = recovery.exception.type, messages(recovery.exception.message)
        return Verdict.POISONED, f"{after} raised {kind}: {message[-200:]}"
    wrong = _wrong(recovery, reference)
    return (Verdict.POISONED, f"{after} was not right: {wrong}") if wrong else None
