"""Where the data is, and how Hypothesis works at night."""

from array import array
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

# On a CI machine Hypothesis draws the same each time and keeps nothing, without a profile.
settings.register_profile(
    "nightly",
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Eight records."""
    for number in range(8):
        values = array("f", [number] * 64)
        (tmp_path / f"{number:02}.bin").write_bytes(values.tobytes())
    return tmp_path
