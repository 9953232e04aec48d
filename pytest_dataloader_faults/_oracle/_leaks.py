"""What was left behind. Pure."""

from __future__ import annotations

from collections import Counter

from pytest_dataloader_faults.outcomes import Outcome, Resources
from pytest_dataloader_faults.verdicts import Verdict

_HARMLESS = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")


def leaked(outcome: Outcome) -> tuple[Verdict, str] | None:
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
