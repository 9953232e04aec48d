"""Datasets that a search finds something in."""

import errno
from pathlib import Path
from typing import Any

from support.datasets import SIZE, Records, decode, zeros

ALONE = {"num_workers": 1, "batch_size": 4}


class Zeros(Records):
    """Gives nothing where a file cannot be opened or read: one fault is enough."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)[0]
        except OSError:
            return super().__getitem__(0)[0] * 0


class StaleThenFailing(Records):
    """Having seen a stale handle it distrusts the server: at the next error it gives nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.distrusts = False

    def __getitem__(self, index: int) -> Any:
        try:
            file = open(self.paths[index], "rb", buffering=0)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self.distrusts = True
            file = open(self.paths[index], "rb", buffering=0)
        with file:
            try:
                data = file.read(SIZE)
            except OSError:
                if self.distrusts:
                    return zeros()
                raise
        return decode(data, self.paths[index])
