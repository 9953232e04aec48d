"""Which events of a long course to keep, and what to say in the place of the others. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from pytest_dataloader_faults.outcomes.records import Event

_BY_RANK = (("epoch", "error", "exit"), ("batch",), ("fault",), ("fetch",), ("open",))
"""Kinds of events: each rank has what room those before it leave."""
_MODEST = ("batch", "fetch")
"""They take half of that room at most, since the next rank would have none."""
_PLURALS = {"batch": "batches", "fetch": "fetches"}


def bounded(events: Sequence[Event], most: int) -> list[Event]:
    """At most *most* of *events*, which are in order, and one in each place where others were.

    Of a kind that is too frequent the first and the last are kept. Faults crowd out no batch, no
    epoch and no error.
    """
    kept = {id(each) for each in _chosen(events, most)}
    shown = [each for each in events if id(each) in kept]
    groups: dict[tuple[str, str], list[Event]] = {}
    for each in events:
        groups.setdefault((each.process, each.kind), []).append(each)
    gaps = (gap for group in groups.values() for gap in _gaps(group, kept))
    return sorted([*shown, *gaps], key=lambda each: each.time)


def gap(time: float, process: str, kind: str, count: int) -> Event:
    """What stands for *count* events that are left out between two others of their kind."""
    plural = _PLURALS.get(kind, f"{kind}s")
    text = f"{count:,} more {kind if count == 1 else plural}, left out here"
    return Event(time, process, kind, text, omitted=count)


def _chosen(events: Sequence[Event], most: int) -> Iterator[Event]:
    room = most
    for kinds in _BY_RANK:
        found = [each for each in events if each.kind in kinds and not each.omitted]
        share = room // 2 if set(kinds) & {*_MODEST} else room
        chosen = _without_middle(found, share)
        room -= len(chosen)
        yield from chosen


def _without_middle(events: list[Event], most: int) -> list[Event]:
    if len(events) <= most:
        return events
    last = most // 2
    return [*events[: most - last], *events[len(events) - last :]]


def _gaps(group: Iterable[Event], kept: set[int]) -> Iterator[Event]:
    """One for each run of events of the *group* that are not *kept*."""
    before: Event | None = None
    for is_kept, run in itertools.groupby(group, key=lambda each: id(each) in kept):
        found = list(run)
        if is_kept:
            before = found[-1]
            continue
        count = sum(each.omitted or 1 for each in found)
        yield gap((before or found[0]).time, found[0].process, found[0].kind, count)
