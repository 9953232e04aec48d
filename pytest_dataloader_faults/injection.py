"""Arm faults around your own loop over a loader: ``with inject(ReadError("*.jpg")) as armed:``.

``inject`` works without pytest. It also works in the body of a Hypothesis test, where
function-scoped fixtures must not be used.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.scope import (
    FaultTotals,
    Injection,
    arm,
    engine_for,
    require_faults,
)
from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import FaultFacts, Outcome
from pytest_dataloader_faults.outcomes.fault_facts import unfired

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_dataloader_faults._trial.factory import DatasetFactory

__all__ = ("ArmedFaults", "FaultInjector", "Injection", "InjectionScope", "inject")


class _Call:
    """One call of ``inject``, as long as it is not known that its scope was entered.

    Attributes:
        file, line: Where the call is.
        text: What is wrong if its scope is never entered.
        is_gone: Whether the scope was collected, so that it can no longer be entered.
    """

    def __init__(self, faults: tuple[Fault, ...], file: str, line: int) -> None:
        self.file, self.line = file, line
        call = f"inject({', '.join(map(repr, faults))})"
        self.text = (
            f"{call} was never entered, so no fault was armed: write it into a with statement"
            f" around the loop over the loader, as in: with {call} as armed:"
        )
        self.is_gone = False
        self._calls = _noting[-1]
        self._calls[self] = None

    def settle(self) -> None:
        """The scope was entered, or it was reported that it was not."""
        self._calls.pop(self, None)

    def scope_is_gone(self) -> None:
        """The scope was collected. Warn if it was not entered, and nobody looks after that."""
        self.is_gone = True
        is_watched = self._calls is _noting[-1] and self._calls is not _unwatched
        if self in self._calls and not is_watched:
            warnings.warn_explicit(self.text, RuntimeWarning, self.file, self.line)


_unwatched: dict[_Call, None] = {}
"""The calls that were made while nobody looked after them."""
_noting = [_unwatched]
"""The last one has the calls that are made now."""


@contextlib.contextmanager
def _watched(calls: dict[_Call, None]) -> Iterator[None]:
    """Note in *calls* those that are made, until they are entered, and do not warn of them."""
    _noting.append(calls)
    try:
        yield
    finally:
        _noting.pop()


class InjectionScope(contextlib.ContextDecorator):
    """What ``inject`` gives: entered by ``with``, it arms the faults. Each serves once.

    As a decorator it arms them for each call of the function.
    """

    def __init__(
        self, call: _Call, make: Callable[[], contextlib.AbstractContextManager[Injection]]
    ) -> None:
        self._call = call
        self._make = make
        self._armed: contextlib.AbstractContextManager[Injection] | None = None

    def __enter__(self) -> Injection:
        """Arm the faults; the value has their counters."""
        self._call.settle()
        if self._armed is not None:
            raise InvalidArgumentError("this inject(...) was entered before: call inject() again")
        self._armed = self._make()
        return self._armed.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Disarm them. Raises if one of them never fired."""
        assert self._armed is not None
        return self._armed.__exit__(kind, error, traceback)

    def _recreate_cm(self) -> Self:
        """A scope for one call of a decorated function."""
        self._call.settle()
        return type(self)(self._call, self._make)

    def __del__(self) -> None:
        self._call.scope_is_gone()


def inject(
    *faults: Fault, seed: int = 0, engine: str = "auto", require_fired: bool = True
) -> InjectionScope:
    """Arm *faults* in the workers that loaders start while the scope is open.

    Args:
        *faults: What is to happen, at least one; see ``pytest_dataloader_faults.faults``.
        seed: Seed of the faults with a ``probability``.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        require_fired: Raise at the end if one of *faults* never fired.

    Returns:
        A context manager. Its value is an ``Injection``, with ``fired``, ``reached`` and
        ``surfaced``. One that is never entered fails the test that called ``inject``. Without
        pytest it gives a ``RuntimeWarning`` once it is collected.

    Raises:
        EngineUnavailableError: On entry, if this machine cannot run the engine.
        FaultNotFiredError: At the end of the scope, unless another exception leaves it.
        InjectionError: The harness failed; nothing was shown.
        InvalidArgumentError: An argument cannot be used or, on entry, the engine cannot make one of
            *faults* happen, or the process is in another scope of faults.

    """
    check(seed=seed, engine=engine, require_fired=require_fired)
    _require_some(faults)
    caller = sys._getframe(1)
    call = _Call(faults, caller.f_code.co_filename, caller.f_lineno)
    make = functools.partial(_armed, faults, seed=seed, engine=engine, require_fired=require_fired)
    return InjectionScope(call, make)


def _require_some(faults: tuple[Fault, ...]) -> None:
    """Refuse what is no fault, and none at all: such a test would pass and show nothing."""
    require_faults(faults)
    if not faults:
        message = "no fault was given. Give one or more, such as inject(ReadError('*.jpg'))"
        raise InvalidArgumentError(message)


@contextlib.contextmanager
def _armed(
    faults: tuple[Fault, ...], *, seed: int, engine: str, require_fired: bool
) -> Iterator[Injection]:
    with arm(*faults, engine=engine_for(engine, faults), seed=seed) as (injection, _watch):
        yield injection
    if require_fired and (unfired := injection.unfired()):
        raise FaultNotFiredError(unfired)


class ArmedFaults(FaultTotals):
    """The faults of one call of ``FaultInjector.inject``, and what has become of them so far."""

    def __init__(self, injector: FaultInjector, positions: range) -> None:
        self._injector = injector
        self._positions = positions

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        facts = self._injector.facts()
        return tuple(facts[position] for position in self._positions)


class FaultInjector:
    """Faults for one test: what the fixture ``dataloader_faults`` gives. It works without pytest.

    All faults of an injector are one schedule. They are armed together when the first loader makes
    its iterator, so a fault that comes later is refused. The end of the scope disarms them.
    """

    def __init__(self, *, engine: str = "auto", deadline: float = 30.0, seed: int = 0) -> None:
        self._settings = Settings.of(locals())
        self._faults: tuple[Fault, ...] = ()
        self._chosen: str | None = None
        """The engine that makes these faults happen; None before the first ``inject``."""
        self._outcomes: list[Outcome] = []
        self._scope = contextlib.ExitStack()
        self._injection: Injection | None = None

    def __enter__(self) -> Self:
        """Open the scope. No fault is armed yet."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Disarm the faults."""
        self._scope.close()

    def inject(self, *faults: Fault) -> ArmedFaults:
        """Add *faults* to those that the first loader's workers will meet, until the scope ends.

        Raises:
            EngineUnavailableError: This machine cannot run the engine.
            InvalidArgumentError: The engine cannot make one of *faults* happen, a loader has made
                its iterator already, or the process is in another scope of faults.

        """
        _require_some(faults)
        together = (*self._faults, *faults)
        engine = engine_for(self._settings.engine, together)
        if self._injection is not None:
            message = f"{faults!r} come too late: workers were started. Arm every fault before that"
            raise InvalidArgumentError(message)
        if self._chosen is None:
            from pytest_dataloader_faults._engine.loader.iterator import iterators_made_by  # torch

            self._scope.enter_context(iterators_made_by(self._first_iterator))
        armed = ArmedFaults(self, range(len(self._faults), len(together)))
        self._chosen, self._faults = engine, together
        return armed

    def run(
        self, make_dataset: DatasetFactory, *faults: Fault, from_start: bool = False, **loader: Any
    ) -> Outcome:
        """Run one trial; see ``run_trial``. *loader*: options of the ``DataLoader``.

        Each of *faults* has to fire, as those of ``inject`` have to.
        """
        from pytest_dataloader_faults._trial import run_trial

        outcome = run_trial(
            make_dataset,
            *faults,
            loader=loader,
            deadline=self._settings.longest_epoch,
            seed=self._settings.seed,
            engine=self._settings.engine,
            from_start=from_start,
        )
        self._outcomes.append(outcome)
        return outcome

    def facts(self) -> tuple[FaultFacts, ...]:
        """Every fault of ``inject``, with its counters."""
        if self._injection is None:
            return tuple(FaultFacts(fault) for fault in self._faults)
        return self._injection.faults

    def unfired(self) -> str | None:
        """Disarm. Describe the first fault that never fired, if there is one."""
        self._scope.close()
        engine = self._chosen or self._settings.engine
        injection = self._injection
        if text := injection.unfired() if injection else unfired(self.facts(), (), engine):
            return text
        texts = (unfired(each.faults, each.processes, each.engine) for each in self._outcomes)
        text = next(filter(None, texts), None)  # That of a trial, which run_trial itself accepts.
        return text and f"{text}\nIf that is meant, call run_trial() and look at outcome.fired"

    def _first_iterator(self, loader: Any, _make: object) -> Any:
        """Arm all faults, and have *loader* make its iterator among them."""
        self._scope.close()
        engine = self._chosen or self._settings.engine
        self._injection, _ = self._scope.enter_context(
            arm(*self._faults, engine=engine, seed=self._settings.seed)
        )
        return loader._get_iterator()
