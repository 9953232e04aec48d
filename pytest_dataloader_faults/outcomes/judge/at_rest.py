"""What a dataset makes of files that were bad before it was made. Pure.

Some facts about a dataset that counts. Its constructor divides the size of a file by that of a
record, lists what it finds, or asks an index. Of a file that a download left half written it finds
half of the samples, and the loop over them comes to its end: torch asks the dataset how many there
are, and the dataset does not know better. If a file at the beginning is left out, all that follows
has other indices, too. So how many samples there are comes first, and which ones came for which
index says nothing where that number is another one.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

from pytest_dataloader_faults.faults import (
    CorruptedFile,
    Fault,
    OpenError,
    ReadError,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes.contract import Contract, Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.judge.samples import may_be_damaged
from pytest_dataloader_faults.outcomes.judge.streams import digests
from pytest_dataloader_faults.outcomes.records import FaultFacts, Pass, TrialFacts, makes_dataset
from pytest_dataloader_faults.outcomes.reference import Reference, is_resized
from pytest_dataloader_faults.outcomes.text import are, counted

_WORDS: dict[type[Fault], str] = {
    ReadError: "cannot be read",
    CorruptedFile: "has damaged bytes",
}
_MAPPED_BEYOND_END = (
    ". It accessed a mapped file beyond the end to which the file was cut off. Compare the size of"
    " a file with what it is to hold before mapping it"
)
_MAPPED_UNREADABLE = (
    ". It accessed a page of a mapped file that the disk could not deliver. The kernel has no error"
    " for that, but a signal (mmap(2)). A file that is read, and not mapped, gives an OSError"
)


def wrong_size(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding | None:
    """That a dataset of another length than the whole files have said nothing of it."""
    if outcome.exception is not None or not outcome.fired:
        return None
    if may_be_damaged(outcome, contract):
        return None
    length, whole = outcome.passes[0].length or 0, _total(reference)
    if length < whole and contract.may_skip:
        return _unknown_samples(outcome, reference)
    sentence = f"{samples_of_bad_files(outcome, reference)}, and no exception was raised"
    kind = Wrong.MISSING if length < whole else Wrong.UNKNOWN
    return Finding(Verdict.CORRUPTED, sentence, kind)


def samples_of_bad_files(outcome: TrialFacts, reference: Reference) -> str:
    """What is wrong with the files, and how many samples there are then."""
    return f"{_what_is_wrong(outcome)}; {_samples_there(outcome.passes[0], reference)}"


def _total(reference: Reference) -> int:
    assert reference.total is not None  # Or no length would be another one.
    return reference.total


def _samples_there(one: Pass, reference: Reference) -> str:
    """How many samples the dataset of *one* has, as a part of a sentence."""
    length, whole = one.length or 0, _total(reference)
    if length > whole:
        return f"{counted(length, 'sample')} {are(length)} there in place of {whole}"
    return f"{length} of {counted(whole, 'sample')} {are(length)} there"


def has_samples(one: Pass, reference: Reference) -> str:
    """The same, as what is said of the dataset."""
    length, whole = one.length or 0, _total(reference)
    if length > whole:
        return f"has {counted(length, 'sample')} in place of {whole}"
    return f"has {length} of {counted(whole, 'sample')}"


def _unknown_samples(outcome: TrialFacts, reference: Reference) -> Finding | None:
    """Samples that came, whatever their index, and are none of the whole dataset's."""
    if len(reference.samples) < _total(reference):  # Not all of them are known.
        return None
    known = Counter(digest for _, digest in reference.samples)
    came = Counter(digest for each in outcome.delivered for digest in digests(each))
    count = (came - known).total()
    if not count:
        return None
    what = f"{counted(count, 'sample')} {are(count)} none of those that the whole files have"
    sentence = f"{_what_is_wrong(outcome)}; {what}, and no exception was raised"
    return Finding(Verdict.CORRUPTED, sentence, Wrong.UNKNOWN)


def _what_is_wrong(outcome: TrialFacts) -> str:
    fired = next(each for each in outcome.faults if each.fired)
    return f"{_name_of_file(fired)} {_in_words(fired)}"


def _name_of_file(facts: FaultFacts) -> str:
    names = {os.path.basename(each.path) for each in facts.firings if each.path}
    return names.pop() if len(names) == 1 else "each file"


def _in_words(facts: FaultFacts) -> str:
    fault = facts.fault
    if isinstance(fault, TruncatedFile):
        return _how_short(fault.keep)
    if isinstance(fault, OpenError):
        return "is missing" if fault.hides_file else "cannot be opened"
    return _WORDS.get(type(fault), f"is under {type(fault).__name__}")


def _how_short(keep: float) -> str:
    if not keep:
        return "is empty"
    if isinstance(keep, int):
        return f"ends after {counted(keep, 'byte', ',')}"
    return f"has {100 * (1 - keep):.0f} % fewer bytes"


def skipped(outcome: TrialFacts, reference: Reference) -> int:
    """How many samples a dataset that was made of bad files does not have."""
    resized = (each for each in outcome.passes[:1] if is_resized(each, outcome, reference))
    return sum(_total(reference) - (each.length or 0) for each in resized)


def how_it_died(outcome: TrialFacts) -> str:
    """Why the loader's own process got SIGBUS, as the rest of a sentence; empty if it did not."""
    if not outcome.from_start or outcome.exitcode != -signal.SIGBUS:
        return ""
    fired = [each.fault for each in outcome.faults if each.fired]
    if any(isinstance(each, TruncatedFile) for each in fired):
        return _MAPPED_BEYOND_END
    return _MAPPED_UNREADABLE if any(isinstance(each, ReadError) for each in fired) else ""


def process_in_words(outcome: TrialFacts) -> str:
    """The process that died, by what it was doing."""
    if makes_dataset(outcome):
        return "the process that calls make_dataset()"
    return "the process that iterates the loader"
