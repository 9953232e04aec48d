"""Where the data is."""

from pathlib import Path

import pytest
import torch


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Sixteen records."""
    for number in range(16):
        values = torch.full((64,), float(number))
        (tmp_path / f"{number:02}.bin").write_bytes(values.numpy().tobytes())
    return tmp_path
