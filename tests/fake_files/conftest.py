"""Shared by the tests of fake files: a folder of them."""

import pytest

from support.fake_datasets import write_fake_records


@pytest.fixture(name="files")
def _files(fake_dataset_fs):
    write_fake_records(fake_dataset_fs)
    return fake_dataset_fs
