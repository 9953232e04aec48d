"""Wherever users run it: the same verdicts, or another engine with its reason, or a refusal."""

from __future__ import annotations

import functools

import pytest

from places import PLACES, Place, lacking
from places.runs import Run, run_in

QUICK = "read-error or worker-killed-middle or caught or raised"
WITHOUT = ("-p", "no:cacheprovider")
NO_ENGINE = {
    "auto": "no engine can run here: ",
    "kernel": "engine='kernel' cannot run here: ",
    "python": "engine='python' cannot run here: ",
}


@functools.cache
def usual(engine: str, checks: str) -> dict[str, str]:
    """The verdicts of the engine on this machine as it is."""
    run = run_in("here", f"--dataloader-faults-engine={engine}", "-k", checks, *WITHOUT)
    assert [run.verdicts[name] for name in ("test_caught", "test_raised")] == ["passed"] * 2
    assert run.verdicts["read-error"] == "corrupted"
    return run.verdicts


def check(place: Place, engine_option: str, checks: str, *options: str) -> None:
    """Run pytest in *place*; nothing may be wrong, unsaid or left behind."""
    if reason := lacking(place.name):
        pytest.skip(reason)
    run = run_in(place.name, f"--dataloader-faults-engine={engine_option}", "-k", checks, *options)
    assert run.left == []
    if place.engine == "none":
        check_refusal(run, place, engine_option)
    elif place.refuses:
        check_no_verdict(run, place)
    else:
        engine = place.engine if engine_option == "auto" else engine_option
        assert run.verdicts == usual(engine, checks), run.printed
        assert f"dataloader-faults: {engine} engine" in run.header
        assert engine_option != "auto" or place.says in run.header


def check_refusal(run: Run, place: Place, engine_option: str) -> None:
    """No engine can run: the header says so, and each item says so."""
    consequence = "are skipped" if engine_option == "auto" else "fail"
    assert f"no engine available, so tests that need one {consequence}: {place.says}" in run.header
    if engine_option == "auto":
        assert set(run.verdicts.values()) == {"skipped"}
    for message in run.messages.values():
        is_whole = f"{NO_ENGINE[engine_option]}{place.says}" in message
        assert is_whole or "because the test failed before its check: see test_data.py" in message


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
    check(PLACES[name], "auto", QUICK, *WITHOUT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine_option", ["auto", "python"])
@pytest.mark.parametrize("name", [name for name in PLACES if name != "here"])
def test_the_whole_battery_there(name, engine_option):
    """Each check, by the engine of the place and by the python engine; with pytest's own cache."""
    check(PLACES[name], engine_option, "test", "-W", "ignore::pytest.PytestCacheWarning")
