"""What a trial writes down, and how that becomes an Outcome. Pure but for the file.

The journal is an anonymous file. One JSON object per line.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from pytest_dataloader_faults import outcomes
from pytest_dataloader_faults._engine.system.anonymous_file import AnonymousFile
from pytest_dataloader_faults._trial.journal.timeline import timeline_of
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import to_dict
from pytest_dataloader_faults.outcomes import FaultFacts, WorkerFacts
from pytest_dataloader_faults.outcomes.error_text import with_likely_sender
from pytest_dataloader_faults.outcomes.fault_facts import facts_from
from pytest_dataloader_faults.outcomes.records import TrialRequest
from pytest_dataloader_faults.outcomes.text import continued


class Journal(AnonymousFile):
    """An append-only list of events that outlives the processes which write it."""

    def write(self, **event: Any) -> None:
        """Append one event. It starts a line of its own, also after half a line of another."""
        data = memoryview(b"\n" + json.dumps(event).encode() + b"\n")
        while data:
            data = data[os.write(self.fd, data) :]

    def write_facts(self, faults: Iterable[FaultFacts], workers: Iterable[WorkerFacts]) -> None:
        written = [{**asdict(each), "fault": to_dict(each.fault)} for each in faults]
        self.write(faults=written, workers=[asdict(each) for each in workers])

    def events(self) -> list[dict[str, Any]]:
        """The events in the order written, without half a line of a process that was killed."""
        found = []
        for line in self.text().split("\n"):
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found


def outcome_from(request: TrialRequest, events: list[dict[str, Any]]) -> outcomes.Outcome:
    outcome = _facts_from(request, events)
    timeline, omitted = timeline_of(outcome, events)
    return replace(outcome, timeline=timeline, omitted_events=omitted)


def _facts_from(request: TrialRequest, events: list[dict[str, Any]]) -> outcomes.Outcome:
    data = outcomes.Outcome(**vars(request)).to_dict()
    report = None
    packed: dict[tuple[Any, ...], str | None] = {}
    passes: dict[int | None, dict[str, Any]] = defaultdict(
        lambda: {"drawn": [], "delivered": [], "exception": None, "complete": False}
    )
    for event in events:
        if "batch" in event:
            passes[event["epoch"]]["delivered"].append(event["batch"])
            packed[tuple(event["batch"]["indices"] or ())] = event.get("packed")
        elif "pass" in event:
            passes[event["epoch"]].update(event["pass"])
        elif "report" in event:
            report = event["report"]
        elif "resources" in event:
            data["resources"] = [*data["resources"], event["resources"]]
        elif "footprints" in event:
            data["footprints"] = [*data["footprints"], *event["footprints"]]
        else:
            data.update({name: event[name] for name in event if name in data})
    data["packed_draws"] = [item for item in packed.items() if item[1] is not None]
    data["recovery"] = passes.pop(None, None)
    data["passes"] = list(passes.values())
    outcome = outcomes.Outcome.from_dict(data)
    if report is None or any("faults" in event for event in events):
        return outcome
    # The supervisor reported, since the trial's process had died.
    faults, workers = facts_from(report["workers"], {}, request.schedule, ())
    return replace(outcome, faults=faults, workers=workers)


def reference_from(events: list[dict[str, Any]], printed: str) -> outcomes.Reference:
    """The reference that a reference job wrote, unless the dataset ended its process before."""
    duration = next((event["duration"] for event in events if "duration" in event), 0.0)
    for event in events:
        if "reference" in event:
            return outcomes.Reference.from_dict({**event["reference"], "duration": duration})
    how = next((event["died"] for event in events if event.get("died")), "for an unknown reason")
    message = (
        f"the process that read the dataset died ({with_likely_sender(how)}), with no fault armed"
        " and no worker. It was forked from pytest's process, and a library that has threads or"
        " locks of its own may not survive that: make the data in another process, and do not use"
        f" the library before. It printed:\n    {continued(printed.strip()) or 'nothing'}"
    )
    raise UnusableDatasetError(message)
