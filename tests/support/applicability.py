"""Whether a check applies: to a workload, or by its own trial."""

from collections.abc import Callable

from pytest_dataloader_faults.battery.workload import NotApplicable


def refusal_of(function: Callable[..., object], *arguments: object) -> NotApplicable | None:
    """What *function* raises, a plan or a rule of a trial, if its check does not apply."""
    try:
        function(*arguments)
    except NotApplicable as refusal:
        return refusal
    return None
