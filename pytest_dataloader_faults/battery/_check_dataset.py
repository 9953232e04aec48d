"""Run every check on a dataset, or those you name; works without pytest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery._results import ask, report
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.battery.checks import CHECKS, names_of_checks
from pytest_dataloader_faults.exceptions import InvalidArgumentError, NotReproducedWarning
from pytest_dataloader_faults.outcomes import CheckResult, Contract


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
    _arguments.check(expected_failures=expected_failures)
    wanted = set(CHECKS) if only is None else names_of_checks("only", only)
    wanted -= names_of_checks("exclude", exclude)
    names_of_checks("expected_failures", expected_failures or ())
    if not wanted:
        message = f"only={only!r} and exclude={exclude!r} leave no check to run. Leave one"
        raise InvalidArgumentError(message)
    return [name for name in CHECKS if name in wanted]


def check_dataset(
    make_dataset: Callable[[], Any],
    *,
    files: Files | None = None,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    on_fail: str | None = "raise",
    not_reproduced: str = "warn",
) -> list[CheckResult]:
    """Run every check of the battery on the dataset that *make_dataset* returns.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        files: Globs of the files that faults may hit; by default all that the workers read.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``.
        contract: What the author promises beyond, or short of, the ordinary.
        only: Names of the only checks to run.
        exclude: Names of checks to leave out.
        expected_failures: ``{check: reason}``; one of these that passes is a failure.
        deadline: Seconds for each trial.
        seed: Of the samplers and workers.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        on_fail: ``"raise"`` at the first failure, ``"warn"`` of each, or None.
        not_reproduced: What to do where one trial fails and two repeats of it pass: ``"warn"``, or
            ``"fail"`` as *on_fail* says.

    Returns:
        One result per check, also for those that do not apply.

    Raises:
        CheckFailedError: A check failed and *on_fail* is ``"raise"``.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    _arguments.check(on_fail=on_fail, not_reproduced=not_reproduced)
    names = select_checks(only, exclude, expected_failures)
    battery = Battery(
        make_dataset,
        files=files,
        loader=loader,
        contract=contract,
        deadline=deadline,
        seed=seed,
        engine=engine,
    )
    return list(_ask(battery, names, expected_failures or {}, on_fail, not_reproduced))


def _ask(
    battery: Battery,
    names: list[str],
    expected: Mapping[str, str],
    on_fail: str | None,
    not_reproduced: str,
) -> Iterator[CheckResult]:
    for name in names:
        result = ask(battery, name, expected=expected.get(name))
        if not result.reproduced and not_reproduced == "warn":
            warnings.warn(f"{name}: {result.explanation}", NotReproducedWarning, stacklevel=3)
        elif result.failed or not result.reproduced:
            report(f"{name}: {result.explanation}", on_fail)
        yield result
