"""Hypothesis' settings for a search: what is given, or else what its active profile says.

Some facts about profiles. ``settings()`` has what the active profile says, and Hypothesis' own
defaults for the rest, and not which of them a profile meant. So where those make no sense
for a search, a profile has no say. Its deadline is for examples that take milliseconds: a trial has
one of its own. The phase ``explain`` would run many more trials to say what the shrunk schedule
says. The blob is for a decorator, and a search has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import Phase, settings

from pytest_dataloader_faults.exceptions import InvalidArgumentError

_ALWAYS = {"deadline": None, "report_multiple_bugs": False}


def settings_of(given: Mapping[str, Any], max_examples: int | None) -> settings:
    """The settings of a search with the arguments *given*, and *max_examples* if that is given."""
    phases = [each for each in settings().phases if each is not Phase.explain]
    most = {} if max_examples is None else {"max_examples": max_examples}
    try:
        return settings(**{"phases": phases, "print_blob": False, **given, **most, **_ALWAYS})
    except TypeError as error:
        message = f"{error}: what is no argument of the search goes to hypothesis.settings"
        if "faults" in given:
            message = (
                f"faults={given['faults']!r} is no argument of a search, which draws faults itself:"
                " give their classes, as in kinds=[ReadError], or run these by run_trial or replay"
            )
        raise InvalidArgumentError(message) from None
