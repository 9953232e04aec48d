"""Run README's battery in the places where users run pytest, and write the page about it.

python evidence environments             tries all places, as root, and writes the page
python evidence environments NAME...     tries these again
python evidence environments --page      writes the page only

The page also has the versions (``python evidence compatibility``) and the costs (benchmarks).
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

from pages import Page, compatibility
from places import PLACES, Place, lacking
from places.runs import run_in
from support.scripts import load_script

PAGE = Page("environments")
costs = load_script("benchmarks/page.py")


class Result(NamedTuple):
    """What came of a place: a word of the page, and what is to be said besides."""

    word: str
    note: str = ""


def page(records: dict[str, dict[str, Any]]) -> str:
    """The page about what is kept of each place, by its name, of each version, and of costs."""
    reference = records["here"]
    places = [place for name, place in PLACES.items() if name in records]
    places.sort(key=lambda place: bool(place.says))
    notes: dict[str, int] = {}
    rows = [_row(place, records, notes) for place in places]
    return PAGE.text(
        rows="\n".join(rows),
        notes="\n".join(f"{number}. {_code(note)}" for note, number in notes.items()),
        kernel=reference["kernel"],
        date=max(each["date"] for each in records.values()),
        usual=_counts(reference),
        **compatibility.fields(compatibility.PAGE.record()),
        costs=costs.text(costs.record()),
    )


def _row(place: Place, records: dict[str, dict[str, Any]], notes: dict[str, int]) -> str:
    """The row of *place*. What needs more than a word is added to *notes*."""
    there = result(place, place.name, records)
    reason = records[place.name]["header"].removeprefix("dataloader-faults: ")
    reason = re.sub(r" \[.*\]$", "", reason.partition(": ")[2])  # The errno, and the kernel.
    needed = dict.fromkeys(filter(None, (reason, there.note)))
    numbers = ", ".join(str(notes.setdefault(each, len(notes) + 1)) for each in needed)
    return f"| {_code(place.like)} | {there.word} | {numbers} |"


def _code(text: str) -> str:
    """*text*, with options of commands as code."""
    return re.sub(r"(?<!-)--\w\S*(?<![:,])", r"`\g<0>`", text)


def result(place: Place, name: str, records: dict[str, dict[str, Any]]) -> Result:
    """What came of the battery and the loops in *place*."""
    verdicts = records[name]["verdicts"]
    if place.says and set(verdicts.values()) == {"skipped"}:
        return Result("skipped")
    if place.refuses and not {"passed", "corrupted"} & set(verdicts.values()):
        return Result("no verdict", place.refuses)
    differing = "; ".join(_differences(verdicts, records["here"]["verdicts"]))
    return Result("differs", differing) if differing else Result("same")


def _differences(verdicts: dict[str, str], usual: dict[str, str]) -> list[str]:
    return [
        f"`{item}`: {verdicts.get(item)}, elsewhere {usual.get(item)}"
        for item in {**usual, **verdicts}
        if verdicts.get(item) != usual.get(item)
    ]


def _counts(run: dict[str, Any]) -> str:
    counts = Counter(run["verdicts"].values())
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))


def measure(name: str) -> dict[str, Any]:
    """What comes of the battery and of loops of one's own in a place."""
    run = run_in(name)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "kernel": platform.release().partition("-")[0],
        "header": run.header.replace(platform.release(), platform.release().partition("-")[0]),
        "verdicts": run.verdicts,
        "left": run.left,
    }


def main() -> None:
    """Try the places that are named, or all, and write the page."""
    names = sys.argv[1:] or list(PLACES)
    for name in names if names != ["--page"] else []:
        if reason := lacking(name):
            sys.exit(f"{name}: {reason}")
        result = measure(name)
        PAGE.keep({**PAGE.record(), name: result})
        print(name, result["header"])
    PAGE.write(page(PAGE.record()))


if __name__ == "__main__":
    main()
