"""The programs that are disturbed. Each prints one verdict per dataset."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from chaos.rounds import VERDICTS, Round
from pytest_dataloader_faults import check_dataset, explore, inject, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records
from support.judging import judge_trial
from support.planted import Zeros

DEADLINE = 8.0
_FAULT = ReadError("*/05.rec", times=3)
_RETRIES = 20
_CHECKS = ["read-error", "workers-agree"]
_TEST = """
import pathlib
import pytest
from chaos.subjects import DATASETS

@pytest.mark.dataloader_faults(only={checks!r})
def test_dataset(fault_check):
    make = DATASETS[{dataset!r}]
    fault_check(lambda: make(pathlib.Path({records!r})), loader={loader!r})
"""


class Retries(Records):
    """Tries again where a read fails."""

    def __getitem__(self, index: int) -> Any:
        for _ in range(_RETRIES):
            try:
                return super().__getitem__(index)
            except OSError:  # that is what it does
                continue
        return super().__getitem__(index)


DATASETS: dict[str, Callable[[Path], Dataset[Any]]] = {
    "careful": Records,
    "retries": Retries,
    "zeros": Zeros,
}


class Subject:
    """That of *drawn*, over the files in *records*."""

    def __init__(self, drawn: Round, records: Path) -> None:
        self._drawn = drawn
        self._records = records
        self._loader = {"num_workers": 2, "multiprocessing_context": drawn.method}

    def words(self) -> Iterator[str]:
        """What it comes to. An exception is one of the words."""
        try:
            yield from getattr(self, f"_{self._drawn.subject}")()
        except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt, too
            yield f"{type(error).__name__}: {error}"

    def _dataset(self) -> Dataset[Any]:
        return DATASETS[self._drawn.dataset](self._records)

    def _trial(self) -> Iterator[str]:
        options = {"loader": self._loader, "deadline": DEADLINE}
        outcome = run_trial(self._dataset, _FAULT, **options)
        reference = take_reference(self._dataset, Settings(deadline=DEADLINE))
        yield str(judge_trial(outcome, reference).verdict)

    def _inject(self) -> Iterator[str]:
        with inject(_FAULT, require_fired=False) as injection:
            try:
                for _ in DataLoader(self._dataset(), **self._loader):
                    pass
            except OSError:
                yield "OSError"
            yield f"fired {injection.fired}"

    def _litter(self) -> Iterator[str]:
        subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
        Path("/dev/shm/litter").touch()
        Path(tempfile.gettempdir(), "litter").touch()
        (self._records / "00.rec").touch()
        yield VERDICTS[self._drawn.dataset]

    def _battery(self) -> Iterator[str]:
        options = {"loader": self._loader, "deadline": DEADLINE}
        for result in check_dataset(self._dataset, only=_CHECKS, on_fail=None, **options):
            yield str(result.verdict)

    def _explore(self) -> Iterator[str]:
        options = {"loader": self._loader, "deadline": DEADLINE}
        near = {"kinds": [ReadError], "files": "*/05.rec", "max_faults": 1, "max_epochs": 1}
        exploration = explore(
            self._dataset, max_examples=3, seed=1, database=None, on_fail=None, **near, **options
        )
        yield str(exploration.verdict)

    def _pytest(self) -> Iterator[str]:
        return self._pytest_with("-p", "no:xdist")

    def _xdist(self) -> Iterator[str]:
        return self._pytest_with("-n", "2")

    def _pytest_with(self, *options: str) -> Iterator[str]:
        reports = _Reports()
        with tempfile.TemporaryDirectory(prefix="subject-", dir=self._records.parent) as folder:
            test = Path(folder, "test_subject.py")
            test.write_text(
                _TEST.format(
                    checks=_CHECKS,
                    dataset=self._drawn.dataset,
                    records=str(self._records),
                    loader=self._loader,
                )
            )
            arguments = [f"--dataloader-faults-deadline={DEADLINE}", "-p", "no:cacheprovider", "-q"]
            pytest.main(
                [
                    *options,
                    *arguments,
                    f"--rootdir={folder}",
                    f"--basetemp={folder}/base",
                    str(test),
                ],
                [reports],
            )
        yield from reports.words


class _Reports:
    """A plugin that keeps a word for each test."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.words.append("passed" if report.passed else report.longreprtext)
