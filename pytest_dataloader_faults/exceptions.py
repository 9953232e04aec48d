"""Every error and warning that this package raises on purpose, and what to do about it."""

from __future__ import annotations

__all__ = (
    "CheckFailedError",
    "DataLoaderFaultsError",
    "EngineUnavailableError",
    "FaultNotFiredError",
    "InjectionError",
    "InvalidArgumentError",
    "NotReproducedWarning",
    "UnusableDatasetError",
    "UnusableEnvironmentError",
)


class DataLoaderFaultsError(Exception):
    """Base class: catch it to catch everything below."""


class InvalidArgumentError(DataLoaderFaultsError, ValueError):
    """An argument has a value that cannot be used. The text names it and what is allowed."""


class EngineUnavailableError(DataLoaderFaultsError):
    """This machine cannot run the engine that was asked for. The text says what it lacks."""


class InjectionError(DataLoaderFaultsError):
    """The harness itself failed, so nothing was shown about the dataset. Please report it."""


class UnusableDatasetError(DataLoaderFaultsError):
    """The dataset cannot be tried: its factory raised, it is empty, or it is not deterministic."""


class UnusableEnvironmentError(DataLoaderFaultsError):
    """This machine has too little of what any loader needs. The text says of what, and the cure."""


class FaultNotFiredError(DataLoaderFaultsError, AssertionError):
    """A fault was armed and never happened. The text says what the workers reached instead."""


class CheckFailedError(DataLoaderFaultsError, AssertionError):
    """A check convicted the dataset. The text is the verdict, the evidence, the way to repeat."""


class NotReproducedWarning(UserWarning):
    """A trial failed, and two more of the same kind passed, so that the check does not fail."""
