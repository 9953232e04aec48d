"""The pytest plugin under pyfakefs. Loading this module does not import pyfakefs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

_FIXTURES_OF_PYFAKEFS = {"fs", "fs_class", "fs_module", "fs_session"}


@pytest.fixture
def fake_dataset_fs() -> Iterator[FakeFilesystem]:
    """An in-memory pyfakefs file system that DataLoader workers can see.

    Call ``fake_dataset_fs.create_file("/data/0.bin", contents=b"...")``, and
    then iterate a loader over ``/data``, with workers of any start method. File
    faults apply to its files.
    """
    from pytest_dataloader_faults.fake_files import FakeDatasetFs

    with FakeDatasetFs() as files:
        yield files


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Let loaders start workers under the fixtures of pyfakefs."""
    if fixturedef.argname in _FIXTURES_OF_PYFAKEFS and sys.platform == "linux":
        from pytest_dataloader_faults.fake_files.transfer import with_workers

        scope = contextlib.ExitStack()
        scope.enter_context(with_workers())
        fixturedef.addfinalizer(scope.close)  # It runs last.


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Add a note to an error of the test's own code, as a worker adds it to its errors."""
    try:
        return (yield)
    except Exception as error:
        from pytest_dataloader_faults._engine.fake import fake_files

        if fake_files() is not None:
            from pytest_dataloader_faults._engine.fake.notes import explain

            explain(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let loaders start workers under the TestCase of pyfakefs."""
    unittest = sys.modules.get("pyfakefs.fake_filesystem_unittest")
    kind = getattr(item, "cls", None)
    is_fake = unittest and kind and issubclass(kind, unittest.TestCaseMixin)
    if not is_fake or sys.platform != "linux":
        return (yield)
    from pytest_dataloader_faults.fake_files.transfer import with_workers

    with with_workers():
        return (yield)
