"""Checks that users add by the hook ``pytest_dataloader_faults_checks``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pluggy import HookImpl

    from pytest_dataloader_faults.battery.checks import Check


def pytest_dataloader_faults_checks() -> Iterable[Check]:  # type: ignore[empty-body]
    """Return checks to add to the battery, as a list: the decorator ``check`` makes them.

    It is called once per run, without arguments. The checks follow those of this package, in the
    order of the list.
    """


_LATE = (
    "{}: pytest loads this file after it has read its options, which is too late for checks: move"
    " {}() to the conftest.py in {}, or to a plugin"
)


class UserChecks:
    """The checks of a run's plugins and conftest.py files, while pytest is configured.

    A run may be within another one, as in tests of plugins. It has only its own checks.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seen: list[HookImpl] = []
        self._is_collecting = False
        self._outer = _take_registered()

    def pytest_collection(self) -> None:
        """From now on, a conftest.py is too late."""
        self._is_collecting = True

    def pytest_plugin_registered(self) -> None:
        """Register the checks of plugins that are new.

        pytest also calls this once for each plugin that was registered before this one.
        """
        for implementation in self._config.hook.pytest_dataloader_faults_checks.get_hookimpls():
            if implementation not in self._seen and sys.platform == "linux":
                self._seen.append(implementation)
                self._register(implementation)

    def _register(self, implementation: HookImpl) -> None:
        from pytest_dataloader_faults.battery.checks import HOOK, register

        origin = self._origin_of(implementation)
        if self._is_collecting:
            message = _LATE.format(origin, HOOK, self._config.rootpath)
            raise pytest.Collector.CollectError(message)
        if implementation.hookwrapper or implementation.wrapper:
            raise InvalidArgumentError(f"{origin}: {HOOK}() must not be a hook wrapper")
        try:
            entries = implementation.function()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{origin}: {HOOK}(): {error}") from error
        except Exception as error:
            message = f"{origin}: {HOOK}() raised {type(error).__name__}: {error}"
            raise InvalidArgumentError(message) from error
        register(entries, origin)

    def _origin_of(self, implementation: HookImpl) -> str:
        """The file of a conftest.py or plugin, relative to pytest's rootdir if it is below."""
        kind = type(implementation.plugin)
        path = getattr(implementation.plugin, "__file__", None)
        path = path or f"{kind.__module__}.{kind.__qualname__}"
        return str(path).removeprefix(f"{self._config.rootpath}{os.sep}")

    def pytest_unconfigure(self) -> None:
        """Remove the checks."""
        _take_registered()
        if self._outer:
            from pytest_dataloader_faults.battery.checks import put_back

            put_back(self._outer)


def _take_registered() -> list[Check]:
    """Remove and return the checks that users have added, without loading what has none yet."""
    if "pytest_dataloader_faults.battery.checks" not in sys.modules:
        return []
    from pytest_dataloader_faults.battery.checks import take_registered

    return take_registered()
