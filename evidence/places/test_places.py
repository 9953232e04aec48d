"""Wherever users run it: the same verdicts, or skips with their reason, or a refusal."""

from __future__ import annotations

import functools

import pytest

from places import PLACES, Place, lacking
from places.runs import Run, run_in

QUICK = "read-error or worker-killed or caught or raised"
WITHOUT = ("-p", "no:cacheprovider")


@functools.cache
def usual(checks: str) -> dict[str, str]:
    """The verdicts on this machine as it is."""
    run = run_in("here", "-k", checks, *WITHOUT)
    assert [run.verdicts[name] for name in ("test_caught", "test_raised")] == ["passed"] * 2
    assert run.verdicts["read-error"] == "corrupted"
    return run.verdicts


def check(place: Place, checks: str, *options: str) -> None:
    """Run pytest in *place*; nothing may be wrong, unsaid or left behind."""
    if reason := lacking(place.name):
        pytest.skip(reason)
    run = run_in(place.name, "-k", checks, *options)
    assert run.left == []
    if place.says:
        check_refusal(run, place)
    elif place.refuses:
        check_no_verdict(run, place)
    else:
        assert run.verdicts == usual(checks), run.printed
        assert run.header == ""


def check_refusal(run: Run, place: Place) -> None:
    """No engine can run: the header says so, and each item says so."""
    assert f"no engine available, so tests that need one are skipped: {place.says}" in run.header
    assert set(run.verdicts.values()) == {"skipped"}
    for message in run.messages.values():
        assert f"no engine can run here: {place.says}" in message


def check_no_verdict(run: Run, place: Place) -> None:
    """No loader can run: the first check says why, the others name it, and torch raises."""
    messages = [run.messages[item] for item in run.messages if not item.startswith("test_")]
    assert place.refuses in messages[0]
    assert all(
        "no shared memory: see test_data.py" in message
        for message in messages[1:]
        if "finds no" not in message
    )
    assert {run.verdicts["test_caught"], run.verdicts["test_raised"]}.isdisjoint(
        {"passed", "skipped"}
    )


@pytest.mark.parametrize("name", [name for name in PLACES if PLACES[name].is_quick])
def test_a_few_checks_there(name):
    """Two checks and two loops of one's own."""
    check(PLACES[name], QUICK, *WITHOUT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in PLACES if name != "here"])
def test_the_whole_battery_there(name):
    """Each check, with pytest's own cache."""
    check(PLACES[name], "test", "-W", "ignore::pytest.PytestCacheWarning")
