"""The part of the pytest plugin that is about pyfakefs, which loading it does not import."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._engine.python.pyfakefs import fake_files

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem


_FAKING = {"fs", "fs_class", "fs_module", "fs_session"}
"""pyfakefs' fixtures."""


@pytest.fixture
def fake_dataset_fs() -> Iterator[FakeFilesystem]:
    """A file system in memory, pyfakefs', that DataLoader workers see, too.

    ``fake_dataset_fs.create_file("/data/0.bin", contents=b"...")``, and then a loader over
    ``/data``, with workers of any start method. The faults of files act on its files.
    """
    from pytest_dataloader_faults.fake_files import FakeDatasetFs

    with FakeDatasetFs() as files:
        yield files


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Under pyfakefs' own fixtures, too, loaders can start workers."""
    if fixturedef.argname in _FAKING:
        from pytest_dataloader_faults.fake_files._transfer import with_workers

        scope = contextlib.ExitStack()
        scope.enter_context(with_workers())
        fixturedef.addfinalizer(scope.close)  # The last to run: the fixture's own come after it.


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """An error of the test's own code is explained as one of a worker is."""
    try:
        return (yield)
    except Exception as error:
        if fake_files() is not None:
            from pytest_dataloader_faults._engine.python.pyfakefs.notes import explain

            explain(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The same under pyfakefs' TestCase."""
    unittest = sys.modules.get("pyfakefs.fake_filesystem_unittest")
    kind = getattr(item, "cls", None)
    if unittest is None or kind is None or not issubclass(kind, unittest.TestCaseMixin):
        return (yield)
    from pytest_dataloader_faults.fake_files._transfer import with_workers

    with with_workers():
        return (yield)
