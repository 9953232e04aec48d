"""More loaders that keep one iterator for all epochs, or deliver other batches than they draw."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from support.infinite_loaders import Eager, Lazy, LeavesOut


class InClosure(Lazy):
    """Has its iterator where no attribute leads to it: healthy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        iterators: list[Any] = []

        def next_batch() -> Any:
            if not iterators:
                iterators.append(self._get_iterator())
            return next(iterators[0])

        self.next_batch = next_batch

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield self.next_batch()


class InGenerator(Lazy):
    """Has it in a generator that ends at the first error only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches = self._batches()

    def _batches(self) -> Iterator[Any]:
        yield from self._get_iterator()

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.batches)


class Scaling(DataLoader[Any]):
    """Makes other numbers of each batch, as a loader does that normalizes on the GPU: healthy."""

    def __iter__(self) -> Any:
        return (data.float() / 255 for data, _ in super().__iter__())


class ScalingLeavingOut(Scaling):
    """The same, and leaves out a batch for which its iterator raises an error: broken."""

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        except OSError:
            return


class EndsEarly(Lazy):
    """Leaves out the last batch of each epoch, and the next epoch starts after it: broken."""

    def __iter__(self) -> Any:
        for number, batch in enumerate(super().__iter__(), start=1):
            if number < len(self):
                yield batch


class CountsHalf(DataLoader[Any]):
    """Has a sampler with an end, and takes half of its batches: broken."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        batches: Any = self.batch_sampler
        object.__setattr__(self, "batch_sampler", list(batches))

    def __len__(self) -> int:
        batches: Any = self.batch_sampler
        return len(batches) // 2

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        for _ in range(len(self)):
            yield next(iterator)


LOADERS = (
    *(Lazy, Eager, InClosure, InGenerator, LeavesOut),
    *(Scaling, ScalingLeavingOut, EndsEarly, CountsHalf),
)
