"""Run every check on a dataset, or those you name; works without pytest."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import SAMPLES, Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory, PartOf, part_of
from pytest_dataloader_faults._trial.ranks import require_ranks
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.asking import ask
from pytest_dataloader_faults.battery.checks import CHECKS, names_of_checks, require_checks
from pytest_dataloader_faults.outcomes import CheckResult, Contract
from pytest_dataloader_faults.outcomes.text import printable


def select_checks(
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[str]:
    """The names of the checks to run, in the battery's order; every name given must be one.

    Raises:
        InvalidArgumentError: A name is no check, an argument is of the wrong kind, or no check is
            left.
    """
    check(expected_failures=expected_failures)
    wanted = set(CHECKS) if only is None else names_of_checks("only", only)
    wanted -= names_of_checks("exclude", exclude)
    require_checks("expected_failures", expected_failures or ())
    if not wanted:
        message = f"only={only!r} and exclude={exclude!r} leave no check to run. Leave one"
        raise exceptions.InvalidArgumentError(message)
    return [name for name in CHECKS if name in wanted]


def check_dataset(
    make_dataset: DatasetFactory,
    *,
    files: Files | None = None,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    copy: str | os.PathLike[str] | None = None,
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    deadline: float | str | None = None,
    seed: int = 0,
    engine: str = "auto",
    samples: int | str | None = SAMPLES,
    ranks: int | None = None,
    on_fail: str | None = "raise",
    not_reproduced: str = "warn",
) -> list[CheckResult]:
    """Run every check of the battery on the dataset that *make_dataset* returns.

    Args:
        make_dataset: Returns a map-style or iterable dataset, a ready ``DataLoader``, a data module
            or several of these; or it is such an object. If it is a function with one required
            parameter named ``folder`` or so, or annotated as ``Path``, as in
            ``lambda folder: MyDataset(data, cache=folder)``, each trial gives it an empty folder, a
            ``pathlib.Path``, and removes the folder afterwards.
        files: Globs of the files that faults may hit; by default all that the workers read.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``. A ready
            ``DataLoader`` has its own.
        contract: What the author promises beyond, or short of, the ordinary.
        copy: A folder with data. Each trial copies it before any fault is there, and passes the
            copy to *make_dataset* in place of an empty folder: for a dataset that writes a cache
            next to its data. Nothing is written to the folder itself.
        only: The names of the only checks to run: a list, or a text with commas between them.
        exclude: The names of checks to leave out, in the same way.
        expected_failures: ``{check: reason}``; one of these that passes is a failure.
        deadline: Seconds for each epoch of a trial, and for its recovery; None or ``"auto"`` is
            10 to 30, by how long an epoch takes without a fault. A trial that goes on then, or
            sleeps, gets up to 120 more.
        seed: Of the samplers, the workers, and the faults with a ``probability``.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        samples: About how many samples of a map-style dataset to look at; ``"all"`` or None for
            all. They are spread over the dataset, and the same in each check. A sampler of your own
            is asked for its first batches. Each worker makes two batches at least. Where reading
            the 64 of the default would take longer than a few seconds, they are 32, 16 or fewer.
        ranks: How many processes train on the dataset together, 2 to 8, as under torchrun: the
            checks of ranks are asked, too. In all other checks the dataset is that of the only
            rank.
        on_fail: ``"raise"`` at the first failure, ``"warn"`` of each, or None.
        not_reproduced: What to do where one trial fails and two repeats of it pass: ``"warn"``, or
            ``"fail"`` as *on_fail* says.

    Returns:
        One result per check, also for those that do not apply.

    Raises:
        CheckFailedError: A check failed and *on_fail* is ``"raise"``.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    settings = Settings.of(locals(), may_be_auto=True)
    require_ranks(settings.ranks)
    check(on_fail=on_fail, not_reproduced=not_reproduced)
    names = select_checks(only, exclude, expected_failures)
    batteries = batteries_for(make_dataset, settings)
    with progress.stage("check_dataset"):
        results = results_of(batteries, names, expected_failures, not_reproduced)
        return list(reported(results, on_fail, not_reproduced))


def batteries_for(
    make_dataset: DatasetFactory, settings: Settings
) -> list[tuple[str | None, Battery]]:
    """A battery for each part of what was handed over, with its name; None if it has no parts."""
    try:
        return [(None, Battery(make_dataset, settings))]
    except exceptions.SeveralLoadersError as error:
        parts = error.parts
    return [(part, _battery_of(part, part_of(make_dataset, part), settings)) for part in parts]


def _battery_of(part: str, one: PartOf, settings: Settings) -> Battery:
    try:
        return Battery(one, settings)
    except (exceptions.InvalidArgumentError, exceptions.UnusableDatasetError) as error:
        raise type(error)(f"{printable(part)}: {error}") from None


def results_of(
    batteries: list[tuple[str | None, Battery]],
    names: list[str],
    expected_failures: Mapping[str, str] | None,
    not_reproduced: str,
) -> Iterator[CheckResult]:
    """What each check finds of each part; each check is a step of the innermost stage."""
    for name in progress.each(names):
        expected = (expected_failures or {}).get(name)
        given = {
            "only": name,
            "expected_failures": {name: expected} if expected else None,
            "not_reproduced": None if not_reproduced == "warn" else not_reproduced,
        }
        found = []
        for part, each in batteries:
            again = each.reproduce("check_dataset", **given)
            found.append(about(part, ask(each, name, expected=expected, reproduce=again)))
        yield from excused(found)


def about(part: str | None, result: CheckResult) -> CheckResult:
    """*result*, which is about one *part* of what was handed over."""
    if part is None:
        return result
    before = f"{printable(part)}: "
    sentence, explanation = before + result.sentence, before + result.explanation
    return replace(result, part=part, sentence=sentence, explanation=explanation)


def excused(results: list[CheckResult]) -> list[CheckResult]:
    """*results* for all parts: where one fails that was expected to, the others may pass."""
    if any(each.expected and each.applies and not each.passed for each in results):
        return [replace(each, expected=None) if each.passed else each for each in results]
    return results


def summed_up(results: list[CheckResult]) -> CheckResult:
    """One result of a check for all *results*, which are about the parts."""
    applying = [each for each in results if each.applies]
    worst = max(results, key=lambda each: (each.failed, each.applies, not each.passed))
    told = [each for each in applying if each.failed or not each.passed] or results
    return replace(
        worst,
        part=None,
        parts=tuple(results),
        passed=bool(applying) and all(each.passed for each in applying),
        explanation="\n".join(each.explanation for each in told),
    )


def reported(
    results: Iterable[CheckResult], on_fail: str | None, not_reproduced: str
) -> Iterator[CheckResult]:
    """Raise or warn of failures, as *on_fail* and *not_reproduced* say, at our caller's line."""
    for result in results:
        text = f"{result.check}: {result.explanation}"
        if not result.reproduced and not_reproduced == "warn":
            warnings.warn(exceptions._for_log(text), exceptions.NotReproducedWarning, stacklevel=3)
        elif result.failed or not result.reproduced:
            report(text, on_fail)
        yield result


def report(text: str, on_fail: str | None) -> None:
    """Raise or warn of a failure as *on_fail* says, at the line that called our caller's caller."""
    if on_fail == "raise":
        raise exceptions.CheckFailedError(text)
    if on_fail == "warn":
        warnings.warn(exceptions._for_log(text), stacklevel=4)
