"""The items of checks: which there are, what they need, and their results for the report."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin import _failures, _options

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.checks import Check
    from pytest_dataloader_faults.outcomes import CheckResult
    from pytest_dataloader_faults.plugin._options import ItemOptions
    from pytest_dataloader_faults.report.model import Item

MARKER = "dataloader_faults"
GPU_MARKER = (
    "gpu: the test needs an accelerator. Together with dataloader_faults, the test is skipped"
    " if torch finds none, or fails with --dataloader-faults-require-gpu"
)
_DEVICE_NODES = "nvidiactl kfd dxg dri/renderD* accel/accel* davinci[0-9]*".split()
"""In /dev: of CUDA, ROCm, WSL, Intel's and other accelerators, and Ascend."""
_NOT_APPLICABLE = pytest.StashKey[str]()
"""Why an item was skipped before its check, which cannot run on this machine."""
_item = pytest.StashKey[dict[str, Any] | None]()
_no_check_selected = pytest.StashKey[bool]()
_outer_checks = pytest.StashKey[list["Check"]]()
_LATE = (
    "{}: pytest loads this file after it has read its options, which is too late for checks: move"
    " {}() to the conftest.py in {}, or to a plugin"
)


class Hooks:
    """The hooks that this plugin declares."""

    @staticmethod
    def pytest_dataloader_faults_checks() -> Iterable[Check]:  # type: ignore[empty-body]
        """Return checks to add to the battery, as a list: the decorator ``check`` makes them.

        It is called once per run, without arguments. The checks follow those of this package, in
        the order of the list.
        """


_HOOK = Hooks.pytest_dataloader_faults_checks.__name__


def register_checks(config: pytest.Config) -> None:
    """Register the checks of plugins and conftest.py files.

    A run may be within another one, as in tests of plugins. It has only its own checks.
    """
    config.stash[_outer_checks] = _take_registered()
    for implementation in config.hook.pytest_dataloader_faults_checks.get_hookimpls():
        origin = _origin_of(config, implementation.plugin)
        try:
            checks = implementation.function()
        except Exception as error:
            is_own = isinstance(error, InvalidArgumentError)
            why = f": {error}" if is_own else f" raised {type(error).__name__}: {error}"
            raise InvalidArgumentError(f"{origin}: {_HOOK}(){why}") from error
        if sys.platform == "linux":
            from pytest_dataloader_faults.battery.checks import register

            register(checks, origin)


def _take_registered() -> list[Check]:
    """Remove and return the checks that users have added, if the battery was imported."""
    if "pytest_dataloader_faults.battery.checks" not in sys.modules:
        return []
    from pytest_dataloader_faults.battery.checks import take_registered

    return take_registered()


def _origin_of(config: pytest.Config, plugin: object) -> str:
    """The file of a conftest.py or plugin, relative to pytest's rootdir if it is below."""
    kind = type(plugin)
    path = getattr(plugin, "__file__", None) or f"{kind.__module__}.{kind.__qualname__}"
    return str(path).removeprefix(f"{config.rootpath}{os.sep}")


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Refuse the checks of a conftest.py below the rootdir, which pytest loads late."""
    config = manager.getplugin("pytestconfig")
    if hasattr(plugin, _HOOK) and config and _outer_checks in config.stash:
        message = _LATE.format(_origin_of(config, plugin), _HOOK, config.rootpath)
        raise pytest.Collector.CollectError(message)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the checks of this run."""
    _take_registered()
    if outer := config.stash.get(_outer_checks, []):
        from pytest_dataloader_faults.battery.checks import put_back

        put_back(outer)


def checks_with_marks(
    config: pytest.Config, options: ItemOptions
) -> Iterator[tuple[str, list[pytest.MarkDecorator]]]:
    """Yield each check that *options* select, with the marks of its item.

    If no check can run, and most of their code cannot be imported, one item says so. A check that
    needs ranks or an accelerator, and cannot have them, is left out unless it is named.
    """
    if sys.platform != "linux":
        yield "needs-linux", []
        return
    from pytest_dataloader_faults.battery.checking import select_checks
    from pytest_dataloader_faults.battery.checks import CHECKS

    is_chosen = _options.names_checks(config, options)
    for name in select_checks(options.only, options.exclude, options.expected_failures):
        uses_accelerator = CHECKS[name].scenario.uses_accelerator
        is_possible = not _requirement(name, options)
        if uses_accelerator and not _options.typed(config, "require-gpu"):
            is_possible &= any(glob.glob(f"/dev/{each}") for each in _DEVICE_NODES)
        if is_chosen or is_possible:
            yield name, [pytest.mark.gpu] if uses_accelerator else []


def _requirement(name: str, options: ItemOptions) -> str:
    """What the settings of a test must have for the check *name*; "" if they have it."""
    from pytest_dataloader_faults._settings import Settings
    from pytest_dataloader_faults.battery.checks import CHECKS, missing_requirement

    return missing_requirement(CHECKS[name], Settings(**options.settings))


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those of *items* whose check the command line selects, and those without a check."""
    checks = _options.checks_to_keep(config)
    if checks is None:
        return
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_kept = not _options.runs_check(item) or _options.check_name_of(item) in checks
        (selected if is_kept else left_out).append(item)
    if left_out:
        items[:] = selected
        config.hook.pytest_deselected(items=left_out)
        config.stash[_no_check_selected] = not any(map(_options.runs_check, selected))


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say that the command line selects no check; pytest itself only says "deselected"."""
    if not config.stash.get(_no_check_selected, False):
        return None
    options = " ".join(_options.typed_options(config, _options.CHOICE))
    return f"dataloader-faults: no test runs a check selected by {options}"


def options_of(node: pytest.Item) -> ItemOptions:
    """Return the options of an item; skips the item if the engine cannot run."""
    from pytest_dataloader_faults._engine import explain_missing_engine

    with _options.fail_on_bad_values(node):
        options = _options.options_for(node.config, node.iter_markers(MARKER))
    if (reason := explain_missing_engine()) is not None:
        pytest.skip(f"no engine can run here: {reason}")
    return options


def require_settings(node: pytest.Item, name: str, options: ItemOptions) -> None:
    """Skip *node* if its *options* lack what the check *name* needs."""
    if requirement := _requirement(name, options):
        node.stash[_NOT_APPLICABLE] = requirement
        pytest.skip(f"{name} does not apply to this dataset: {requirement}")


def require_accelerator(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none.

    ``gpu`` without ``dataloader_faults`` may be a marker of the suite's own, with another meaning.
    If the engine cannot run, as on other systems than Linux, our fixtures say so.
    """
    if not {"gpu", MARKER} <= {mark.name for mark in item.iter_markers()}:
        return
    from pytest_dataloader_faults._engine import explain_missing_engine

    if explain_missing_engine():
        return
    from pytest_dataloader_faults._trial.accelerator import missing_accelerator

    reason = missing_accelerator()
    if reason and _options.typed(item.config, "require-gpu"):
        pytest.fail(f"{_options.flag('require-gpu')}: {reason}", pytrace=False)
    if reason:
        item.stash[_NOT_APPLICABLE] = reason
        pytest.skip(reason)


def id_of(node: pytest.Item) -> str:
    """The id of *node*, without the group that pytest-xdist appends.

    It does so under ``--dist loadgroup``. pytest cannot run an item by such an id.
    """
    return f"{node.parent.nodeid}::{node.name}" if node.parent else node.nodeid


def test_of(node: pytest.Item) -> str:
    """The id of the test of *node*, without the check of this item."""
    return strip_check(id_of(node), _options.check_name_of(node))


def strip_check(nodeid: str, check: str) -> str:
    """The id of the test, without the *check* of one of its items."""
    name, _, parameters = nodeid.partition("[")
    prefix, _, suffix = f"-{parameters[:-1]}-".partition(f"-{check}-")
    # An id may itself start or end with a dash, for example with a parameter -1.
    other_parameters = "-".join(filter(None, (prefix[1:], suffix[:-1])))
    return f"{name}[{other_parameters}]" if other_parameters else name


def record(node: pytest.Item, result: CheckResult, **facts: Any) -> None:
    """Keep *result* for the report, and add its main facts to pytest's JUnit file.

    *facts*: more arguments of ``model.item_of``.
    """
    node.stash[_item] = asdict(_describe(node, result, **facts))
    outcome = result.outcome
    properties = {
        "verdict": str(result.verdict) if result.applies else "",
        "passed": str(result.passed).lower() if result.applies else "",
        "fault": ", ".join(map(repr, outcome.schedule)) if outcome else "",
        "duration": f"{facts.get('duration', 0.0):.3f}",
        "cause": result.cause,
        "fix": result.fix,
    }
    node.user_properties += [
        (f"{MARKER}_{name}", text) for name, text in properties.items() if text
    ]


def _describe(node: pytest.Item, result: CheckResult, **facts: Any) -> Item:
    from pytest_dataloader_faults.report.model import item_of

    path, line, _ = node.location
    where = path, (line or 0) + 1
    return item_of(result, nodeid=id_of(node), test=test_of(node), where=where, **facts)


def _describe_unrun(node: pytest.Item, why: str, status: str = "") -> dict[str, Any]:
    """The item of a test whose check did not run, and *why*."""
    from pytest_dataloader_faults.outcomes import CheckResult, Finding, Verdict

    finding = Finding(Verdict.NOT_EXERCISED, why)
    result = CheckResult(_options.check_name_of(node), finding, why, applies=False)
    return asdict(_describe(node, result, status=status))


def replace_status(node: pytest.Item, old: str, new: str) -> None:
    """Let the item of *node* have the status *new*, if it has the *old* one."""
    item = node.stash[_item]
    if item and item["status"] == old:
        node.stash[_item] = {**item, "status": new}


def attach(node: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the result of *node* to *report*, with the status that pytest decides."""
    from pytest_dataloader_faults.report.model import FAILED, NOT_RUN, XFAILED

    if report.when == "setup":
        _reset(node)
    if report.failed:
        _record_failure(node, report)
    elif hasattr(report, "wasxfail") or (report.when == "call" and report.passed):
        replace_status(node, FAILED, XFAILED)
    elif report.skipped and (why := node.stash.get(_failures.NOT_RUN, "")):
        node.stash[_item] = _describe_unrun(node, why, NOT_RUN)
    elif report.skipped and (why := node.stash.get(_NOT_APPLICABLE, "")):
        node.stash[_item] = _describe_unrun(node, why)
    item = node.stash[_item]
    if item and (report.when == "call" or not report.passed):
        setattr(report, _options.ATTRIBUTE, item)


def _reset(node: pytest.Item) -> None:
    """Forget an earlier run of *node*: pytest-rerunfailures runs it again.

    pytest's JUnit file takes the properties at the teardown, so one whose fixture fails has them.
    """
    node.stash[_item] = None
    others = [each for each in node.user_properties if not each[0].startswith(f"{MARKER}_")]
    node.user_properties[:] = [*others, (f"{MARKER}_check", _options.check_name_of(node))]


def _record_failure(node: pytest.Item, report: pytest.TestReport) -> None:
    """Make the item of *node* explain the failure in *report*."""
    from pytest_dataloader_faults.report.model import ERROR, FAILED

    item = node.stash[_item]
    if item and item["status"] == FAILED:
        return
    text = report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    message = _failures.first_line(crash.message if crash else text)
    place = "the test itself" if report.when == "call" else f"the {report.when} of the test"
    sentence = f"error in {place}: {message}"
    error = {
        "status": ERROR,
        "sentence": sentence,
        "explanation": f"{sentence}\n{text}\n",
        "cause": "",
        "fix": "",
    }
    node.stash[_item] = {**(item or _describe_unrun(node, sentence)), **error}
