"""Whether a message explains a single fault."""

from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.error_text import Occurrence, explains_fault


def explains(text: str, fault: Fault, path: str | None, call: str) -> bool:
    return explains_fault(text, [Occurrence(fault, path, call)])
