"""The items of checks: which there are, what they need, and how they are called."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin import _options
from pytest_dataloader_faults.plugin._options import MARKER

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.checks import Check

_DEVICE_NODES = "nvidiactl kfd dxg dri/renderD* accel/accel* davinci[0-9]*".split()
"""In /dev: of CUDA, ROCm, WSL, Intel's and other accelerators, and Ascend."""
NOT_APPLICABLE = pytest.StashKey[str]()
"""Why an item was skipped before its check, which cannot run on this machine."""
_is_configured = pytest.StashKey[bool]()
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
    """Register the checks of plugins and conftest.py files until the end of this run."""
    config.stash[_is_configured] = True
    try:
        lists = config.hook.pytest_dataloader_faults_checks()
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{_HOOK}(): {error}") from error
    except Exception as error:
        message = f"{_HOOK}() raised {type(error).__name__}: {error}"
        raise InvalidArgumentError(message) from error
    # A run may be within another one, as in tests of plugins. It has only its own checks.
    if sys.platform == "linux" and (lists or "pytest_dataloader_faults.battery" in sys.modules):
        from pytest_dataloader_faults.battery.checks import replace_registered

        config.add_cleanup(replace_registered(reversed(lists)))


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Refuse the checks of a conftest.py below the rootdir, which pytest loads late."""
    config = manager.getplugin("pytestconfig")
    if hasattr(plugin, _HOOK) and config and _is_configured in config.stash:
        path = getattr(plugin, "__file__", plugin)
        raise pytest.Collector.CollectError(_LATE.format(path, _HOOK, config.rootpath))


def checks_with_marks(
    config: pytest.Config, options: Mapping[str, Any]
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

    is_named = options["only"] is not None or _options.typed(config, "only") is not None
    chosen = {name: options[name] for name in ("only", "exclude", "expected_failures")}
    for name in select_checks(**chosen):
        uses_accelerator = CHECKS[name].scenario.uses_accelerator
        is_possible = not _requirement(name, options)
        if uses_accelerator and not _options.typed(config, "require-gpu"):
            is_possible &= any(glob.glob(f"/dev/{each}") for each in _DEVICE_NODES)
        if is_named or is_possible:
            yield name, [pytest.mark.gpu] if uses_accelerator else []


def _requirement(name: str, options: Mapping[str, Any]) -> str:
    """What the settings of a test must have for the check *name*; "" if they have it."""
    from pytest_dataloader_faults._settings import Settings
    from pytest_dataloader_faults.battery.checks import CHECKS, missing_requirement

    return missing_requirement(CHECKS[name], Settings(**_options.settings_in(options)))


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those of *items* whose check the command line selects, and those without a check."""
    checks = _options.checks_to_keep(config)
    if checks is None:
        return
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_kept = not runs_check(item) or check_name_of(item) in checks
        (selected if is_kept else left_out).append(item)
    if left_out:
        items[:] = selected
        config.hook.pytest_deselected(items=left_out)


def options_of(node: pytest.Item) -> dict[str, Any]:
    """Return the options of an item; skips the item if the engine cannot run."""
    from pytest_dataloader_faults._engine import explain_missing_engine

    with _options.fail_on_bad_values(node):
        options = _options.options_for(node.config, node.iter_markers(MARKER))
    if (reason := explain_missing_engine()) is not None:
        pytest.skip(f"no engine can run here: {reason}")
    return options


def require_settings(node: pytest.Item, name: str, options: Mapping[str, Any]) -> None:
    """Skip *node* if its *options* lack what the check *name* needs."""
    if requirement := _requirement(name, options):
        node.stash[NOT_APPLICABLE] = requirement
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
    from pytest_dataloader_faults._trial.resources import missing_accelerator

    reason = missing_accelerator()
    if reason and _options.typed(item.config, "require-gpu"):
        pytest.fail(f"{_options.flag('require-gpu')}: {reason}", pytrace=False)
    if reason:
        item.stash[NOT_APPLICABLE] = reason
        pytest.skip(reason)


def runs_check(node: pytest.Item) -> bool:
    """Whether *node* runs a check."""
    return "fault_check" in getattr(node, "fixturenames", ())


def check_name_of(node: pytest.Item) -> str:
    """The name of the check of *node*, or of the fixture if it cannot be parametrized."""
    parameters = getattr(getattr(node, "callspec", None), "params", {})
    return str(parameters.get("fault_check", "fault_check"))


def id_of(node: pytest.Item) -> str:
    """The id of *node*, without the group that pytest-xdist appends.

    It does so under ``--dist loadgroup``. pytest cannot run an item by such an id.
    """
    return f"{node.parent.nodeid}::{node.name}" if node.parent else node.nodeid


def test_of(node: pytest.Item) -> str:
    """The id of the test of *node*, without the check of this item."""
    return strip_check(id_of(node), check_name_of(node))


def strip_check(nodeid: str, check: str) -> str:
    """The id of the test, without the *check* of one of its items."""
    name, _, parameters = nodeid.partition("[")
    prefix, _, suffix = f"-{parameters[:-1]}-".partition(f"-{check}-")
    # An id may itself start or end with a dash, for example with a parameter -1.
    other_parameters = "-".join(filter(None, (prefix[1:], suffix[:-1])))
    return f"{name}[{other_parameters}]" if other_parameters else name
