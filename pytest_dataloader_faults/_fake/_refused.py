"""What cannot happen to fake files. Pure."""

from __future__ import annotations

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    Fault,
    has_files,
)


def refuse_for_fake_files(engine: str, faults: tuple[Fault, ...]) -> None:
    """Raise if *engine* cannot make one of *faults* happen to a fake file."""
    for fault in faults:
        if engine == "kernel" and (has_files(fault) or isinstance(fault, DescriptorExhaustion)):
            message = (
                f"{fault!r}: the kernel never hears of a file of pyfakefs. Use engine='python', or"
                " real files, as in pytest's tmp_path"
            )
            raise InvalidArgumentError(message)
        if isinstance(fault, ClosedDescriptor) and fault.sample is not None:
            message = (
                f"{fault!r}: a file of pyfakefs has no descriptor that could be closed from outside"
                " at a sample. Use nth=, which closes at an open, or real files"
            )
            raise InvalidArgumentError(message)
