"""Datasets that use the accelerator where their samples are made. Importable by spawned workers."""

from typing import Any

import torch

from support.datasets import Records


class ComputesOnDevice(Records):
    def __getitem__(self, index: int) -> Any:
        data, label = super().__getitem__(index)
        return data.to(torch.accelerator.current_accelerator()).cpu(), label


class GivesDeviceTensors(Records):
    def __getitem__(self, index: int) -> Any:
        data, label = super().__getitem__(index)
        return data.to(torch.accelerator.current_accelerator()), label
