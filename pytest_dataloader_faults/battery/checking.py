"""Run all checks on a dataset, or the ones that you name; works without pytest."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import SAMPLES, Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS, names_of_checks, require_checks
from pytest_dataloader_faults.battery.runner import prepare, run_check
from pytest_dataloader_faults.outcomes import CheckResult, Contract


def select_checks(
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[str]:
    """The names of the checks to run, in the battery's order; each passed name must be one.

    Raises:
        InvalidArgumentError: A name is not a check, an argument has the wrong type, or no check
            is left.
    """
    check(expected_failures=expected_failures)
    names = set(CHECKS) if only is None else names_of_checks("only", only)
    names -= names_of_checks("exclude", exclude)
    require_checks("expected_failures", expected_failures or ())
    if not names:
        message = f"only={only!r} and exclude={exclude!r} leave no check to run. Keep at least one"
        raise exceptions.InvalidArgumentError(message)
    return [name for name in CHECKS if name in names]


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
    samples: int | str | None = SAMPLES,
    ranks: int | None = None,
    on_fail: str | None = "raise",
    flaky: str = "warn",
) -> list[CheckResult]:
    """Run every check of the battery on the dataset that *make_dataset* returns.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``; or it is
            such an object. For one of several, pass ``part_of(make_dataset, name)``. If it is a
            function with one required parameter whose name contains folder, dir, path, cache, tmp
            or root, or that is annotated as ``Path``, as in ``lambda folder: MyDataset(data,
            cache=folder)``, each trial passes it an empty folder, a ``pathlib.Path``, and removes
            the folder afterwards.
        files: Globs of the files that faults may hit; by default all that the workers read.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``. A ready
            ``DataLoader`` has its own.
        contract: What the dataset promises, if it differs from the default ``Contract()``.
        copy: A folder with data. Each trial copies it before any fault is armed, and passes the
            copy to *make_dataset* in place of an empty folder: for a dataset with a cache next
            to its data. Nothing is written to the folder itself.
        only: Names of the checks to run: a list or a comma-separated string. By default, all.
        exclude: Names of checks to leave out, in the same form.
        expected_failures: ``{check: reason}``. If one of these checks passes, that is a failure.
        deadline: Seconds for each epoch of a trial, and for its recovery pass. None or ``"auto"``
            is 10 to 30, depending on how long an epoch takes without a fault. A trial that is still
            making progress, or sleeps, gets up to 120 more.
        seed: Seed of the samplers, the workers, and the faults with a ``probability``.
        samples: Approximate number of samples of a map-style dataset to check; ``"all"`` or None
            for all. They are spread over the dataset, and the same in each check. A sampler of
            your own supplies its first batches. Each worker makes at least two batches. If reading
            the default 64 would take longer than a few seconds, 32, 16 or fewer are checked.
        ranks: How many processes train on the dataset together, 2 to 8, as under torchrun. Also
            runs the rank checks. In all other checks the dataset has a single rank.
        on_fail: ``"raise"`` at the first failure, ``"warn"`` of each, or None. An error of a
            library that hides its cause is an ``UnclearErrorWarning`` in each case.
        flaky: What to do if one trial fails and two repeats pass: ``"warn"``, or ``"fail"`` to
            treat it as *on_fail* says.

    Returns:
        One result per check, including checks that do not apply.

    Raises:
        CheckFailedError: A check failed and *on_fail* is ``"raise"``.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    settings = Settings.of(locals(), may_be_auto=True)
    check(ranks=settings.ranks)
    check(on_fail=on_fail, flaky=flaky)
    names = select_checks(only, exclude, expected_failures)
    battery = Battery(make_dataset, settings)
    with progress_bar("check_dataset", len(names)) as advance:
        results = _run_checks(battery, names, expected_failures, flaky, advance)
        return list(_report_results(results, on_fail, flaky))


def _run_checks(
    battery: Battery,
    names: list[str],
    expected_failures: Mapping[str, str] | None,
    flaky: str,
    advance: Callable[[], object],
) -> Iterator[CheckResult]:
    """The result of each check; calls *advance* after each."""
    prepare(names)
    for name in names:
        expected = (expected_failures or {}).get(name)
        again = battery.reproduce(
            "check_dataset",
            only=name,
            expected_failures={name: expected} if expected else None,
            flaky=None if flaky == "warn" else flaky,
        )
        yield run_check(battery, name, expected=expected, reproduce=again)
        advance()


def _report_results(
    results: Iterable[CheckResult], on_fail: str | None, flaky: str
) -> Iterator[CheckResult]:
    """Raise or warn of failures, as *on_fail* and *flaky* say, at our caller's line."""
    for result in results:
        text = f"{result.check}: {result.explanation}"
        if (not result.reproduced and flaky == "warn") or result.warns:
            warn(result, text, stacklevel=4)
        elif result.failed or not (result.reproduced or result.finding.library):
            report(text, on_fail)
        yield result


def warn(result: CheckResult, text: str, stacklevel: int) -> None:
    """Warn, in this *text*, of a *result* that is flaky or an unclear error."""
    kind = exceptions.UnclearErrorWarning if result.reproduced else exceptions.FlakyCheckWarning
    warnings.warn(exceptions._escape_for_log(text), kind, stacklevel=stacklevel)


def report(text: str, on_fail: str | None) -> None:
    """Raise or warn of a failure as *on_fail* says, at the line that called our caller's caller."""
    if on_fail == "raise":
        raise exceptions.CheckFailedError(text)
    if on_fail == "warn":
        warnings.warn(exceptions._escape_for_log(text), stacklevel=4)


@contextlib.contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[], object]]:
    """Show a bar of tqdm if it is installed, in a terminal and outside pytest.

    Yields the function that counts a step of *total*.
    """
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield lambda: None
        return

    class Bar(tqdm):  # type: ignore[misc]
        # A monitor thread would be running at each fork of a trial. And tqdm's own lock settles the
        # default start method of multiprocessing, which the user may want to set later.
        monitor_interval = 0
        _lock = threading.RLock()

    is_off = True if "PYTEST_CURRENT_TEST" in os.environ else None  # None: unless in a terminal.
    with Bar(desc=title, total=total, disable=is_off) as shown:
        yield shown.update
