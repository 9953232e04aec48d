"""Arm faults around your own loop over a loader: ``with inject(ReadError("*.jpg")) as armed:``.

``inject`` works without pytest. It also works in the body of a Hypothesis test, where
function-scoped fixtures must not be used.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.scope import (
    FaultTotals,
    Injection,
    arm_faults,
    require_engine_for,
    require_faults,
)
from pytest_dataloader_faults._settings import check, spared_folders
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import FaultFacts
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from pytest_dataloader_faults.outcomes.stages import describe_change

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("ArmedFaults", "FaultInjector", "Injection", "inject")

_KEPT = (
    "after an injected fault, a worker tried to {}{}. The call failed with EROFS, because a fault"
    " must not destroy data. Let the test use a copy in tmp_path"
)


def inject(
    *faults: Fault, seed: int = 0, require_fired: bool = True
) -> contextlib._GeneratorContextManager[Injection]:
    """Arm *faults* in the workers that loaders start while the scope is open.

    Args:
        *faults: The faults to inject, at least one; see ``pytest_dataloader_faults.faults``.
        seed: Seed of the faults with a ``probability``.
        require_fired: Raise an error at the end if one of *faults* never fired.

    Returns:
        A context manager, which also decorates functions. Its value is an ``Injection``, with
        ``fired``, ``matched`` and ``mentioned``.

    Raises:
        EngineUnavailableError: On entry, if no fault can be injected on this machine.
        FaultNotFiredError: At the end of the scope, unless another exception leaves it.
        HarnessError: The plugin itself failed; the run proves nothing.
        InvalidArgumentError: An argument is invalid or, on entry, one of *faults* cannot happen to
            fake files, or faults are already armed in this process.

    """
    check(seed=seed, require_fired=require_fired)
    _require_some(faults)
    return _armed(faults, seed=seed, require_fired=require_fired)


def _require_some(faults: tuple[Fault, ...]) -> None:
    """Refuse other objects, and an empty list: such a test would pass and prove nothing."""
    require_faults(faults)
    if not faults:
        message = "no fault was passed. Pass at least one, such as inject(ReadError('*.jpg'))"
        raise InvalidArgumentError(message)


@contextlib.contextmanager
def _arm(*faults: Fault, seed: int) -> Iterator[Injection]:
    spared = [folder for folders in spared_folders for folder in folders()]
    injection: Injection | None = None
    try:
        with arm_faults(*faults, seed=seed, spared=spared) as injection:
            yield injection
    except BaseException:  # It may be the consequence of a refusal, but is not replaced.
        with contextlib.suppress(RuntimeWarning):
            _warn_of_refusals(injection)
        raise
    _warn_of_refusals(injection)


def _warn_of_refusals(injection: Injection | None) -> None:
    if injection and (refusals := injection.refusals):
        more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        text = _KEPT.format(describe_change(refusals[0]), more)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def _armed(faults: tuple[Fault, ...], *, seed: int, require_fired: bool) -> Iterator[Injection]:
    require_engine_for(faults)
    with _arm(*faults, seed=seed) as injection:
        yield injection
    if require_fired and (unfired := injection.explain_unfired()):
        raise FaultNotFiredError(unfired)


class ArmedFaults(FaultTotals):
    """The faults of one call of ``FaultInjector.inject``, with their counters."""

    def __init__(self, injector: FaultInjector, positions: range) -> None:
        self._injector = injector
        self._positions = positions

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        facts = self._injector.facts()
        return tuple(facts[position] for position in self._positions)


class FaultInjector:
    """Faults for one test: the value of the fixture ``fault_injector``. It works without pytest.

    All faults of an injector form one schedule. They are armed together when the first loader
    creates its iterator, so adding a fault after that is an error. The end of the scope disarms
    them.
    """

    def __init__(self, *, seed: int = 0) -> None:
        check(seed=seed)
        self._seed = seed
        self._faults: tuple[Fault, ...] = ()
        self._scope = contextlib.ExitStack()
        self._injection: Injection | None = None

    def __enter__(self) -> Self:
        """Open the scope, which arms the faults later."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Disarm the faults."""
        self._scope.close()

    def inject(self, *faults: Fault) -> ArmedFaults:
        """Add *faults* to those that are armed for the first loader, until the scope ends.

        Raises:
            EngineUnavailableError: No fault can be injected on this machine.
            InvalidArgumentError: One of *faults* cannot happen to fake files, a loader has already
                created its iterator, or faults are already armed in this process.

        """
        _require_some(faults)
        together = (*self._faults, *faults)
        require_engine_for(faults)
        if self._injection is not None:
            message = (
                f"{faults!r} were added too late: the workers have already started. Arm every fault"
                " before that"
            )
            raise InvalidArgumentError(message)
        if not self._faults:
            from pytest_dataloader_faults._engine.iterator import replace_iterators  # torch

            self._scope.enter_context(replace_iterators(self._first_iterator))
        armed = ArmedFaults(self, range(len(self._faults), len(together)))
        self._faults = together
        return armed

    def facts(self) -> tuple[FaultFacts, ...]:
        """Every fault of ``inject``, with its counters."""
        if self._injection is None:
            return tuple(FaultFacts(fault) for fault in self._faults)
        return self._injection.faults

    def explain_unfired(self) -> str | None:
        """Disarm. Describe the first fault that never fired, if there is one."""
        self._scope.close()
        injection = self._injection
        return injection.explain_unfired() if injection else explain_unfired(self.facts(), ())

    def _first_iterator(self, loader: Any, _make: object) -> Any:
        """Arm all faults, and let *loader* create its iterator under them."""
        self._scope.close()
        self._injection = self._scope.enter_context(_arm(*self._faults, seed=self._seed))
        return loader._get_iterator()
