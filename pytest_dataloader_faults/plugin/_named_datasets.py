"""Datasets that the command line names: ``--dataloader-faults-dataset``. No test file is needed.

Some facts about pytest. It collects what its arguments name, or else the ini key ``testpaths``, or
the folder where it was started. What the session's collector adds becomes items like
others: options select them, and pytest-xdist spreads them. An id is split at "::". What is before
it is shown once for all of its items, and pytest-xdist keeps them together under
``--dist loadfile``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.machinery
import inspect
import os
import shlex
import sys
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_dataloader_faults._arguments import suggest_name
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import join_some, pluralize
from pytest_dataloader_faults.plugin import _items, _options
from pytest_dataloader_faults.report.run_command import PLUGIN

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.factory import DatasetFactory

_OPTION = "--dataloader-faults-dataset"
_SHOWN = 10
_SOURCES = "src"
"""The usual folder of packages that are not next to the tests."""
_FORM = "must be module:function, such as my_package.data:make_dataset, or module:class"
_LITERALS = (
    "must have Python literals as arguments, such as 'data/train', 3 or None: put strings in quotes"
)


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
            self._are_alone = not config.pluginmanager.has_plugin(PLUGIN)
        folder = str(config.invocation_params.dir)
        if folder not in sys.path:  # "python -m pytest" has put it there.
            sys.path.insert(0, folder)
            config.add_cleanup(lambda: sys.path.remove(folder))
        try:
            settings = _options.options_for(config)._replace(**self._chosen)
            self._checks = dict(_items.checks_with_marks(settings))
        except InvalidArgumentError as error:
            raise pytest.UsageError(_options.as_typed(config, str(error))) from error
        started = config.pluginmanager.get_plugin(PLUGIN)
        for value in self._values:
            try:
                self._factories[value] = factory_of(value, is_option=started is None)
            except InvalidArgumentError as error:
                option_text = f"dataset={value!r} from {_OPTION}"
                subject = option_text if started is None else repr(started.target)
                raise pytest.UsageError(f"{subject} {error}") from error

    def pytest_report_header(self) -> str | None:
        """Say that no file is collected: the option may be in a configuration file."""
        if not self._are_alone:
            return None
        names = ", ".join(self._values)
        return f"dataloader-faults: no path was given, so no test file is collected; {names}"

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
                        collector,
                        name=value,
                        nodeid=_id_of(value),
                        factory=factory,
                        checks=self._checks,
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
        """Create the items."""
        for name, marks in self._checks.items():
            item = NamedCheck.from_parent(self, name=name)
            alone = f"{_quote(f'{_OPTION}={self.name}')} {_options.ONLY}={name}"
            item.stash[_options.NAMED] = _options.NamedItem(name, alone)
            item.add_marker(_items.MARKER)
            for mark in marks:
                item.add_marker(mark)
            yield item


_IN_IDS = {"[": "%5B", "]": "%5D", "::": "%3A%3A"}
"""What pytest splits an id at, and how URLs spell it."""


def _id_of(value: str) -> str:
    """Escape *value* for the first part of an id. Its arguments may contain any character."""
    for part, text in _IN_IDS.items():
        value = value.replace(part, text)
    return value


def _quote(text: str) -> str:
    """*text* for a shell, in double quotes where it has single ones itself."""
    return f'"{text}"' if "'" in text and not set('"$`!\\') & set(text) else shlex.quote(text)


class NamedCheck(pytest.Item):
    """One check of a dataset that the command line names."""

    parent: NamedDataset
    cls = None
    fixturenames: tuple[str, ...] = ()

    @property
    def function(self) -> Any:
        """The same attribute as of a test function, which hooks in a user's conftest may read."""
        factory = self.parent.factory
        return factory.func if isinstance(factory, functools.partial) else factory

    @property
    def module(self) -> ModuleType:
        """The function that the command line names."""
        return sys.modules[self.parent.name.partition(":")[0]]

    @property
    def originalname(self) -> str:
        """The original name, the same for all items of the dataset, as for parametrized tests."""
        return self.parent.name

    def runtest(self) -> None:
        """Run the check."""
        try:
            _items.check_of(self, self.name)(self.parent.factory)
        except pytest.skip.Exception as skipped:
            skipped._use_item_location = True  # Otherwise, this line is reported.
            raise

    def reportinfo(self) -> tuple[str, int, str]:
        """Where the function is, or else its module, and the title of a failure."""
        from pytest_dataloader_faults._trial.factory import definition_of

        module = getattr(self.module, "__file__", None) or str(self.path)
        file, line = definition_of(self.function) or (module, 1)
        return file, line - 1, f"{self.name} of {self.parent.name}"


class _NamedCall(NamedTuple):
    """The function that a value names. *arguments*: by position and by name, or None."""

    module: str
    name: str
    arguments: tuple[list[Any], dict[str, Any]] | None


def factory_of(value: str, *, is_option: bool = True) -> DatasetFactory:
    """The function that *value* names, with the arguments of *value*.

    *is_option*: whether the option names it, and not the command ``run``.

    Raises:
        InvalidArgumentError: It names none that can be used. The text does not begin with *value*.
    """
    call = _parse(value)
    target: Any = _get_attribute(_import_module(call.module), call.name)
    _require_callable(target, call, is_option=is_option)
    if call.arguments is None:
        return target  # type: ignore[no-any-return]  # The trial rejects other objects.
    args, kwargs = call.arguments
    return functools.partial(target, *args, **kwargs)


def _parse(value: str) -> _NamedCall:
    path, _, text = value.partition(":")
    expression: ast.expr | None = None
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        expression = ast.parse(text.strip(), mode="eval").body
    is_call = isinstance(expression, ast.Call)
    target = expression.func if isinstance(expression, ast.Call) else expression
    is_dotted = all(part.isidentifier() for part in path.split("."))
    if not (is_dotted and isinstance(target, ast.Name)):
        raise InvalidArgumentError(f"{_FORM}{_hint(path, text)}")
    return _NamedCall(path, target.id, _arguments(expression) if is_call else None)


def _arguments(call: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of *call*, by position and by name."""
    try:
        args = [ast.literal_eval(each) for each in call.args]
        kwargs = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise InvalidArgumentError(_LITERALS) from error
    if not all(each.arg for each in call.keywords):
        raise InvalidArgumentError(_LITERALS)
    return args, kwargs


def _hint(path: str, text: str) -> str:
    module = path.partition("(")[0]
    if not text and all(part.isidentifier() for part in module.split(".")):
        return f": add a class or function of {module}, as in {module}:MyDataset"
    if os.sep in path or "\\" in path + text.partition("(")[0]:
        return ": pass the module's import name, not its path"
    name, bracket, _ = text.partition("(")
    if bracket and name.isidentifier():
        return ": its arguments are not valid Python. Put strings in quotes"
    if all(part.isidentifier() for part in name.split(".")) and "." in name:
        return f": define a function in the module that returns what {name} returns"
    return ""


def _require_callable(target: Any, call: _NamedCall, *, is_option: bool) -> None:
    """Raise InvalidArgumentError if *target* does not accept the arguments of *call*."""
    from pytest_dataloader_faults._trial.factory import takes_folder

    if call.arguments is None:
        with contextlib.suppress(InvalidArgumentError):
            takes_folder(target)
            return
    elif not callable(target):
        message = f"cannot be called: it is of type {type(target).__name__!r}. Remove the arguments"
        raise InvalidArgumentError(message)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # Written in C, without a signature.
        return
    args, kwargs = call.arguments or ([], {})
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = _describe_missing(call, signature, is_option=is_option)
        problem = problem or _describe_invalid(call, signature, error)
        raise InvalidArgumentError(f"cannot be called: {problem}") from error


def _describe_missing(call: _NamedCall, signature: inspect.Signature, *, is_option: bool) -> str:
    """Which arguments *call* lacks, and how to pass them; "" if it has a different mistake."""
    args, kwargs = call.arguments or ([], {})
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return ""
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and name not in bound
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    noun = "more argument" if call.arguments else "argument"
    problem = f"{call.name} requires {pluralize(len(names), noun)} ({', '.join(names)})"
    placeholders = [f"{name}=..." for name in names]
    if is_option:
        example = f"{call.module}:{call.name}({', '.join(placeholders)})"
        return f"{problem}. Pass Python literals in parentheses, as in '{example}'"
    options = " ".join(f"--kwarg {each}" for each in placeholders)
    return f"{problem}. Pass arguments with --arg VALUE, or by name, as in {options}"


def _describe_invalid(call: _NamedCall, signature: inspect.Signature, error: TypeError) -> str:
    """Mistakes in the arguments of *call*, other than missing arguments."""
    _, kwargs = call.arguments or ([], {})
    parameter_names = list(signature.parameters)
    free = [each for each in parameter_names if each not in kwargs]
    questions = [suggest_name(name, free) for name in kwargs if name not in parameter_names]
    question = next(filter(None, questions), "")
    return f"{call.name}: {error}. {question or _describe_parameters(signature)}"


def _describe_parameters(signature: inspect.Signature) -> str:
    """The arguments that are accepted, and which of them only by name."""
    names = [
        f"{name} (by name only)" if parameter.kind is parameter.KEYWORD_ONLY else name
        for name, parameter in signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return f"It accepts {', '.join(names)}" if names else "It accepts no arguments"


def _import_module(path: str) -> ModuleType:
    from pytest_dataloader_faults.plugin._failures import place_of

    try:
        return importlib.import_module(path)
    except (Exception, SystemExit, pytest.skip.Exception, pytest.fail.Exception) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{path}.".startswith(f"{missing}."):
            raise InvalidArgumentError(_describe_missing_module(path, missing)) from error
        raised = f"{type(error).__name__}: {error}{place_of(error)}"
        is_script = isinstance(error, SystemExit)
        advice = ". Move code that is only for a script below if __name__ == '__main__'"
        message = f"cannot be used: importing {path} raised {raised}{advice if is_script else ''}"
        raise InvalidArgumentError(message) from error


def _describe_missing_module(path: str, missing: str) -> str:
    hint = f" Omit {path[-3:]!r}." if path.endswith(".py") else ""
    if importlib.machinery.PathFinder.find_spec(missing, [os.path.abspath(_SOURCES)]):
        hint = f" It is in {_SOURCES}: pass pytest's option -o pythonpath={_SOURCES}."
    return (
        f"cannot be used: there is no module {missing!r} in {os.getcwd()} or elsewhere on sys.path."
        f"{hint} Run pytest from the folder that contains it, set the ini key pythonpath, or"
        " install the package"
    )


def _get_attribute(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        message = (
            f"cannot be used: {module.__name__} has no {name!r}. {_suggest_name(module, name)}"
        )
        raise InvalidArgumentError(message)
    return getattr(module, name)


def _suggest_name(module: ModuleType, name: str) -> str:
    """The names in *module* that are similar to *name*, or else those that it defines."""
    namespace = vars(module)
    names = [each for each in dir(module) if not inspect.ismodule(namespace.get(each))]
    if question := suggest_name(name, names):
        return question
    defined_names = [
        each
        for each, value in namespace.items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    if not defined_names:
        return "It defines no functions or classes"
    return f"Its functions and classes: {join_some(sorted(defined_names), _SHOWN)}"
