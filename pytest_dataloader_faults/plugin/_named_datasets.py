"""Datasets that the command line names: ``--dataloader-faults-dataset``. No test file is needed.

Some facts about pytest. It collects what its arguments name, or else the ini key ``testpaths``, or
the folder where it was started. What the session's collector gives beside that becomes items like
others: options select them, and pytest-xdist spreads them. An id is split at "::". What is before
it is shown once for all of its items, and pytest-xdist keeps them together under
``--dist loadfile``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._arguments import meant
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import listed
from pytest_dataloader_faults.plugin import _items, _options

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.factory import DatasetFactory

_OPTION = "--dataloader-faults-dataset"
_SHOWN = 10
_FORM = "must be module:function, such as my_package.data:make_dataset"


class NamedDatasets:
    """Collects the datasets that *values* name; it is registered with pytest.

    *only*, *exclude*: names of checks. Where one is given, it wins over the ini key of its name;
    and *only* also over the ini key ``exclude``.
    """

    def __init__(self, values: list[str], only: list[str], exclude: list[str]) -> None:
        self._values = list(dict.fromkeys(values))
        self._chosen: dict[str, Any] = {"exclude": exclude} if exclude or only else {}
        if only:
            self._chosen["only"] = only
        self._factories: dict[str, DatasetFactory] = {}
        self._are_alone = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find each function, before pytest prints anything. Without paths, collect no files."""
        config = session.config
        if config.args_source is not config.ArgsSource.ARGS:
            config.args, config.args_source = [], config.ArgsSource.ARGS
            self._are_alone = True
        here = str(config.invocation_params.dir)
        if here not in sys.path:  # "python -m pytest" has put it there.
            sys.path.insert(0, here)
            config.add_cleanup(lambda: sys.path.remove(here))
        try:
            settings = _options.options_for(config)._replace(**self._chosen)
            self._checks = dict(_items.named(settings))
            self._factories = {value: factory_of(value) for value in self._values}
        except InvalidArgumentError as error:
            raise pytest.UsageError(str(error)) from error

    def pytest_report_header(self) -> str | None:
        """Say that no file is collected: the option may be in a configuration file."""
        if not self._are_alone:
            return None
        return f"dataloader-faults: no test file, as no path is given; {', '.join(self._values)}"

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Have the session collect the datasets, after what its arguments name."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            for value, factory in self._factories.items():
                report.result.append(
                    NamedDataset.from_parent(
                        collector, name=value, nodeid=value, factory=factory, checks=self._checks
                    )
                )
        return report


class NamedDataset(pytest.Collector):
    """The items of one dataset, one for each check."""

    def __init__(
        self,
        *,
        factory: DatasetFactory,
        checks: dict[str, list[pytest.MarkDecorator]],
        **node: Any,
    ) -> None:
        super().__init__(**node)
        self.factory = factory
        self._checks = checks

    def collect(self) -> Iterator[pytest.Item]:
        """Make the items."""
        for name, marks in self._checks.items():
            item = NamedCheck.from_parent(self, name=name)
            alone = f"{_OPTION}={self.name} {_options.ONLY}={name}"
            item.stash[_options.NAMED] = _options.OfNamedDataset(name, alone)
            item.add_marker(_items.MARKER)
            for mark in marks:
                item.add_marker(mark)
            yield item


class NamedCheck(pytest.Item):
    """One check of a dataset that the command line names."""

    parent: NamedDataset
    cls = None
    fixturenames: tuple[str, ...] = ()

    @property
    def function(self) -> DatasetFactory:
        """As a test function has it: hooks of a user's conftest read this, and what is above."""
        return self.parent.factory

    @property
    def module(self) -> ModuleType:
        """The one that the command line names."""
        return sys.modules[self.parent.name.partition(":")[0]]

    @property
    def originalname(self) -> str:
        """The same for all items of the dataset, as that of a parametrized test function is."""
        return self.parent.name

    def runtest(self) -> None:
        """Ask the check."""
        try:
            _items.check_of(self, self.name)(self.parent.factory)
        except pytest.skip.Exception as skipped:
            skipped._use_item_location = True  # Else, it would be this line.
            raise

    def reportinfo(self) -> tuple[str, int, str]:
        """Where the function is, and the title of a failure."""
        from pytest_dataloader_faults._trial.factory import definition_of

        file, line = definition_of(self.function) or (str(self.path), 1)
        return file, line - 1, f"{self.name} of {self.parent.name}"


def factory_of(value: str) -> DatasetFactory:
    """The function that *value* names; InvalidArgumentError if it names none that can be used."""
    from pytest_dataloader_faults._trial.factory import takes_folder

    path, _, name = value.partition(":")
    if not (all(part.isidentifier() for part in path.split(".")) and name.isidentifier()):
        raise _refused(value, f"{_FORM}{_hint(path, name)}")
    factory = _attribute(value, _module(value, path), name)
    try:
        takes_folder(factory)
    except InvalidArgumentError as error:
        raise _refused(value, f"cannot be called: {error}") from error
    return factory


def _hint(path: str, name: str) -> str:
    if "." in name:
        return f": write a function at the top of the module that returns what {name} gives"
    if os.sep in path:
        return ": give the module by the name under which Python imports it, and not by its path"
    return ""


def _module(value: str, path: str) -> ModuleType:
    from pytest_dataloader_faults.plugin._failures import place_of

    try:
        return importlib.import_module(path)
    except (Exception, SystemExit, pytest.skip.Exception, pytest.fail.Exception) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{path}.".startswith(f"{missing}."):
            raise _refused(value, _without_module(path, missing)) from error
        raised = f"{type(error).__name__}: {error}{place_of(error)}"
        raise _refused(value, f"cannot be used: importing {path} raised {raised}") from error


def _without_module(path: str, missing: str) -> str:
    file = f" Leave out {path[-3:]!r}." if path.endswith(".py") else ""
    return (
        f"cannot be used: there is no module {missing!r} in {os.getcwd()} or elsewhere on sys.path."
        f"{file} Start pytest in the folder that has it, set the ini key pythonpath, or install the"
        " package"
    )


def _attribute(value: str, module: ModuleType, name: str) -> DatasetFactory:
    if not hasattr(module, name):
        problem = f"cannot be used: {module.__name__} has no {name!r}. {_known(module, name)}"
        raise _refused(value, problem)
    found: DatasetFactory = getattr(module, name)
    return found


def _known(module: ModuleType, name: str) -> str:
    """The names of *module* that are near *name*, or else what it defines; no other modules."""
    held = vars(module)
    names = [each for each in dir(module) if not inspect.ismodule(held.get(each))]
    if question := meant(name, names):
        return question
    own = [
        each
        for each, made in held.items()
        if callable(made) and getattr(made, "__module__", None) == module.__name__
    ]
    if not own:
        return "It defines no function and no class"
    return f"Its functions and classes: {listed(sorted(own), _SHOWN)}"


def _refused(value: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"dataset={value!r} from {_OPTION} {problem}")
