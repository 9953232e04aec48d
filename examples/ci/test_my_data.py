"""What the dataset gives, and what it does when storage fails."""

from pathlib import Path

import pytest
from my_data import Records
from torch.utils.data import DataLoader


def test_first_sample(data_dir: Path) -> None:
    """For the job "fast": no fault, no process."""
    assert Records(data_dir)[3].unique().tolist() == [3.0]


@pytest.mark.dataloader_faults(
    only=["workers-agree", "read-error-first", "truncated-half", "worker-killed-first", "pinned"]
)
def test_robust(fault_check, data_dir: Path) -> None:
    """For the job "faults"; leave the marker out to have every check. One of them needs a GPU."""
    fault_check(lambda: Records(data_dir))


@pytest.mark.gpu
@pytest.mark.dataloader_faults
def test_batches_reach_the_device(data_dir: Path) -> None:
    """For the job "gpu"."""
    loader = DataLoader(Records(data_dir), batch_size=4, num_workers=2, pin_memory=True)
    assert all(batch.to("cuda").is_cuda for batch in loader)


@pytest.mark.nightly
def test_each_operation_in_turn(dataloader_faults, data_dir: Path) -> None:
    """For the job "nightly": the N-th open fails, and the N-th read, for each N there is."""
    dataloader_faults.sweep(lambda: Records(data_dir), loader={"num_workers": 1, "batch_size": 4})


@pytest.mark.nightly
def test_survives_or_fails_cleanly_under_every_schedule(dataloader_faults, data_dir: Path) -> None:
    """For the job "nightly": Hypothesis draws faults, several at once. Try more in your nights."""
    dataloader_faults.explore(lambda: Records(data_dir), max_examples=20)
