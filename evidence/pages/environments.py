"""Run README's battery in the places where users run pytest, and write the page about it.

python evidence environments             tries all places, as root, and writes the page
python evidence environments NAME...     tries these again
python evidence environments --page      writes the page only
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

from pages import Page
from places import PLACES, Place, lacking
from places.runs import Run, run_in
from pytest_dataloader_faults.battery.checks import CHECKS

PAGE = Page("environments")
ENGINES = ("auto", "python")
_FAILED = "failed on setup with \"engine='python' cannot run here"
"""How pytest begins the message of the first item; the others refer to it."""


class Result(NamedTuple):
    """What came of a place with an engine: a word of the page, and what is to be said besides."""

    word: str
    note: str = ""


def page(records: dict[str, dict[str, Any]]) -> str:
    """The page about what is kept of each place, by its name."""
    reference = records["here"]
    places = [place for name, place in PLACES.items() if name in records]
    places.sort(key=lambda place: ("kernel", "python", "none").index(place.engine))
    notes: dict[str, int] = {}
    rows = [_row(place, records, notes) for place in places]
    return PAGE.text(
        rows="\n".join(rows),
        notes="\n".join(f"{number}. {_code(note)}" for note, number in notes.items()),
        checks=len(CHECKS.keys() & reference["auto"]["verdicts"].keys()),
        all=len(CHECKS),
        kernel=reference["kernel"],
        date=max(each["date"] for each in records.values()),
        usual=_counts(reference["auto"]),
        usual_python=_counts(reference["python"]),
    )


def _row(place: Place, records: dict[str, dict[str, Any]], notes: dict[str, int]) -> str:
    """The row of *place*. What needs more than a word is added to *notes*."""
    results = [result(place, place.name, engine, records) for engine in ENGINES]
    reason = records[place.name]["auto"]["header"].removeprefix("dataloader-faults: ")
    reason = re.sub(r" \[.*\]$", "", reason.partition(": ")[2])  # The errno, and the kernel.
    needed = dict.fromkeys(filter(None, (reason, *(each.note for each in results))))
    numbers = ", ".join(str(notes.setdefault(each, len(notes) + 1)) for each in needed)
    cells = [_code(place.like), place.engine, *(each.word for each in results), numbers]
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """*text*, with options of commands as code."""
    return re.sub(r"(?<!-)--\w\S*(?<![:,])", r"`\g<0>`", text)


def result(place: Place, name: str, engine: str, records: dict[str, dict[str, Any]]) -> Result:
    """What came of the battery and the loops, with *engine* as the option of that name."""
    verdicts = records[name][engine]["verdicts"]
    if place.engine == "none" and set(verdicts.values()) == {"skipped"}:
        return Result("skipped")
    if place.engine == "none" and set(verdicts.values()) == {"skipped", _FAILED}:
        return Result("failed")
    if place.refuses and not {"passed", "corrupted"} & set(verdicts.values()):
        return Result("no verdict", place.refuses)
    usual = records["here"]["python" if place.engine == "python" else engine]["verdicts"]
    differing = "; ".join(_differences(verdicts, usual))
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
    """What comes of the battery and of loops of one's own in a place, by each engine."""
    runs = {engine: run_in(name, f"--dataloader-faults-engine={engine}") for engine in ENGINES}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "kernel": platform.release().partition("-")[0],
        **{engine: _record_of(run) for engine, run in runs.items()},
    }


def _record_of(run: Run) -> dict[str, Any]:
    header = run.header.replace(platform.release(), platform.release().partition("-")[0])
    return {"header": header, "verdicts": run.verdicts, "left": run.left}


def main() -> None:
    """Try the places that are named, or all, and write the page."""
    names = sys.argv[1:] or list(PLACES)
    for name in names if names != ["--page"] else []:
        if reason := lacking(name):
            sys.exit(f"{name}: {reason}")
        result = measure(name)
        PAGE.keep({**PAGE.record(), name: result})
        print(name, result["auto"]["header"])
    PAGE.path.write_text(page(PAGE.record()), encoding="utf-8")


if __name__ == "__main__":
    main()
