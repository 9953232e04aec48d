"""One pass over a loader, and how it ended."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from support.waiting import until

reserves_shared_memory = pytest.mark.skipif(
    torch.__version__ < (2, 10), reason="torch reserves shared memory from 2.10 on, see the page"
)
"""For tests in which ``SharedMemoryExhaustion`` must fire."""


@contextlib.contextmanager
def shares_memory_by(strategy: str) -> Iterator[None]:
    earlier_strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        yield
    finally:
        torch.multiprocessing.set_sharing_strategy(earlier_strategy)


@dataclass
class Epoch:
    """The batches that came, the error that ended them, and the workers' exit codes."""

    batches: list[Any] = field(default_factory=list)
    error: Exception | None = None
    exit_codes: list[int | None] = field(default_factory=list)

    @property
    def text(self) -> str:
        if self.error is None:
            return ""
        return f"{type(self.error).__name__}: {self.error}\n{self.error.__cause__ or ''}"

    @property
    def signals(self) -> set[int]:
        return {-code for code in self.exit_codes if code and code < 0}


def epoch(loader: DataLoader[Any], hang: tuple[Any, ...] | None = None) -> Epoch:
    """All that *loader* gives, up to its first error.

    *hang* is for ``take_before_hang``, in which the loader must reach its timeout.
    """
    result = Epoch()
    iterator = iter(loader)
    workers = iterator._workers
    result.batches.extend(take_before_hang(iterator, *hang) if hang else ())
    try:
        result.batches.extend(iterator)
    except Exception as error:  # noqa: BLE001  # the error is the finding
        result.error = _without_frames(error)
        iterator._shutdown_workers()
    if not loader.persistent_workers:
        result.exit_codes = [_exit_code(each) for each in workers]
    return result


def take_before_hang(iterator: Any, injection: Any, count: int, patience: float = 0.5) -> list[Any]:
    """The *count* batches of *iterator* that come before a worker of *injection* hangs.

    From then on, a batch is too late after *patience*. Those before it have all the time they need
    on a busy machine.
    """
    batches = list(itertools.islice(iterator, count))
    fetch, worker = divmod(count, iterator._num_workers)
    pid = iterator._workers[worker].pid
    assert until(lambda: sum(each.fetches for each in injection.workers if each.pid == pid) > fetch)
    iterator._timeout = patience
    return batches


def _without_frames(error: Exception) -> Exception:
    """*error*, so that neither it nor its cause keeps batches, and their descriptors, alive."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _exit_code(worker: Any) -> int | None:
    worker.join(30)
    return worker.exitcode


def alone(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A loader that gives samples as they are; by default one by one, and of one worker."""
    defaults = {"num_workers": 1, "batch_size": None, "collate_fn": _identity}
    return DataLoader(dataset, **{**defaults, **options})


def _identity(sample: Any) -> Any:
    return sample
