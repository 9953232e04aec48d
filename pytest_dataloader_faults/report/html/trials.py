"""Items as the page shows them: with an anchor, a word for the result, and drawings. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent

from pytest_dataloader_faults.report.html.drawings import Chart, Timeline, charts, timeline
from pytest_dataloader_faults.report.model import Item


@dataclass(frozen=True)
class Trial:
    """One item on the page.

    Attributes:
        item: What was found.
        anchor: The id of its element, for links.
    """

    item: Item
    anchor: str

    @property
    def evidence(self) -> str:
        """The explanation, without its first and its last line, which stand elsewhere."""
        _, _, rest = self.item.explanation.partition("\n")
        lines = dedent(rest).rstrip().split("\n")
        kept = (line for line in lines if line != f"reproduce: {self.item.reproduce}")
        return "\n".join(kept)

    @cached_property
    def timeline(self) -> Timeline | None:
        """What happened when; None if that was not noted."""
        return timeline(self.item.timeline) if self.item.timeline else None

    @property
    def charts(self) -> list[Chart]:
        """How what its processes have grew."""
        return charts(self.item.usage)


def trials_of(items: Iterable[Item]) -> Iterator[Trial]:
    """Each of *items*. An anchor depends on the id of the item, so that links stay good."""
    taken: Counter[str] = Counter()
    for item in items:
        anchor = _anchor(item)
        taken[anchor] += 1
        yield Trial(item, anchor if taken[anchor] == 1 else f"{anchor}-{taken[anchor]}")


_PLAIN = re.compile(r"[\w./:-]+(\[[\w./:-]+\])?", re.ASCII)
"""Such ids differ also without their brackets: there is no hyphen in the name of a function."""


def _anchor(item: Item) -> str:
    """The id of *item* without brackets; with a hash where others would be the same."""
    nodeid = item.nodeid if item.check in item.nodeid else f"{item.nodeid}[{item.check}]"
    slug = re.sub(r"[^\w./:-]+", "-", nodeid, flags=re.ASCII).strip("-")
    if not _PLAIN.fullmatch(nodeid):
        digest = hashlib.sha256(nodeid.encode(errors="surrogatepass")).hexdigest()
        slug = f"{slug}-{digest[:8]}"
    return f"item-{slug}"
