"""Datasets that use the accelerator where their samples are made. Importable by spawned workers."""

from typing import Any

import torch

from support.datasets import Records


class ComputesOnDevice(Records):
    """Works on the accelerator in the worker, and gives an ordinary tensor."""

    def __getitem__(self, index: int) -> Any:
        data, label = super().__getitem__(index)
        return data.to(torch.accelerator.current_accelerator()).cpu(), label


class GivesDeviceTensors(Records):
    """Gives tensors that are on the accelerator already."""

    def __getitem__(self, index: int) -> Any:
        data, label = super().__getitem__(index)
        return data.to(torch.accelerator.current_accelerator()), label
