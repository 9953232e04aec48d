"""Items as the page shows them: with an anchor, a word for the result, and drawings. Pure."""

from __future__ import annotations

import re
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
    taken: set[str] = set()
    for item in items:
        wanted = anchor = "item-" + re.sub(r"[^\w.:-]+", "-", item.nodeid, flags=re.ASCII).strip(
            "-"
        )
        number = 1
        while anchor in taken:
            number += 1
            anchor = f"{wanted}-{number}"
        taken.add(anchor)
        yield Trial(item, anchor)
