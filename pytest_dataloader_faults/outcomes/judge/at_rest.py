"""How a dataset handles files that were damaged before it was created. Pure."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import replace

from pytest_dataloader_faults.faults import (
    CorruptedFile,
    Fault,
    ListingError,
    OpenError,
    ReadError,
    StrayEntry,
    TruncatedFile,
)
from pytest_dataloader_faults.faults.base import LISTING, Place
from pytest_dataloader_faults.outcomes.contract import SKIPS, Cause, Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.judge.compare import Allowed, count_missing, may_be_damaged
from pytest_dataloader_faults.outcomes.judge.rules import Judge, not_promised
from pytest_dataloader_faults.outcomes.records import Outcome, Pass
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import JobKilled
from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize
from pytest_dataloader_faults.wire import FaultFacts

# Some facts about a dataset that counts. Its constructor divides the size of a file by that of a
# record, lists files, or reads an index. In a half-downloaded file it finds half of the samples,
# and the loop over them ends normally, because torch relies on the dataset's length. If an early
# file is skipped, all later samples have different indices. So the number of samples is compared
# first, and if it differs, the samples at each index are not compared.


_DESCRIPTIONS: dict[type[Fault], str] = {
    OpenError: "cannot be opened",
    ReadError: "cannot be read",
    CorruptedFile: "has damaged bytes",
    ListingError: "cannot be listed",
    StrayEntry: "was added to its folder",
}
_USE_COPY = (
    "pass copy=FOLDER to the check: each trial then copies FOLDER before the fault is injected, and"
    " passes the copy to make_dataset"
)
NOT_TWICE = Cause(
    "cannot be created twice in the same folder",
    "The recovery pass calls make_dataset again with the trial's folder, so make_dataset must"
    f" accept the files that are already there. If it copies the data into the folder, {_USE_COPY}",
    fix="accept existing files in the folder, or pass copy=FOLDER to the check",
)
LEFT_BY_KILLED = Cause(
    "does not start after a job that was killed",
    "Nothing that runs when a process ends runs after SIGKILL, so shared memory of a fixed name,"
    " lock files and sockets stay. Add os.getpid() or a random part to the name, lock with"
    " fcntl.flock(), which the kernel releases, and remove what is there before you create a"
    " socket",
    fix="remove or ignore what an earlier job has left, or give it a name of its own",
)
DAMAGED_CACHE = Cause(
    "keeps an index or a cache built from damaged files",
    "A later run trusted an index or a cache that was built from damaged files. Check that the"
    " source is intact before you write anything derived from it, write to a temporary name in the"
    " same folder, and rename it with os.replace(). Store the size and mtime of the source with it,"
    " and compare them in every run",
    fix="check the source before you build a cache from it, and rename the cache with os.replace()",
)
COPIED = Cause(
    "copies damaged files in make_dataset",
    "make_dataset copied the files while the fault was active, so the copy itself is damaged."
    f" Instead of copying in make_dataset, {_USE_COPY}",
    fix="pass copy=FOLDER to the check",
)
LISTS_FILES = Cause(
    SKIPS,
    "The dataset lists its files, and a listing does not show that a file is missing. Compare the"
    " number of files with a count that you store elsewhere, and raise an error if they differ",
    fix="compare the number of files with a count that you store elsewhere",
)
LOSES_OTHERS = Cause(
    SKIPS,
    "A file is missing, and the dataset also leaves out samples of other files, without an error."
    " Raise an error that names the file that a group of files lacks. If skipping is intentional,"
    " declare Contract(may_skip=True)",
    fix="raise an error if a group of files is incomplete",
)
PAIRS_BY_PLACE = Cause(
    SKIPS,
    "The dataset lists its files, and a listing does not show that a file is missing, so all later"
    " files move up by one place, and no longer belong to the same index or to the files of another"
    " list. Pair files by name, compare their number with a count that you store elsewhere, and"
    " raise an error if they differ",
    fix="pair files by name, and compare their number with a count that you store elsewhere",
)
SKIPS_MISSING = Cause(
    SKIPS,
    "The dataset leaves out files that do not exist. Raise FileNotFoundError instead, with the path"
    " of the file. If skipping is intentional, declare Contract(may_skip=True)",
    fix="raise FileNotFoundError for a file that does not exist",
)

LEAVES_OUT_FOLDER = Cause(
    "leaves out a folder that it cannot list",
    "A folder could not be listed, and os.walk(), glob.glob() and Path.glob() ignore that error."
    " List each folder with os.listdir(), or pass os.walk() a function onerror that raises the"
    " error",
    fix="list each folder with os.listdir(), or pass os.walk() an onerror that raises",
)


_IN_PASSING = Place.WRITE | Place.CONNECT | Place.ANSWER


def happens_in_passing(fault: Fault) -> bool:
    """Whether *fault* leaves the files as they are, except for those that the dataset writes."""
    return bool(fault.places & _IN_PASSING)


class AtRestJudge(Judge):
    """The rules for a dataset that was created under faults, and again in the recovery pass."""

    def judge(self) -> Finding:
        """The verdict, with a cause that only a dataset has which is created under faults."""
        finding = super().judge()
        cause = finding.cause
        if finding.verdict is Verdict.POISONED:
            if self.outcome.of(JobKilled):
                return replace(finding, cause=cause or LEFT_BY_KILLED)
            if not self.outcome.schedule:
                return Finding(Verdict.FAILS_WITHOUT_FAULT, finding.sentence, NOT_TWICE)
            is_in_passing = any(map(happens_in_passing, self.outcome.fired_faults))
            cause = cause or (None if is_in_passing else DAMAGED_CACHE)
        if finding.verdict is Verdict.CORRUPTED and self.outcome.has_fired(ListingError):
            cause = cause or LEAVES_OUT_FOLDER
        if finding.verdict is Verdict.CORRUPTED and hiding_calls(self.outcome):
            cause = cause or self._cause_of_loss(finding.wrong)
        return replace(finding, cause=cause)

    def _cause_of_loss(self, wrong: Wrong | None) -> Cause | None:
        """Why samples are *wrong* while a file is missing."""
        hiding = (each for each in self.outcome.faults if each.fault.hides_file)
        by_main = any(firing.worker is None for each in hiding for firing in each.firings)
        if wrong is not Wrong.MISSING:
            # A list of all files lacked it, not one of a single sample.
            is_of_all = is_unlisted(self.outcome) and (by_main or self.outcome.kind == "iterable")
            return PAIRS_BY_PLACE if is_of_all else None
        if is_unlisted(self.outcome) and self._loses_others:
            return LOSES_OTHERS
        return LISTS_FILES if LISTING in hiding_calls(self.outcome) else SKIPS_MISSING

    @property
    def _may_be_shorter(self) -> bool:
        """Whether samples may be missing because their file is, which nothing asked for by name."""
        may_miss = is_unlisted(self.outcome) and not self.contract.detects_missing_files
        return may_miss and not self._loses_others

    @property
    def _loses_others(self) -> bool:
        """Whether more samples are missing than can be those of one file.

        If there are not more samples than files, no more of them need a file than times it is
        opened.
        """
        suffixes = {_suffix(path) for facts in self.outcome.faults for path in _paths_of(facts)}
        opens: Counter[str] = Counter()
        for process in self.outcome.processes:
            for path, counts in process.files.items():
                if _suffix(path) in suffixes:
                    opens[path] += counts.opens if process.worker is not None else 0
        samples = self.outcome.epochs[0].sample_count
        return samples <= len(opens) and self._count_lacking() > max(opens.values(), default=1)

    @property
    def _has_resized_epoch(self) -> bool:
        return any(is_resized(each, self.reference) for each in self.outcome.epochs)

    def count_skipped(self) -> int:
        """The same, with the samples that the dataset lacks because a file does."""
        return super().count_skipped() + count_lacking(self.outcome, self.reference)

    def _count_lacking(self) -> int:
        """How many samples are missing, of a dataset with or without a length."""
        if self.reference.kind == "map":
            return count_lacking(self.outcome, self.reference)
        return max(0, count_missing(self.outcome.epochs[0], self.reference))

    def describe_tolerated(self) -> str:
        """The same, or how many samples the dataset has."""
        if self._may_be_shorter and (count := self._count_lacking()):
            loss = f"{_describe_files(self.outcome)}, and {pluralize(count, 'sample')} with it"
            is_stream = self.reference.kind == "iterable"
            is_compared = is_stream or self.reference.displaced or self._knows_all_samples
            others = "" if is_compared else "; the others could not be compared"
            return not_promised(loss + others, "missing_files")
        if self.outcome.fired and self._has_resized_epoch:
            return not_promised(self._describe_damage())
        return super().describe_tolerated()

    def find_unclear_error(self) -> Finding | None:
        """An unclear error, unless it is about what a listing lacks: no error can name that."""
        promises = self.contract.detects_missing_files or self.contract.names_file
        lacks_entries = is_unlisted(self.outcome) or self.outcome.has_fired(ListingError)
        is_unknown = lacks_entries and not promises
        return None if is_unknown else super().find_unclear_error()

    def find_corruption(self) -> Finding | None:
        """The same, or a dataset of another length that was created without an error."""
        if not (self.outcome.schedule and self._has_resized_epoch):
            finding = None if self._rejects_entry else super().find_corruption()
            is_loss = finding is not None and finding.wrong is Wrong.MISSING
            is_stream = self.reference.kind == "iterable"
            return None if is_loss and is_stream and self._may_be_shorter else finding
        outcome, contract = self.outcome, self.contract
        is_empty = outcome.has_fired(ListingError) and not outcome.delivered
        is_known = outcome.exception or may_be_damaged(outcome, contract)
        if is_empty or is_known or not outcome.fired:  # Training on nothing is noticed.
            return None
        is_shorter = bool(count_lacking(outcome, self.reference))
        # A longer one may have skipped what does not belong to it.
        if contract.may_skip and (is_shorter or has_full_reference(self.reference)):
            return self._find_unknown_samples()
        if LISTING in hiding_calls(outcome) and (finding := self._find_unknown_samples()):
            return finding
        if is_shorter and self._may_be_shorter:
            return None
        sentence = f"{self._describe_damage()}, and no exception was raised"
        wrong = Wrong.MISSING if is_shorter else Wrong.DIFFERS
        return Finding(Verdict.CORRUPTED, sentence, wrong=wrong)

    def find_wrong_recovery(self, recovery: Pass, allowed: Allowed) -> Finding | None:
        """The same, or that the dataset has another length."""
        if not is_resized(recovery, self.reference):
            return super().find_wrong_recovery(recovery, allowed)
        if allowed.damage:
            return None
        sentence = length_clause(recovery, self.reference)
        return Finding(Verdict.POISONED, sentence, wrong=Wrong.MISSING)

    @property
    def _rejects_entry(self) -> bool:
        """Whether a stream raised an error after an entry was added to a folder.

        Its length is unknown, but its other samples have moved, as those of a resized dataset.
        """
        outcome = self.outcome
        is_stream = outcome.kind == "iterable"
        return is_stream and outcome.exception is not None and outcome.has_fired(StrayEntry)

    def _find_unknown_samples(self) -> Finding | None:
        """Delivered samples, or whole batches, that are not in the intact dataset."""
        count = self._count_unknown()
        if not count:
            return None
        kind = "batch" if self.reference.comparison.in_batches else "sample"
        unknown = f"{pluralize(count, kind)} {is_or_are(count)}"
        text = f"{unknown} not among those that it delivers with intact files"
        sentence = f"{_describe_files(self.outcome)}; {text}, and no exception was raised"
        return Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.DIFFERS)

    def _count_unknown(self) -> int:
        """How many of them there are, as far as that is known."""
        reference, delivered = self.reference, self.outcome.delivered
        if reference.displaced:
            known = {*reference.digests.items(), *reference.displaced}
            pairs = (zip(each.keys or (), each.digests, strict=False) for each in delivered)
            return sum(pair not in known for pair in itertools.chain(*pairs))
        if not self._knows_all_samples:
            return 0
        expected = Counter(reference.digests.values())
        return (Counter(row for each in delivered for row in each.digests) - expected).total()

    @property
    def _knows_all_samples(self) -> bool:
        """Whether the samples of the intact dataset are known, under any index."""
        # Random numbers of a sample depend on its index, which may be another one now.
        is_seeded = self.outcome.comparison.seeded is not None
        return has_full_reference(self.reference) and not is_seeded

    def _describe_damage(self) -> str:
        """What is wrong with the files, and how many samples the dataset then has."""
        length, total = self.outcome.epochs[0].length or 0, self.reference.readable or 0
        if length > total:
            clause = f"the dataset has {pluralize(length, 'sample')} instead of {total}"
        else:
            clause = f"only {length} of {pluralize(total, 'sample')} {is_or_are(length)} left"
        return f"{_describe_files(self.outcome)}; {clause}"


def hiding_calls(outcome: Outcome) -> set[str]:
    """The calls in which a file was missing."""
    hiding = (each for each in outcome.faults if each.fault.hides_file)
    return {firing.call for each in hiding for firing in each.firings}


def is_unlisted(outcome: Outcome) -> bool:
    """Whether a file was missing in listings only: nothing asked for it by name."""
    return hiding_calls(outcome) == {LISTING}


def is_resized(epoch: Pass, reference: Reference) -> bool:
    """Whether the dataset of *epoch* has another length than that of the intact files."""
    lengths = epoch.length, reference.readable
    return None not in lengths and lengths[0] != lengths[1]


def count_lacking(outcome: Outcome, reference: Reference) -> int:
    """By how many samples the dataset of *outcome* is shorter than that of the intact files."""
    resized = [each for each in outcome.epochs[:1] if is_resized(each, reference)]
    return max((reference.readable or 0) - (resized[0].length or 0), 0) if resized else 0


def has_full_reference(reference: Reference) -> bool:
    """Whether all samples of the intact dataset are recorded."""
    is_split = not reference.comparison.in_batches
    return is_split and len(reference.samples) >= (reference.readable or 0)


def length_clause(epoch: Pass, reference: Reference) -> str:
    """How many samples the dataset of *epoch* has, as the predicate of a sentence about it."""
    length, total = epoch.length or 0, reference.readable or 0
    if length > total:
        return f"has {pluralize(length, 'sample')} instead of {total}"
    return f"has only {length} of {pluralize(total, 'sample')}"


def _describe_files(outcome: Outcome) -> str:
    fired = next(each for each in outcome.faults if each.fired)
    return f"{_file_name(fired, outcome)} {_describe_fault(fired)}"


def _file_name(facts: FaultFacts, outcome: Outcome) -> str:
    """The name of the file, or its path if other files have that name."""
    paths = _paths_of(facts)
    if len({*map(os.path.basename, paths)}) != 1:
        return "each file"
    path = min(paths)
    name = os.path.basename(path)
    others = {each for process in outcome.processes for each in process.files} - paths
    return path if any(each.endswith(f"/{name}") for each in others) else name


def _paths_of(facts: FaultFacts) -> set[str]:
    return {each.path for each in facts.firings if each.path}


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1]


def _describe_fault(facts: FaultFacts) -> str:
    fault = facts.fault
    if isinstance(fault, TruncatedFile) and fault.keep:
        if isinstance(fault.keep, int):
            return f"ends after {pluralize(fault.keep, 'byte', ',')}"
        return f"has {100 * (1 - fault.keep):.0f} % fewer bytes"
    if isinstance(fault, TruncatedFile):
        return "is empty"
    if fault.hides_file:
        return "is missing"
    return _DESCRIPTIONS.get(type(fault), f"is under {type(fault).__name__}")
