"""The fixture ``fault_injector``: a FaultInjector that notes whether its test used it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.faults import KINDS
from pytest_dataloader_faults.injection import FaultInjector

if TYPE_CHECKING:
    from pytest_dataloader_faults.faults import Fault
    from pytest_dataloader_faults.injection import ArmedFaults


class PytestFaultInjector(FaultInjector):
    """Faults for one test."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self._requested: list[str] = []
        self._used = False

    def make_arm_function(self, kind: str, example: str) -> Callable[..., ArmedFaults]:
        """The value of a fixture of one fault: a function that arms it; *example*: such a call."""
        self._requested.append(example)

        def arm(*args: Any, **kwargs: Any) -> ArmedFaults:
            __tracebackhide__ = True
            self._used = True
            return self.inject(KINDS[kind](*args, **kwargs))

        return arm

    def require_used(self) -> None:
        """Fail a test that requested fixtures of one fault, but armed none."""
        if self._requested and not self._used:
            names = ", ".join(each.partition("(")[0] for each in self._requested)
            advice = f"call it, as in {self._requested[0]}, or remove it from the test's arguments"
            pytest.fail(f"{names} was never called, so no fault was armed: {advice}", pytrace=False)

    def inject(self, *faults: Fault) -> ArmedFaults:
        """Arm *faults* for the workers of the first loader; see ``inject``."""
        self._used = True
        return super().inject(*faults)
