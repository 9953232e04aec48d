"""The fingerprint of a value on its own; in a trial it is made of a sample's parts."""

from typing import Any

from pytest_dataloader_faults._trial.samples.fingerprint import digest_of, take_apart


def digest(value: Any) -> str:
    """The fingerprint of *value* in 24 hexadecimal digits; TypeError if it has none."""
    return digest_of(take_apart(value))
