"""What a trial can show of a dataset, what its author promises, and how samples are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pytest_dataloader_faults._arguments import FLAG, Checked, StrEnum, optional
from pytest_dataloader_faults.outcomes.text import code, listed, plain, printable_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_dataloader_faults.outcomes.reference import Reference


class Verdict(StrEnum):
    """What a trial shows about a dataset.

    Attributes:
        meaning: What it shows, in a sentence.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """A member, by its value and its meaning."""
        found = str.__new__(cls, value)
        found._value_ = value
        found.meaning = found.__doc__ = meaning
        return found

    SURVIVED = "survived", "The fault fired, and every sample was delivered and is right."
    FAILED_CLEANLY = (
        "failed_cleanly",
        (
            "An exception that names its cause was raised before the deadline. No wrong sample came"
            " before it, nothing leaked, and the same dataset object works again once the fault is"
            " gone."
        ),
    )
    HUNG = "hung", "Neither an exception nor the end of the epoch came before the deadline."
    CORRUPTED = (
        "corrupted",
        "A sample is wrong, missing or repeated, and no exception came before it.",
    )
    LEAKED = (
        "leaked",
        (
            "Descriptors, processes, threads, memory, temporary files or shared memory were left"
            " behind, or more of them with each epoch."
        ),
    )
    FAILED_UNCLEARLY = (
        "failed_unclearly",
        "An exception was raised that does not name its cause.",
    )
    POISONED = "poisoned", "The dataset is still broken after the fault is gone."
    CRASHED = "crashed", "The process that iterates the loader died."
    BROKEN = (
        "broken",
        (
            "An exception was raised although there was no fault, or although the contract promises"
            " to survive."
        ),
    )
    NOT_EXERCISED = (
        "not_exercised",
        "The fault never fired, so the trial shows nothing. It never counts as a pass.",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Contract(Checked):
    """What a dataset's author promises beyond the default: to survive or to fail cleanly.

    >>> def close(a, b):
    ...     return abs(a["score"] - b["score"]) < 1e-6 and a["label"] == b["label"]
    >>> contract = Contract(survives=True, compare=close)
    >>> contract.compare({"score": 0.5, "label": 3}, {"score": 0.5000001, "label": 3})
    True

    Attributes:
        survives: No fault makes the dataset fail.
        names_file: Each exception names the file concerned.
        may_skip: Samples that a fault hit may be missing, without an exception. No others may.
        may_substitute: Another sample, or a dummy, may come for a sample that a fault hit. All
            others must match.
        detects_corruption: Damaged bytes always give an exception, and never a sample. Without this
            promise, a sample made of damaged bytes on the disk is no violation.
        deterministic: Whether a sample is the same each time it is read. With None the harness
            finds out.
        compare: ``compare(a, b) -> bool`` says whether two samples are the same, in place of their
            bytes.
        split: ``split(batch)`` returns the list of samples that a batch holds, where it cannot be
            seen: after padding, or in a class of the ``collate_fn``'s own.

    *may_skip*: a dataset that skips must deliver less: a batch with fewer samples, or None or an
    empty list in place of a batch. A sample in the place of another is wrong, as ever. Once the
    fault is gone, every sample has to come. A file that is shorter, damaged or closed stays so, and
    may hit any sample. The samples of an iterable dataset have no index: a worker in which a fault
    happened may lose any of them, such as those of a shard that it cannot open; where each sample
    has its own file, as many as reads failed. All other workers have to give what they gave in the
    run without a fault.

    *may_substitute*: a sample that a fault hit may have the content of any other sample, or one
    that comes alike for several samples that were hit. Where the sample met an error, or an empty
    file, it may be anything, since nothing was read for it. Of a file that is shorter or damaged it
    may not: short data is no substitute. Once the fault is gone, all samples must match. A stream
    may repeat samples, or give others, as often as reads failed.

    *deterministic*: with None, the harness reads each sample twice. Samples are random if they
    differ, or if they draw random numbers. Then the harness seeds torch, NumPy and ``random`` again
    for each sample of a map-style dataset. If that makes samples the same, it compares them as
    always. If only some parts of a sample vary, such as a time, it compares the others. A dataset
    that seeds itself is compared with an epoch of workers. If nothing else is left, the harness
    compares only types and shapes, or only types if shapes vary as well. Each result says so. False
    says that samples are random, so nothing has to be found out. True is a promise: a dataset that
    breaks it is refused, with the part that differs. The samples of a stream are a collection:
    their order may be random.

    A dataset that draws random numbers between a failed attempt and the next one, as for a random
    wait, gives another sample than the reference. Draw those numbers from a generator of their own,
    or give a *compare*.

    *compare* gets what the loader's ``collate_fn`` makes of a batch of one sample. The trial's
    process calls it, so it may be a lambda. If it raises, the samples count as different. It must
    say that a sample is the same as itself.

    *split*: the harness takes apart what ``default_collate`` makes, and compares other batches as
    wholes, such as padded ones. With *split* it compares each sample, and *may_skip* and
    *may_substitute* can be kept, which need that. This one undoes the padding of sequences that
    hold no zero: ``lambda batch: [row[row != 0] for row in batch]``. For batches of PyTorch
    Geometric it is ``lambda batch: batch.to_data_list()``. It has to return as many samples as the
    batch was made of.
    """

    survives: bool = False
    names_file: bool = False
    may_skip: bool = False
    may_substitute: bool = False
    detects_corruption: bool = False
    deterministic: bool | None = None
    compare: Callable[[Any, Any], Any] | None = None
    split: Callable[[Any], Iterable[Any]] | None = None

    _rules: ClassVar = {
        **dict.fromkeys(
            "survives names_file may_skip may_substitute detects_corruption".split(), FLAG
        ),
        "deterministic": optional(FLAG.allows, f"{FLAG.allowed}, or None to find out"),
        **dict.fromkeys(["compare", "split"], optional(callable, "a function or None")),
    }

    @classmethod
    def given(cls, contract: Contract | None) -> Contract:
        """*contract*, or the default for None."""
        allowed = "a Contract(...), or None for the default"
        optional(lambda value: isinstance(value, cls), allowed).check("contract", contract)
        return contract or cls()

    def _argument(self, field: Field[Any]) -> str:
        ((name, value),) = plain({field.name: getattr(self, field.name)}).items()
        return f"{name}={code(value)}"


class Compared(str, Enum):
    """What of samples is compared."""

    BYTES = "bytes"
    """All there is to a sample."""
    AUTHOR = "compare"
    """What the author's own ``compare(a, b)`` looks at."""
    SHAPES = "shapes"
    """Types and shapes, and not what is in them."""
    TYPES = "types"
    """Types alone, whatever the shapes and lengths."""
    NOTHING = "nothing"
    """Not even the type, of one part."""


@dataclass(frozen=True)
class Comparison:
    """What counts as the same sample. ``str`` of it is for people.

    Attributes:
        what: What is compared.
        seeded: What random numbers begin again from at each sample of a map-style dataset; None
            where they are left as they are.
        varying: The parts that were not the same twice, by path, and what of each is compared.
        in_workers: Whether samples are compared with those of an epoch of workers without a fault,
            and not with those that the main process reads.
        limit: After how many samples a stream is ended that does not end by itself, in each worker.
        own: Whether it would end there, and each worker gives random samples of its own.
    """

    what: Compared = Compared.BYTES
    seeded: int | None = None
    varying: tuple[tuple[str, Compared], ...] = ()
    in_workers: bool = False
    limit: int | None = None
    own: bool = False

    @property
    def is_of_content(self) -> bool:
        """Whether it matters what is in a sample."""
        return self.what in (Compared.BYTES, Compared.AUTHOR)

    @property
    def allows_for_randomness(self) -> bool:
        """Whether random samples may be the same by it."""
        return self.seeded is not None or bool(self.varying) or not self.is_of_content

    def __str__(self) -> str:
        what = self.what.value
        if self.in_workers:
            what += " of workers"
        if self.varying:
            what += f" without {listed(path or 'all' for path, _ in self.varying)}"
        if self.own:
            return f"{what}, {self.limit} of its own in each worker"
        if self.limit is not None:
            return f"{what}, the first {self.limit} of each worker"
        return what if self.seeded is None else f"{what}, seeded from {self.seeded}"


EXACT = Comparison()


@dataclass(frozen=True)
class SampleHandling:
    """What it takes to compare samples by a ``Comparison``. It is inherited by fork, not pickled.

    Attributes:
        compare: The author's own ``compare(a, b)``, or None.
        split: The author's own ``split(batch)``, or None.
        pickled_samples: The reference's samples, for *compare*.
        whole: Whether batches are compared as wholes: what is in them depends on the other samples,
            as with padding.
    """

    compare: Callable[[Any, Any], Any] | None = None
    split: Callable[[Any], Iterable[Any]] | None = None
    pickled_samples: tuple[tuple[Any, str], ...] = ()
    whole: bool = False

    @classmethod
    def of(cls, contract: Contract, comparison: Comparison) -> SampleHandling:
        """What *contract* says of it, before there is a reference."""
        is_authors = comparison.what is Compared.AUTHOR
        return cls(contract.compare if is_authors else None, contract.split)

    def knowing(self, reference: Reference) -> SampleHandling:
        """The same once there is a *reference*."""
        pickled, whole = reference.pickled_samples, bool(reference.batches)
        return replace(self, pickled_samples=pickled, whole=whole)


DEFAULT_HANDLING = SampleHandling()
SHAPES, TYPES = Comparison(Compared.SHAPES), Comparison(Compared.TYPES)
"""What random samples are compared by where seeds do not make them the same."""


def comparisons_for(contract: Contract, seed: int) -> Iterator[Comparison]:
    """The comparisons that *contract* allows, the most exact first; *seed*: of random samples."""
    content = Compared.AUTHOR if contract.compare else Compared.BYTES
    if contract.deterministic is not False:
        yield Comparison(content)
    if not contract.deterministic:
        yield Comparison(content, seeded=seed)
        if contract.compare is None or contract.deterministic is False:
            yield from (SHAPES, TYPES)


class Wrong(StrEnum):
    """What is wrong with the samples of an epoch."""

    SUBSTITUTED = "substituted"
    """A sample has the content of another one."""
    ALIKE = "alike"
    """Several samples have the same content, and differ in the reference."""
    DIFFERS = "differs"
    """A sample has content of its own, which is not that of the reference."""
    UNKNOWN = "unknown"
    """Samples came that are none of the reference, and it is not known for which ones."""
    MISSING = "missing"
    """Fewer samples came than were asked for."""
    CUT_SHORT = "cut short"
    """An epoch ended without an error before every batch had come."""
    REPEATED = "repeated"
    """Samples came more often than in the reference."""
    REORDERED = "reordered"
    """Every sample came, but some for the indices of others."""
    SAME_IN_EACH_WORKER = "same in each worker"
    """Each worker gave the same samples of a stream without an end."""
    USED_UP = "used up"
    """A second epoch has fewer samples than the first."""
    RESUMED = "resumed"
    """An epoch goes on where the one before was left."""
    SAME_AGAIN = "same again"
    """A second epoch has the random samples of the first."""
    UNEVEN = "uneven"
    """A rank has fewer batches than another one."""
    EPOCHS_APART = "epochs apart"
    """Two ranks made one step with batches of different epochs."""
    ON_SEVERAL_RANKS = "on several ranks"
    """Two ranks have the same samples."""
    ON_NO_RANK = "on no rank"
    """Samples are missing in all ranks together."""
    LENGTH_OF_ALL = "length of all"
    """A rank says that an epoch has as many samples or batches as all ranks have together."""
    SAME_ORDER = "same order"
    """A shuffled epoch has the order of the one before."""
    NOT_TWICE = "not twice"
    """A second dataset of the same folder fails with no fault."""
    STATE_NOT_SAVED = "state not saved"
    """state_dict() of a loader raises, or pickle cannot write what it gives."""
    STATE_NOT_LOADED = "state not loaded"
    """A loader cannot go on from the state that it gave."""
    STATE_CHANGES = "state changes"
    """A state that was taken goes on changing."""
    STATE_GROWS = "state grows"
    """The state of a loader grows with each batch."""
    BEGAN_ANEW = "began anew"
    """A loader that was to go on from a state began its epoch from the start."""
    NEXT_EPOCH_BEGAN = "next epoch began"
    """A loader that was to go on after the last batch began its next epoch."""
    STATE_AHEAD = "state ahead"
    """A state counts batches that the loop has not had."""
    STATE_BEHIND = "state behind"
    """A state leaves out batches that the loop has had."""
    ORDER_NOT_RESTORED = "order not restored"
    """A loader that went on from a state drew samples in another order."""
    NO_NEXT_EPOCH = "no next epoch"
    """A loader that went on from the end of an epoch has another one that is not whole."""


class Mismatch(NamedTuple):
    """What is wrong with samples, as data and as a sentence."""

    kind: Wrong
    sentence: str


class Finding(NamedTuple):
    """A verdict, the sentence that says why, and what is wrong if it is samples."""

    verdict: Verdict
    sentence: str
    kind: Wrong | None = None


@dataclass(frozen=True)
class Judgement:
    """What a trial shows of a dataset.

    Attributes:
        verdict: The verdict.
        sentence: Why it is that verdict.
        passed: Whether the contract allows it.
        kind: What is wrong with the samples; None if the verdict is about something else.
    """

    verdict: Verdict
    sentence: str
    passed: bool
    kind: Wrong | None = None

    def __post_init__(self) -> None:
        """It quotes names of files, texts of errors and what workers printed."""
        object.__setattr__(self, "sentence", printable_lines(self.sentence))


class Cause(NamedTuple):
    """What a dataset does wrong, in a few words, and one sentence that leads to the fix.

    *overrides*: that sentence holds in place of what the check advises. *fix*: what to do, in one
    short imperative sentence.
    """

    phrase: str
    advice: str = ""
    overrides: bool = False
    fix: str = ""
