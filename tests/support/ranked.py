"""Datasets that several ranks train on, for tests of trials. Module-level, for spawned workers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.distributed import init_process_group
from torch.utils.data import DataLoader, IterableDataset

from support.corpus.ranks import RankedStream, place
from support.datasets import CopiedRecords, Records

NAMES = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR".split()


class Environment(IterableDataset[Any]):
    """Gives what a worker knows of its rank."""

    def __iter__(self) -> Any:
        yield {name: os.environ[name] for name in NAMES}


class RankedStreamWithState(RankedStream):
    """Goes on from the place at which each worker was."""

    begin = delivered = 0

    def __iter__(self) -> Any:
        self.delivered, self.begin = self.begin, 0
        for index in self._own()[self.delivered :]:
            self.delivered += 1
            yield self.records[index]

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = self.delivered = state["given"]


class OwnRecords(Records):
    """The records of one rank, as it knows itself from its process group."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        group = torch.distributed
        self.paths = self.paths[group.get_rank() :: group.get_world_size()]


def own_records_loader(folder: Path) -> DataLoader[Any]:
    return DataLoader(OwnRecords(folder), batch_size=4, num_workers=2)


def initialize_group(folder: Path) -> DataLoader[Any]:
    """Makes its process group itself, as a script under torchrun does."""
    torch.distributed.init_process_group("gloo")
    return own_records_loader(folder)


def initialize_group_by_name(folder: Path) -> DataLoader[Any]:
    """The same by a function that was imported before."""
    init_process_group(backend="gloo", init_method="env://")
    return own_records_loader(folder)


def reinitialize_group(folder: Path) -> DataLoader[Any]:
    """The same after the group that existed was destroyed."""
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gloo")
    return own_records_loader(folder)


def gather_names(folder: Path) -> DataLoader[Any]:
    """Has the ranks agree on their files, by its own collectives."""
    names: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(names, sorted(path.name for path in folder.iterdir()))
    torch.distributed.barrier()
    assert all(each == names[0] for each in names)
    return own_records_loader(folder)


def copy_records(records: Path, folder: Path) -> CopiedRecords:
    return CopiedRecords(records, folder)


class Killing(Records):
    """Kills the process that drives its loader, in rank 1 and at its third record."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pid = os.getpid()

    def __getitem__(self, index: int) -> Any:
        if place()[0] == 1 and index >= 4:
            os.kill(self.pid, signal.SIGKILL)
        return super().__getitem__(index)


def fail_in_rank(rank: int, folder: Path) -> Records:
    if place()[0] == rank:
        raise LookupError(f"rank {rank} has no data")
    torch.distributed.barrier()
    return Records(folder)


INITIALISING: tuple[Callable[[Path], Any], ...] = (
    initialize_group,
    initialize_group_by_name,
    reinitialize_group,
    gather_names,
)
