"""Write the table of known bugs, and of what the battery says of each.

    python evidence corpus

writes the page from tests/support/corpus. That the battery says so is tested by tests/corpus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pages import Page
from pytest_dataloader_faults.battery.checks import CHECKS
from support.corpus import BEHAVIOURS, CASES, ENTRIES, EXCUSED

PAGE = Page("corpus")


def page() -> str:
    """The whole page."""
    return PAGE.text(
        entries=len(ENTRIES),
        shown=len({case.entry for case in CASES}),
        cases=len(CASES),
        explained=len(BEHAVIOURS),
        excused=len(EXCUSED),
        found="\n".join(_bug_rows()),
    )


def _bug_rows() -> Iterator[str]:
    """A row for each check and verdict: the bugs that have it."""
    bugs: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for case in CASES:
        verdict = f"`{case.verdict}`{', a warning' if case.library else ''}"
        bugs[case.check, verdict][f"{case.entry} {ENTRIES[case.entry]}"] = None
    for check, verdict in sorted(bugs, key=lambda pair: (list(CHECKS).index(pair[0]), pair[1])):
        yield f"| `{check}` | {verdict} | {', '.join(bugs[check, verdict])} |"


if __name__ == "__main__":
    PAGE.write(page())
