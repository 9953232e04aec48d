"""The pytest plugin: its hooks, its fixtures and its marker.

Every run of pytest loads it, whether or not a test needs it. So it only imports the options, and
imports everything else when a test or the header needs it.
"""

# Most of pytest's own plugins can be disabled, for example by "-p no:terminal" or "-p no:capture".
# Then their options do not exist: config.option does not have an attribute of that name. So options
# are read with a default, except those of this plugin.

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._settings import spared_folders
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableEnvironmentError
from pytest_dataloader_faults.plugin import _failures, _items, _options, _report
from pytest_dataloader_faults.plugin._options import MARKER

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

    from pytest_dataloader_faults.injection import ArmedFaults, FaultInjector
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

_OUR_FIXTURES = {"fault_check", "fault_injector", "fake_dataset_fs"}
"""The fixtures of one fault need no entry here: they request ``fault_injector``."""
_FIXTURES_OF_PYFAKEFS = {"fs", "fs_class", "fs_module", "fs_session"}
_NO_PARAMETER = (
    "fault_check must be a parameter of the test function, so that the test becomes one item per"
    " check. Methods of a unittest.TestCase cannot be parametrized, and getfixturevalue() comes too"
    " late: use a plain function, or call check_dataset() in the method"
)
_injector = pytest.StashKey["FaultInjector"]()
_requested = pytest.StashKey[list[str]]()
"""The fixtures of one fault that an item has requested, until it calls one."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks."""
    pluginmanager.add_hookspecs(_items.Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    _options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Find out whether the engine can run here, if the header would say that it cannot.

    A child process does, for a few milliseconds. It exits before the first conftest is loaded, so
    that the user's code does not wait for it or receive a signal when it exits.
    """
    arguments = vars(early_config.known_args_namespace)
    is_shown = arguments.get("verbose", -1) >= 0 and not arguments.get("no_header")
    if is_shown and "PYTEST_XDIST_WORKER" not in os.environ:  # A worker of xdist has no header.
        from pytest_dataloader_faults._engine import explain_missing_engine

        with contextlib.suppress(OSError, UnusableEnvironmentError):  # The header says it.
            explain_missing_engine()


def _spare_temporary_folder(config: pytest.Config) -> None:
    """Let files in pytest's temporary folder be changed under ``inject``, as tests expect it."""

    def folders() -> tuple[str, ...]:
        from pytest_dataloader_faults._engine.fake import fake_files

        factory = getattr(config, "_tmp_path_factory", None)  # None with -p no:tmpdir.
        # While there are fake files, it would create the folder among these.
        return (str(factory.getbasetemp()),) if factory and not fake_files() else ()

    spared_folders.append(folders)
    config.add_cleanup(lambda: spared_folders.remove(folders))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, check the options, and describe the fixtures if they will be shown."""
    _spare_temporary_folder(config)
    # For a name in ``pytest_plugins``, pytest would read the metadata of every installed package.
    config.pluginmanager.register(_items)
    for line in (_options.MARKER_LINE, _options.GPU_LINE):
        config.addinivalue_line("markers", line)
    try:
        _items.register_checks(config)
        _options.read_options(config)
        _report.read_baseline(config)
        if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the main process.
            config.pluginmanager.register(_report.Collector(config))
    except InvalidArgumentError as error:
        raise pytest.UsageError(str(error)) from error
    listings = ("showfixtures", "show_fixtures_per_test")
    if any(config.getoption(name, default=False) for name in listings):
        _describe_fault_fixtures()


def pytest_report_header() -> list[str]:
    """Say why no fault can be injected here, if so."""
    from pytest_dataloader_faults._engine import explain_missing_engine

    try:
        reason = explain_missing_engine()
    except (OSError, UnusableEnvironmentError) as error:
        return [f"dataloader-faults: no engine can be started right now: {error}"]
    text = "dataloader-faults: no engine available, so tests that need one are skipped"
    return [f"{text}: {reason}"] if reason is not None else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per check of a test that uses ``fault_check``."""
    if "fault_check" not in metafunc.fixturenames:
        return
    node = metafunc.definition
    with _options.fail_on_bad_values(node):
        options = _options.options_for(node.config, node.iter_markers(MARKER))
        checks = list(_items.checks_with_marks(node.config, options))
    items = [pytest.param(name, marks=marks, id=name) for name, marks in checks]
    metafunc.parametrize("fault_check", items, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each item that uses one of our fixtures, for ``-m dataloader_faults`` to select it.

    Items whose check the command line leaves out are deselected.
    """
    _report.note_stale_entries(config, items)
    _items.deselect(config, items)
    for item in items:
        if _OUR_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip an item that needs an accelerator before pytest makes its fixtures."""
    _items.require_accelerator(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that passed although a fault never fired, or nothing was armed or checked."""
    yield
    if _injector in item.stash:
        _require_fired(item)
    if not item.stash.get(_failures.CALLED, True):
        message = "fault_check was never called: call fault_check(lambda: MyDataset(...))"
        pytest.fail(message, pytrace=False)


def _require_fired(item: pytest.Item) -> None:
    """Fail *item* if it armed no fault although it requested to, or if a fault never fired."""
    injector, requested = item.stash[_injector], item.stash.get(_requested, [])
    if requested and not injector.facts():
        names = ", ".join(requested)
        advice = f"call it, as in {requested[0]}(...), or remove it from the test's arguments"
        pytest.fail(f"{names} was never called, so no fault was armed: {advice}", pytrace=False)
    if unfired := injector.explain_unfired():
        pytest.fail(unfired, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the report what a check found, and show its text so that it can be copied."""
    if call.excinfo:
        _failures.prepare(item, call)
    report = yield
    if _items.runs_check(item):
        _report.attach(item, report)
    if report.failed and call.excinfo:
        _failures.show(item, report, call.excinfo)
    return report


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> Any:
    """With -v, show the verdict of each check."""
    return _report.status(report) if config.get_verbosity() > 0 else None


@pytest.fixture
def fault_check(request: pytest.FixtureRequest) -> FaultCheck:
    """Run one check of the battery: ``fault_check(lambda: MyDataset(path))``.

    The test becomes one item per check. Pass a function that returns a
    dataset or a DataLoader, or pass such an object itself. For one of several,
    as in a data module, pass ``part_of(make_dataset, name)``. ``files=``,
    ``loader=`` and ``contract=`` work as in ``check_dataset()``. Returns the
    ``CheckResult``.
    """
    if not hasattr(request, "param"):
        pytest.fail(_NO_PARAMETER, pytrace=False)
    options = _items.options_of(request.node)
    _items.require_settings(request.node, request.param, options)
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

    request.node.stash[_failures.CALLED] = False
    return FaultCheck(request.param, options, request.node)


@pytest.fixture
def fault_injector(request: pytest.FixtureRequest) -> Iterator[FaultInjector]:
    """Inject faults into DataLoader workers: ``.inject(ReadError("*.jpg"))``.

    ``inject(*faults)`` arms faults for the rest of the test, around your own
    loop over a loader; the test fails if one of them never fires. The seed of
    the marker, the option or the ini key applies to them.
    """
    options = _items.options_of(request.node)
    from pytest_dataloader_faults.injection import FaultInjector

    with FaultInjector(seed=options["seed"]) as injector:
        request.node.stash[_injector] = injector
        yield injector


@pytest.fixture
def fake_dataset_fs() -> Iterator[FakeFilesystem]:
    """An in-memory pyfakefs file system that DataLoader workers can see.

    Call ``fake_dataset_fs.create_file("/data/0.bin", contents=b"...")``, and
    then iterate a loader over ``/data``, with workers of any start method. File
    faults apply to its files.
    """
    from pytest_dataloader_faults.fake_files import FakeDatasetFs

    with FakeDatasetFs() as files:
        yield files


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Let loaders start workers under the fixtures of pyfakefs."""
    if fixturedef.argname in _FIXTURES_OF_PYFAKEFS and sys.platform == "linux":
        from pytest_dataloader_faults.fake_files import _with_workers

        scope = contextlib.ExitStack()
        scope.enter_context(_with_workers())
        fixturedef.addfinalizer(scope.close)  # It runs last.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let loaders start workers under the TestCase of pyfakefs."""
    unittest = sys.modules.get("pyfakefs.fake_filesystem_unittest")
    kind = getattr(item, "cls", None)
    is_fake = unittest and kind and issubclass(kind, unittest.TestCaseMixin)
    if not is_fake or sys.platform != "linux":
        return (yield)
    from pytest_dataloader_faults.fake_files import _with_workers

    with _with_workers():
        return (yield)


_FAULT_FIXTURES = dict(
    each.split("=")
    for each in (
        "open_errors=OpenError read_errors=ReadError short_reads=ShortRead slow_reads=SlowRead"
        " hung_reads=HungRead truncated_files=TruncatedFile corrupted_files=CorruptedFile"
        " closed_descriptors=ClosedDescriptor write_errors=WriteError short_writes=ShortWrite"
        " lock_errors=LockError listing_orders=ListingOrder listing_errors=ListingError"
        " stray_entries=StrayEntry connect_errors=ConnectError http_errors=HttpError"
        " connection_resets=ConnectionReset connection_closes=ConnectionClosed"
        " descriptor_exhaustion=DescriptorExhaustion memory_exhaustion=MemoryExhaustion"
        " thread_exhaustion=ThreadExhaustion shared_memory_exhaustion=SharedMemoryExhaustion"
        " killed_workers=WorkerKilled exited_workers=WorkerExited hung_workers=WorkerHung"
    ).split()
)
"""The fixtures that arm one fault, and the kind of each."""


def _make_fixture_function(name: str, kind: str) -> Callable[..., Any]:
    """Make the function of the fixture *name*, which arms a fault of *kind*."""

    def arm_fault(
        request: pytest.FixtureRequest, fault_injector: FaultInjector
    ) -> Callable[..., ArmedFaults]:
        from pytest_dataloader_faults.faults import KINDS

        requested = request.node.stash.setdefault(_requested, [])

        def arm(*args: Any, **kwargs: Any) -> ArmedFaults:
            __tracebackhide__ = True
            requested.clear()
            return fault_injector.inject(KINDS[kind](*args, **kwargs))

        requested.append(name)
        return arm

    return arm_fault


_FIXTURE_FUNCTIONS = {
    name: _make_fixture_function(name, kind) for name, kind in _FAULT_FIXTURES.items()
}
globals().update({name: pytest.fixture(each) for name, each in _FIXTURE_FUNCTIONS.items()})


def _describe_fault_fixtures() -> None:
    """Give the fixtures that arm one fault the docstrings of their faults, in short lines."""
    import textwrap

    from pytest_dataloader_faults.faults import KINDS

    for name, kind in _FAULT_FIXTURES.items():
        summary, *paragraphs = (inspect.getdoc(KINDS[kind]) or "").split("\n\n")
        arming = (
            f"Injects ``faults.{kind}`` into DataLoader workers until the test ends. Takes the same"
            " arguments, and returns a handle whose ``fired`` counts how often the fault occurred."
        )
        texts = [f"``{name}(...)``: {summary}", arming, *paragraphs]
        _FIXTURE_FUNCTIONS[name].__doc__ = "\n\n".join(textwrap.fill(text, 76) for text in texts)
