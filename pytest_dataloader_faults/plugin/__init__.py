"""The pytest plugin: hooks, fixtures and the marker. What they do is done elsewhere.

Loading it imports neither torch nor Hypothesis nor pyfakefs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._engine import is_portable, start_probe, unavailable
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin import _gpu, _options
from pytest_dataloader_faults.plugin._options import Settings

if TYPE_CHECKING:
    from pytest_dataloader_faults.injection import ArmedFaults, FaultInjector
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck
    from pytest_dataloader_faults.plugin._injector import PytestFaultInjector


pytest_plugins = ("pytest_dataloader_faults.plugin._pyfakefs",)

_MARKER = "dataloader_faults"
_CHECK = "fault_check"
_INJECTOR = "dataloader_faults"
_OF_FILES = "fake_dataset_fs"
_NO_PARAMETER = (
    "fault_check must be a parameter of the test function, for the test to become one item per"
    " check. Methods of a unittest.TestCase cannot be parametrized, and getfixturevalue() comes too"
    " late: use a plain function, or call check_dataset() in the test"
)
_injector = pytest.StashKey["FaultInjector"]()
_check = pytest.StashKey["FaultCheck"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    _options.add_options(parser)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin to find out what this machine can do, if there will be a header to tell it in.

    That takes a child process a few milliseconds, in which pytest goes on starting.
    """
    given = early_config.known_args_namespace
    is_shown = given.verbose >= 0 and not given.no_header
    if is_shown and "PYTEST_XDIST_WORKER" not in os.environ:  # One of xdist's prints no header.
        start_probe()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker and check the options."""
    config.addinivalue_line("markers", _options.marker_line())
    config.addinivalue_line("markers", _gpu.MARKER_LINE)
    try:
        _options.settings_for(config, ())
    except InvalidArgumentError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Which engine is taken, and why not the kernel's."""
    asked = _options.settings_for(config, ()).engine == "python"
    reason = "as asked for" if asked else unavailable()
    if reason is None:
        return f"dataloader-faults: kernel engine, Linux {os.uname().release}"
    if is_portable():
        return f"dataloader-faults: python engine (Python-level reads only): {reason}"
    return f"dataloader-faults: no engine, tests that need one are skipped: {reason}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per check of a test that asks for ``fault_check``."""
    if _CHECK not in metafunc.fixturenames:
        return
    from pytest_dataloader_faults.plugin._fault_check import items_for

    marks = metafunc.definition.iter_markers(_MARKER)
    names: list[str] | str
    try:
        settings = _options.settings_for(metafunc.config, marks)
        names = items_for(settings)
    except InvalidArgumentError as error:
        names = f"{metafunc.definition.nodeid}: {error}"
    if isinstance(names, str):  # Not above: the report would show both errors.
        pytest.fail(names, pytrace=False)
    metafunc.parametrize(_CHECK, [_item_for(name) for name in names], indirect=True)


def _item_for(check: str) -> Any:
    """A parameter for *check*, or for a sweep, marked with what it needs."""
    from pytest_dataloader_faults.battery.checks import CHECKS

    marks = [pytest.mark.gpu] if check in CHECKS and CHECKS[check].gpu else []
    return pytest.param(check, marks=marks, id=check)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every item that uses a fixture of ours, so that ``-m dataloader_faults`` selects it."""
    for item in items:
        if {_CHECK, _INJECTOR, _OF_FILES} & set(getattr(item, "fixturenames", ())):
            item.add_marker(_MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs an accelerator before its fixtures are made."""
    _gpu.require(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that passed although its fault never fired, or its check was never asked, fails."""
    yield
    if _injector in item.stash and (unfired := item.stash[_injector].unfired()):
        pytest.fail(unfired, pytrace=False)
    if _check in item.stash:
        item.stash[_check].require_called()


def _settings(request: pytest.FixtureRequest) -> Settings:
    """What holds for the test of *request*; skips or fails it where the engine is missing."""
    wrong = None
    try:
        settings = _options.settings_for(request.config, request.node.iter_markers(_MARKER))
    except InvalidArgumentError as error:
        wrong = str(error)
    if wrong:  # Not above: the report would show both errors.
        pytest.fail(wrong, pytrace=False)
    reason = None if settings.engine != "kernel" and is_portable() else unavailable()
    if reason is not None and settings.engine == "auto":
        pytest.skip(f"no engine can run here: {reason}")
    if reason is not None:
        pytest.fail(f"engine={settings.engine!r} cannot run here: {reason}", pytrace=False)
    return settings


@pytest.fixture
def fault_check(request: pytest.FixtureRequest) -> FaultCheck:
    """Ask one check of the battery about your dataset: ``fault_check(lambda: MyDataset(path))``.

    A test that uses it becomes one item per check. Call it with a factory of a dataset or of a
    ready DataLoader, and if need be with ``files=``, ``loader=`` and ``contract=``, as in
    ``check_dataset()``. It returns the ``CheckResult``. In a test that is marked
    ``dataloader_faults(only="sweep")``, call ``fault_check.sweep(...)`` instead.
    """
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

    if not hasattr(request, "param"):
        pytest.fail(_NO_PARAMETER, pytrace=False)
    is_first = getattr(request, "param_index", 0) == 0
    check = FaultCheck(request.param, _settings(request), request.node, is_first=is_first)
    request.node.stash[_check] = check
    return check


@pytest.fixture
def dataloader_faults(request: pytest.FixtureRequest) -> Iterator[PytestFaultInjector]:
    """Inject faults into DataLoader workers: ``.inject(*faults)``, ``.run(make_dataset, *faults)``.

    ``inject`` arms faults for the rest of the test, around your own loop over a loader; the test
    fails if one of them never fires. ``run(make_dataset, *faults)`` tries a dataset in a
    disposable process and returns the ``Outcome``; its faults have to fire, too.
    ``explore(make_dataset)`` searches for a schedule of faults that convicts a dataset.
    """
    from pytest_dataloader_faults.plugin._injector import PytestFaultInjector

    with PytestFaultInjector(_settings(request), request.node) as injector:
        request.node.stash[_injector] = injector
        yield injector


def _arming(injector: FaultInjector, kind: str) -> Callable[..., ArmedFaults]:
    from pytest_dataloader_faults import faults

    make = getattr(faults, kind)

    def arm(*args: Any, **kwargs: Any) -> ArmedFaults:
        return injector.inject(make(*args, **kwargs))

    arm.__doc__ = make.__doc__
    return arm


@pytest.fixture
def open_errors(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Make opens fail in DataLoader workers: ``open_errors("*.jpg", errno.EACCES)``.

    Takes the arguments of ``faults.OpenError``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "OpenError")


@pytest.fixture
def eio_reads(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Make reads fail with EIO in DataLoader workers: ``eio_reads("*.jpg", nth=2)``.

    Takes the arguments of ``faults.ReadError``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "ReadError")


@pytest.fixture
def short_reads(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Make reads short in DataLoader workers: ``short_reads("*.bin", max_bytes=100)``.

    Takes the arguments of ``faults.ShortRead``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "ShortRead")


@pytest.fixture
def truncated_files(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Make files shorter for DataLoader workers: ``truncated_files("*.npy", keep=0.5)``.

    Takes the arguments of ``faults.TruncatedFile``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "TruncatedFile")


@pytest.fixture
def corrupted_files(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Change bytes of files for DataLoader workers: ``corrupted_files("*.npy", flips=3)``.

    Takes the arguments of ``faults.CorruptedFile``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "CorruptedFile")


@pytest.fixture
def closed_descriptors(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Close descriptors under the dataset in DataLoader workers: ``closed_descriptors("*.h5")``.

    Takes the arguments of ``faults.ClosedDescriptor``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "ClosedDescriptor")


@pytest.fixture
def slow_reads(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Make reads late in DataLoader workers: ``slow_reads("*.tar", seconds=2.0)``.

    Takes the arguments of ``faults.SlowRead``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "SlowRead")


@pytest.fixture
def hung_reads(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Make reads hang in DataLoader workers until the test ends: ``hung_reads("*.h5", nth=3)``.

    Takes the arguments of ``faults.HungRead``; returns a handle with ``fired``. Give the loader a
    ``timeout``.
    """
    return _arming(dataloader_faults, "HungRead")


@pytest.fixture
def emfile(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Leave DataLoader workers without file descriptors: ``emfile(headroom=0)``.

    Takes the arguments of ``faults.DescriptorExhaustion``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "DescriptorExhaustion")


@pytest.fixture
def shm_exhaustion(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Leave DataLoader workers without room in /dev/shm: ``shm_exhaustion(nth=2)``.

    Takes the arguments of ``faults.SharedMemoryExhaustion``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "SharedMemoryExhaustion")


@pytest.fixture
def killed_workers(dataloader_faults: FaultInjector) -> Callable[..., ArmedFaults]:
    """Kill a DataLoader worker: ``killed_workers(signal.SIGKILL, at=2, worker=0)``.

    Takes the arguments of ``faults.WorkerKilled``; returns a handle with ``fired``.
    """
    return _arming(dataloader_faults, "WorkerKilled")
