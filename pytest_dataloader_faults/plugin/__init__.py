"""The pytest plugin: its hooks, its fixtures and its marker.

Every run of pytest loads it, whether or not a test needs it. So it imports the options, and
everything else where a test, or the header, needs that.

Some facts about options of pytest. Most of its own plugins can be left out, as by "-p no:terminal"
or "-p no:capture", and the options that they declare are not there then: config.option has no
attribute of that name. So options are read with a default, except those of this plugin.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    DataLoaderFaultsError,
    InjectionError,
    InvalidArgumentError,
    LostProcessError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.plugin import _collector, _failures, _items, _options, _pyfakefs

if TYPE_CHECKING:
    from pytest_dataloader_faults._engine.folder_copies import DamagedCopies
    from pytest_dataloader_faults.injection import ArmedFaults
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck
    from pytest_dataloader_faults.plugin._injector import PytestFaultInjector

_OUR_FIXTURES = {"fault_check", "dataloader_faults", "fake_dataset_fs", "damaged_copy"}
"""The fixtures of one fault need no entry here: they request ``dataloader_faults``."""
_NO_PARAMETER = (
    "fault_check must be a parameter of the test function, for the test to become one item per"
    " check. Methods of a unittest.TestCase cannot be parametrized, and getfixturevalue() comes too"
    " late: use a plain function, or call check_dataset() in the method"
)
_NO_COPY = (
    "damaged_copy was never called, so nothing was damaged: call it, as in"
    " damaged_copy(folder, TruncatedFile('*.npy')), or do not request it"
)
_injector = pytest.StashKey["PytestFaultInjector"]()
_copies = pytest.StashKey["DamagedCopies"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    _options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Find out which engine can run here, if the header will name it.

    A child process does, for a few milliseconds. It is gone before the first conftest is loaded, so
    that no code of the user's waits for it, or gets a signal for its end.
    """
    given = vars(early_config.known_args_namespace)
    is_shown = given.get("verbose", -1) >= 0 and not given.get("no_header")
    if is_shown and "PYTEST_XDIST_WORKER" not in os.environ:  # A worker of xdist has no header.
        from pytest_dataloader_faults._engine import unavailable

        with contextlib.suppress(OSError, UnusableEnvironmentError):  # The header says it.
            unavailable()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, check the options, and describe the fixtures if they will be shown."""
    # For a name in ``pytest_plugins``, pytest would read the metadata of every installed package.
    config.pluginmanager.register(_pyfakefs)
    config.pluginmanager.register(_items)
    config.pluginmanager.register(_failures)
    config.pluginmanager.register(_collector)
    config.addinivalue_line("markers", _options.marker_line())
    config.addinivalue_line("markers", _options.for_a_terminal(_items.GPU_MARKER))
    try:
        _options.read_options(config)
        paths = _options.reports(config)
        _register_known_failures(config)
    except InvalidArgumentError as error:
        raise pytest.UsageError(str(error)) from error
    if not hasattr(config, "workerinput"):  # A process of pytest-xdist reports to the main one.
        engine = functools.partial(_collector.engine_line, config)
        for_github = _options.is_for_github(config)
        config.pluginmanager.register(_collector.Collector(engine, paths, for_github=for_github))
        if _collector.is_to_be_told(config):
            config.pluginmanager.register(_collector.UsedEngines())
        if _items.has_terminal(config):
            config.pluginmanager.register(_items.ProgressLine(config))
    if named := _options.named_datasets(config):
        from pytest_dataloader_faults.plugin._named_datasets import NamedDatasets

        config.pluginmanager.register(NamedDatasets(**named))
    listings = ("showfixtures", "show_fixtures_per_test")
    if any(config.getoption(name, default=False) for name in listings):
        _describe_fault_fixtures()


def _register_known_failures(config: pytest.Config) -> None:
    """Read the file of known failures, if there is one. Its lines follow those of the collector.

    pytest calls first what was registered last. On other systems no check is asked.
    """
    given = _options.known_files(config)
    if (given.read or given.write) and sys.platform == "linux":
        from pytest_dataloader_faults.plugin._known import KNOWN, KnownFailures

        config.stash[KNOWN] = KnownFailures(given)
        config.pluginmanager.register(config.stash[KNOWN])


def pytest_report_header(config: pytest.Config) -> str:
    """Name the engine, and say why it is not the kernel engine."""
    return f"dataloader-faults: {_collector.engine_line(config)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per check of a test that uses ``fault_check``."""
    if "fault_check" not in metafunc.fixturenames:
        return
    node = metafunc.definition
    with _options.bad_values_fail(node):
        options = _options.options_for(node.config, node.iter_markers(_items.MARKER))
        found = list(_items.named(options))
    items = [pytest.param(name, marks=marks, id=name) for name, marks in found]
    metafunc.parametrize("fault_check", items, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each item that uses one of our fixtures, for ``-m dataloader_faults`` to select it.

    Items whose check the command line leaves out are deselected.
    """
    _items.deselect(config, items)
    for item in items:
        if _OUR_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(_items.MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip an item that needs an accelerator before pytest makes its fixtures."""
    _items.require_accelerator(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that passed although a fault never fired, or nothing was armed or checked.

    An error that is meant for the user is shown without the frames of this package.
    """
    try:
        yield
    except DataLoaderFaultsError as error:
        if isinstance(error, InjectionError) and not isinstance(error, LostProcessError):
            raise
        raise _failures.without_our_frames(error) from error.__cause__
    if _injector in item.stash:
        item.stash[_injector].require_used()
        if unfired := item.stash[_injector].unfired():
            pytest.fail(unfired, pytrace=False)
    if _copies in item.stash and not item.stash[_copies].is_used:
        pytest.fail(_NO_COPY, pytrace=False)
    if _items.CHECK in item.stash:
        item.stash[_items.CHECK].require_called()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the report what a check found, and show its text so that it can be copied."""
    report = yield
    if _options.asks_check(item):
        from pytest_dataloader_faults.plugin._report import attach

        attach(item, report)
    is_of_check = call.excinfo and isinstance(call.excinfo.value, CheckFailedError)
    if report.failed and is_of_check and _failures.may_stand_as_it_is(item.config):
        assert call.excinfo
        _failures.show_as_it_stands(report, call.excinfo)
    elif report.failed and _failures.is_one_line(item.config) and _options.asks_check(item):
        _failures.leave_out_evidence(report)
    if _is_ours(item) or (call.excinfo and isinstance(call.excinfo.value, DataLoaderFaultsError)):
        _failures.disarm_commands(report)
    return report


def _is_ours(item: pytest.Item) -> bool:
    """Whether it uses a fixture of this plugin, or is of a dataset that the command line names."""
    return item.get_closest_marker(_items.MARKER) is not None or _options.asks_check(item)


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> Any:
    """With -v, show the verdict of each check."""
    return _collector.status(report) if config.get_verbosity() > 0 else None


@pytest.fixture
def fault_check(request: pytest.FixtureRequest) -> FaultCheck:
    """Run one check of the battery: ``fault_check(lambda: MyDataset(path))``.

    A test that uses it becomes one item per check. Call it with a function that
    returns a dataset, a ready DataLoader, a data module, or a dict or list of
    loaders or datasets; or with such an object. Of several loaders each is
    tried, and the result names them. ``files=``, ``loader=`` and ``contract=``
    mean what they mean for ``check_dataset()``. It returns the ``CheckResult``.
    """
    if not hasattr(request, "param"):
        pytest.fail(_NO_PARAMETER, pytrace=False)
    return _items.check_of(request.node, request.param)


@pytest.fixture
def dataloader_faults(request: pytest.FixtureRequest) -> Iterator[PytestFaultInjector]:
    """Inject faults into DataLoader workers: ``.inject(ReadError("*.jpg"))``.

    ``inject(*faults)`` arms faults for the rest of the test, around your own
    loop over a loader; the test fails if one of them never fires.
    ``run(make_dataset, *faults)`` tries a dataset in a disposable process and
    returns the ``Outcome``; its faults have to fire, too.
    ``sweep(make_dataset)`` lets each open and each read fail in turn.
    ``explore(make_dataset)`` searches for faults that a dataset does not
    survive. The marker, the options and the ini keys hold for all of them.
    """
    options = _items.options_of(request.node)
    from pytest_dataloader_faults.plugin._injector import PytestFaultInjector

    with PytestFaultInjector(options, request.node) as injector:
        request.node.stash[_injector] = injector
        yield injector


@pytest.fixture
def damaged_copy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DamagedCopies]:
    """Copy a folder, and damage it: ``damaged_copy(data, TruncatedFile("*.h5"))``.

    For files that the test's own process opens, as a dataset does in its
    constructor: the other fixtures reach DataLoader workers only. It returns
    the ``pathlib.Path`` of the copy, which the end of the test removes. Faults
    are ``TruncatedFile``, ``CorruptedFile``, and ``OpenError`` with
    ``errno.ENOENT`` for files that are missing. One that alters no file is
    refused. ``links="symlink"`` makes symbolic links in place of copies of the
    other files: code that writes to such a file writes to your own.
    """
    from pytest_dataloader_faults._engine.folder_copies import DamagedCopies

    with DamagedCopies(tmp_path_factory.getbasetemp()) as copies:
        request.node.stash[_copies] = copies
        yield copies


_fault_fixtures: list[tuple[Callable[..., Any], str, str]] = []
"""The function, the kind of fault and the example of each fixture that arms one fault."""


def _fault_fixture(kind: str, example: str) -> Any:
    """A fixture that arms a fault of *kind*."""

    def arm_fault(dataloader_faults: PytestFaultInjector) -> Callable[..., ArmedFaults]:
        return dataloader_faults.arming(kind, example)

    _fault_fixtures.append((arm_fault, kind, example))
    return pytest.fixture(arm_fault)


def _describe_fault_fixtures() -> None:
    """Give the fixtures that arm one fault the docstrings of their faults, in short lines."""
    import textwrap

    from pytest_dataloader_faults.faults import KINDS

    for arm_fault, kind, example in _fault_fixtures:
        first, *others = (inspect.getdoc(KINDS[kind]) or "").split("\n\n")
        arming = (
            f"It arms ``faults.{kind}`` in DataLoader workers, with the same arguments, and"
            " returns a handle with ``fired``."
        )
        texts = [f"``{example}``: {first}", arming, *others]
        arm_fault.__doc__ = "\n\n".join(textwrap.fill(text, 76) for text in texts)


open_errors = _fault_fixture("OpenError", 'open_errors("*.jpg", errno.EACCES)')
eio_reads = _fault_fixture("ReadError", 'eio_reads("*.jpg", nth=2)')
short_reads = _fault_fixture("ShortRead", 'short_reads("*.bin", max_bytes=100)')
truncated_files = _fault_fixture("TruncatedFile", 'truncated_files("*.npy", keep=0.5)')
corrupted_files = _fault_fixture("CorruptedFile", 'corrupted_files("*.npy", flips=3)')
closed_descriptors = _fault_fixture("ClosedDescriptor", 'closed_descriptors("*.h5")')
slow_reads = _fault_fixture("SlowRead", 'slow_reads("*.tar", seconds=2.0)')
hung_reads = _fault_fixture("HungRead", 'hung_reads("*.h5", nth=3)')
emfile = _fault_fixture("DescriptorExhaustion", "emfile(headroom=0)")
shm_exhaustion = _fault_fixture("SharedMemoryExhaustion", "shm_exhaustion(nth=2)")
killed_workers = _fault_fixture("WorkerKilled", "killed_workers(signal.SIGKILL, at=2)")
