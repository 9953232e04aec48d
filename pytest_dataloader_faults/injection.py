"""Arm faults around your own loop over a loader: ``with inject(ReadError("*.jpg")) as armed:``.

The pytest fixtures are this context manager and nothing more. It works without pytest, and inside
the body of a Hypothesis test, where function-scoped fixtures must not be used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._engine.scope import (
    FaultTotals,
    Injection,
    arm,
    engine_for,
    require_faults,
)
from pytest_dataloader_faults.exceptions import (
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import FaultFacts, Outcome
from pytest_dataloader_faults.outcomes._fault_facts import unfired

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("ArmedFaults", "FaultInjector", "Injection", "inject")


@contextlib.contextmanager
def inject(
    *faults: Fault, seed: int = 0, engine: str = "auto", require_fired: bool = True
) -> Iterator[Injection]:
    """Arm *faults* in the workers that loaders start while the scope is open.

    Args:
        *faults: What is to happen; see ``pytest_dataloader_faults.faults``.
        seed: Of the faults with a ``probability``.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        require_fired: Raise at the end if one of *faults* never happened.

    Yields:
        An ``Injection``, with ``fired``, ``reached`` and ``surfaced``.

    Raises:
        EngineUnavailableError: This machine cannot run the engine.
        FaultNotFiredError: At the end of the scope, unless another exception is on its way.
        InjectionError: The harness failed; nothing was shown.

    """
    _arguments.check(seed=seed)
    require_faults(faults)
    with arm(*faults, engine=engine_for(engine, faults), seed=seed) as (injection, _watch):
        yield injection
    if require_fired and (unfired := injection.unfired()):
        raise FaultNotFiredError(unfired)


class ArmedFaults(FaultTotals):
    """The faults that one call armed, and what has become of them so far."""

    def __init__(self, injector: FaultInjector, places: range) -> None:
        self._injector = injector
        self._places = places

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        every = self._injector.facts()
        return tuple(every[place] for place in self._places)


class FaultInjector:
    """Faults for one test: what the fixture ``dataloader_faults`` gives, and works without pytest.

    Every fault that is armed belongs to one schedule, so arm them all before a loader starts its
    workers. Leaving the scope disarms them.
    """

    def __init__(self, *, engine: str = "auto", deadline: float = 30.0, seed: int = 0) -> None:
        self._options: dict[str, Any] = {"engine": engine, "deadline": deadline, "seed": seed}
        self._scope = contextlib.ExitStack()
        self._injection: Injection | None = None
        self._watch: Any = None
        self._outcomes: list[Outcome] = []

    def __enter__(self) -> Self:
        """Nothing is armed yet."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Disarm."""
        self._scope.close()

    def inject(self, *faults: Fault) -> ArmedFaults:
        """Arm *faults*, beside those armed already, until the scope ends."""
        armed = tuple(each.fault for each in self.facts())
        require_faults((*armed, *faults))
        engine = engine_for(self._options["engine"], (*armed, *faults))
        if self._watch is not None and self._watch.iterators:
            message = f"{faults!r} come too late: workers were started. Arm every fault before that"
            raise InvalidArgumentError(message)
        self._scope.close()
        self._injection, self._watch = self._scope.enter_context(
            arm(*armed, *faults, engine=engine, seed=self._options["seed"])
        )
        return ArmedFaults(self, range(len(armed), len(armed) + len(faults)))

    def run(self, make_dataset: Callable[[], Any], *faults: Fault, **loader: Any) -> Outcome:
        """``run_trial`` with the test's engine, deadline and seed; *loader*: DataLoader options.

        Each of *faults* has to fire, as those that are armed have to.
        """
        from pytest_dataloader_faults._trial import run_trial

        outcome = run_trial(make_dataset, *faults, loader=loader, **self._options)
        self._outcomes.append(outcome)
        return outcome

    def facts(self) -> tuple[FaultFacts, ...]:
        """Every fault armed in this scope, with its counters."""
        if self._injection is None:
            return ()
        return self._injection.faults

    def unfired(self) -> str | None:
        """Disarm, and tell of the first fault that never happened, if there is one."""
        self._scope.close()
        armed = self._injection.unfired() if self._injection else None
        return armed or next(filter(None, map(_unfired, self._outcomes)), None)


def _unfired(outcome: Outcome) -> str | None:
    """What was reached in *outcome* in place of a fault; run_trial leaves that to its caller."""
    text = unfired(outcome.faults, outcome.workers, outcome.engine)
    return text and f"{text}\nIf that is meant, call run_trial() and look at outcome.fired"
