"""What people pass instead of a factory of one dataset."""

from typing import Any

from torch.utils.data import DataLoader

from support.datasets import Records
from support.plugin_datasets import ZerosOnError


class DataHooks:
    """Lightning's base class: it has every method, and those for loaders raise."""

    def prepare_data(self) -> None:
        """Does nothing."""

    def setup(self, stage: str) -> None:
        """Does nothing."""

    def train_dataloader(self) -> Any:
        raise NotImplementedError

    val_dataloader = test_dataloader = train_dataloader


class DataModule(DataHooks):
    """As the first example of Lightning's documentation has it, with a flaw in what validates."""

    def __init__(self, folder: Any, validates: type = ZerosOnError) -> None:
        self.folder = folder
        self.validates = validates
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(stage)
        assert self.calls[0] == "prepare_data"
        if stage == "fit":
            self.train, self.val = Records(self.folder), self.validates(self.folder)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=4, num_workers=1, shuffle=True)

    def val_dataloader(self) -> Any:
        return [DataLoader(self.val, batch_size=4, num_workers=1)]


class Broken(DataModule):
    """Cannot be set up without a trainer."""

    def train_dataloader(self) -> Any:
        return self.trainer.world_size  # type: ignore[attr-defined]
