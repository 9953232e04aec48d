"""Verdicts on a dataset, and what its author promises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pytest_dataloader_faults._arguments import (
    FLAG,
    ArgumentRule,
    Checked,
    StrEnum,
    at_least,
    one_of,
    optional,
)
from pytest_dataloader_faults.outcomes.text import code, printable_lines, to_plain

if TYPE_CHECKING:
    from typing_extensions import Self


GUIDE = "docs/how-to/fix-a-failure.md"
"""The page that has code that fails and code that passes for each likely cause."""


class Cause(NamedTuple):
    """What a dataset does wrong, in a few words, and how to fix it.

    Attributes:
        phrase: What it does wrong.
        advice: What happened, and how to fix it; "" if the check's own advice says it.
        is_general: Whether the advice of the check, or of a library, is better than *advice*.
        fix: What to do, as one short imperative sentence.
    """

    phrase: str
    advice: str = ""
    is_general: bool = False
    fix: str = ""

    @property
    def section(self) -> str:
        """Its anchor in ``GUIDE``; "" if it has no fix, and so no section."""
        anchor = re.sub(r"[^\w -]", "", self.phrase.lower()).replace(" ", "-")
        return anchor if self.fix else ""


_NO_CAUSE = Cause("")


class Verdict(StrEnum):
    """What a trial shows about a dataset.

    Attributes:
        meaning: What it shows, in a sentence.
        severity: From 8, because training continues with wrong samples, to 0 for what is no defect.
        usual_cause: The likely cause if the facts show no closer one; empty if they always do.
    """

    meaning: str
    severity: int
    usual_cause: Cause

    def __new__(
        cls, value: str, meaning: str = "", severity: int = 0, usual_cause: Cause = _NO_CAUSE
    ) -> Self:
        """A member, by its value and its attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = member.__doc__ = meaning
        member.severity = severity
        member.usual_cause = usual_cause
        return member

    SURVIVED = "survived", "The fault fired, and every sample was delivered and is correct."
    FAILED_CLEANLY = (
        "failed_cleanly",
        (
            "An exception that names its cause was raised before the deadline. No wrong sample was"
            " delivered before it, nothing leaked, and the same dataset object works again once the"
            " fault is removed."
        ),
    )
    HUNG = (
        "hung",
        "The epoch neither finished nor raised an exception before the deadline.",
        5,
        Cause(
            "waits forever", fix="set a timeout for every wait, and raise an error when it expires"
        ),
    )
    CORRUPTED = (
        "corrupted",
        "A sample is wrong, missing or repeated, and no exception was raised before it.",
        8,
    )
    LEAKED = (
        "leaked",
        (
            "Descriptors, processes, threads, memory, temporary files or shared memory were left"
            " behind, or grow with each epoch."
        ),
        4,
        Cause(
            "leaves resources behind",
            fix="close files, threads and processes at the end of the epoch",
        ),
    )
    FAILED_UNCLEARLY = (
        "failed_unclearly",
        "An exception was raised that does not name its cause.",
        1,
        Cause(
            "raises an error that hides its cause",
            fix=("name the file in the error, or raise it from the original one, if there is one"),
        ),
    )
    POISONED = (
        "poisoned",
        "The dataset still fails after the fault is removed.",
        6,
        Cause(
            "does not recover after the fault is removed",
            fix="discard everything from the failed read",
        ),
    )
    CRASHED = (
        "crashed",
        "The main process, which iterates the loader, died.",
        7,
        Cause(
            "crashes the main process", fix="find the line in the stack that the process printed"
        ),
    )
    FAILS_WITHOUT_FAULT = (
        "fails_without_fault",
        "An exception was raised without a fault.",
        3,
        Cause(
            "fails without a fault",
            fix="run the loop without the plugin, and fix the error that it raises",
        ),
    )
    CONTRACT_BROKEN = (
        "contract_broken",
        "An exception was raised although the contract promises survives=True.",
        2,
        Cause(
            "fails although the contract promises survives=True",
            fix="handle the error, or drop survives=True",
        ),
    )
    NOT_EXERCISED = (
        "not_exercised",
        "The fault never fired, so the trial proves nothing. It never counts as a pass.",
        0,
        Cause(
            "no operation matched the fault", fix="use the same files in every call of make_dataset"
        ),
    )

    @property
    def passes(self) -> bool:
        """Whether a dataset with this verdict passes."""
        return self in {Verdict.SURVIVED, Verdict.FAILED_CLEANLY}

    @property
    def fails(self) -> bool:
        """Whether it shows a defect; ``not_exercised`` shows nothing."""
        return self.severity > 0


@dataclass(frozen=True, kw_only=True, repr=False)
class Contract(Checked):
    """What a dataset's author promises beyond the default: to survive or to fail cleanly.

    >>> def rounded(sample):
    ...     return round(float(sample["score"]), 3), sample["label"]
    >>> contract = Contract(survives=True, key=rounded)
    >>> contract.key({"score": 0.5000001, "label": 3})
    (0.5, 3)

    Attributes:
        survives: The dataset never fails under a fault; it delivers every sample.
        names_file: Every exception names the file concerned, also one that a library raises.
        may_skip: Samples that a fault hit may be missing, without an exception. All others must be
            delivered.
        may_substitute: Another sample, or a placeholder, may be returned for a sample that a fault
            hit. All others must match.
        may_reorder: If folders are listed in another order, an index may mean another sample. Every
            sample must still be delivered once.
        detects_corruption: Damaged bytes always cause an exception, and are never part of a sample.
            Without this promise, a sample made of bytes that are damaged on disk is allowed.
        detects_missing_files: A file that a folder lacks always causes an exception. Without this
            promise, a dataset that lists its files may have fewer samples.
        key: ``key(sample)`` returns what is compared of a sample, instead of all of it.
        split: ``split(batch)`` returns the list of samples in a batch, for batches that the plugin
            cannot split: padded ones, or objects of the ``collate_fn``'s own class.
        worker_memory: How many bytes reading all samples may add to the memory of each worker.

    *may_skip*: a dataset that skips must deliver less: a batch with fewer samples, or None or an
    empty list instead of a batch. A sample in the place of another one is still wrong. Once the
    fault is removed, every sample must be delivered. A truncated, damaged or closed file stays that
    way, so it may affect any sample. The samples of an iterable dataset have no index, so a worker
    that was hit may lose any of them, such as those of a shard that it cannot open. If each sample
    has its own file, the worker may lose as many samples as reads failed. All other workers must
    deliver what they delivered in the fault-free run.

    *may_substitute*: a sample that a fault hit may have the content of any other sample, or the
    same content as other samples that were hit. If reading it raised an error, or its file is
    empty, it may be anything, because nothing was read for it. That does not hold for a truncated
    or damaged file: incomplete data is not a substitute. Once the fault is removed, all samples
    must match. A stream may repeat samples, or return others, as often as reads failed.

    Samples that vary from read to read are compared as docs/explanation/how-verdicts-are-decided.md
    says, and each result names what was not compared. The samples of a stream are a collection, so
    their order may be random.

    A dataset that draws random numbers between a failed attempt and the next one, for a random
    delay for example, returns a different sample than the reference. Draw those numbers from a
    separate generator, or pass *key*.

    *key* receives what the loader's ``collate_fn`` returns for a batch of one sample, or a whole
    batch if the plugin cannot split batches. The trial's process calls it, so it may be a lambda.
    It must return the same each time the dataset reads the sample: a value that the plugin can
    compare as it compares samples, such as a number, a string, a tensor, or a tuple of these.

    *split*: the plugin splits the batches of ``default_collate``, and compares other batches, such
    as padded ones, as a whole. With *split* it compares each sample, which *may_skip* and
    *may_substitute* require. This function removes the padding of sequences that contain no zero:
    ``lambda batch: [row[row != 0] for row in batch]``. For batches of PyTorch Geometric, use
    ``lambda batch: batch.to_data_list()``. The function must return as many samples as the batch
    was made of.
    """

    survives: bool = False
    names_file: bool = False
    may_skip: bool = False
    may_substitute: bool = False
    may_reorder: bool = False
    detects_corruption: bool = False
    detects_missing_files: bool = False
    key: Callable[[Any], Any] | None = None
    split: Callable[[Any], Iterable[Any]] | None = None
    worker_memory: int = 256 << 20

    _rules: ClassVar = {
        **dict.fromkeys(
            "survives names_file may_skip may_substitute may_reorder detects_corruption"
            " detects_missing_files".split(),
            FLAG,
        ),
        **dict.fromkeys(["key", "split"], optional(callable, "a function or None")),
        "worker_memory": ArgumentRule(at_least(1), "an int, 1 or more: a number of bytes"),
    }

    @classmethod
    def from_argument(cls, contract: Contract | None) -> Contract:
        """*contract*, or the default for None."""
        allowed = "a Contract(...), or None for the default"
        optional(lambda value: isinstance(value, cls), allowed).check("contract", contract)
        return contract or cls()

    def _argument(self, field: Field[Any]) -> str:
        ((name, value),) = to_plain({field.name: getattr(self, field.name)}).items()
        return f"{name}={code(value)}"


class Wrong(StrEnum):
    """What is wrong with the samples of an epoch."""

    SUBSTITUTED = "substituted"
    """A sample has the content of another one."""
    IDENTICAL = "identical"
    """Several samples have the same content, but differ in the reference."""
    DIFFERS = "differs"
    """A sample has content that no sample of the reference has, or it is unknown which ones do."""
    MISSING = "missing"
    """Fewer samples were delivered than requested."""
    REPEATED = "repeated"
    """Samples were delivered more often than in the reference."""
    REORDERED = "reordered"
    """Every sample was delivered, but some under the wrong index."""
    SAME_IN_EACH_WORKER = "same in each worker"
    """All workers returned the same samples of an endless stream."""


SUBSTITUTES = "returns a substitute for an unreadable sample"
SKIPS = "skips samples without an error"
TRUNCATED = "accepts a truncated file"
SHORT = "accepts a short read"
DAMAGED = "accepts damaged bytes"


_VERDICT = one_of(map(str, Verdict))
_TEXT = ArgumentRule(lambda value: isinstance(value, str), "a str")


@dataclass(frozen=True)
class Finding:
    """What a trial shows about a dataset.

    Attributes:
        verdict: The verdict.
        sentence: Why it is that verdict.
        cause: What the dataset is likely to do wrong, if the violated rule shows that; otherwise
            None.
        wrong: What is wrong with the samples, if *cause* does not say it; None if the verdict is
            about something else.
        library: Whose code raised the error or ended the process, if the failure is only a warning
            because it was not the user's code; "" if it is a failure.
    """

    verdict: Verdict
    sentence: str
    cause: Cause | None = None
    wrong: Wrong | None = None
    library: str = ""

    def __post_init__(self) -> None:
        """Escape the sentence, which quotes file names, error messages and output of workers."""
        _VERDICT.check("verdict", self.verdict, "Finding")
        _TEXT.check("sentence", self.sentence, "Finding")
        _TEXT.check("library", self.library, "Finding")
        object.__setattr__(self, "verdict", Verdict(self.verdict))
        object.__setattr__(self, "sentence", printable_lines(self.sentence))

    @property
    def passed(self) -> bool:
        """Whether the dataset passed."""
        return self.verdict.passes
