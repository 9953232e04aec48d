"""What is to be known of a dataset is told once at the end, and not for each item."""

import pytest

from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.corpus.caches import CheckedSpectrograms
from support.datasets import Records

few = pytest.mark.dataloader_faults(only=["read-error", "truncated-half"])


@few
def test_cached(fault_check, records):
    cache = records.parent / "cache"
    cache.mkdir()
    fault_check(lambda: CheckedSpectrograms(records, cache))


@few
def test_cold(fault_check, records):
    fault_check(lambda folder: CheckedSpectrograms(records, folder))


@few
def test_plain(fault_check, records):
    fault_check(lambda: Records(records))
"""


REWRITES = """
import pytest
from support.datasets import Records, write_records


def table(folder):
    if not folder.is_dir():
        write_records(folder)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes())
    return Records(folder)


@pytest.mark.dataloader_faults(only=["open-error", "truncated-before-init", "missing-before-init"])
def test_table(fault_check, tmp_path):
    fault_check(lambda: table(tmp_path / "table"))
"""


def test_files_that_the_factory_writes_are_reported_in_the_summary(suite):
    result = suite.run(REWRITES)
    result.assert_outcomes(passed=1, skipped=2)
    summary = " ".join(result.stdout.str().partition("= dataloader-faults =")[2].split())
    checks = "truncated-before-init, missing-before-init"
    why = "make_dataset writes or touches the files that it reads"
    assert f"2 checks not applicable: {why}: {checks}" in summary
    assert summary.count(f"note: {why} (table/00.rec, table/01.rec, table/02.rec, ...)") == 1
    assert "Write them before the test, for example in a fixture" in summary


@pytest.mark.parametrize("options", [(), slow(("-p", "xdist", "-n", "2"))], ids=["", "xdist"])
def test_each_note_is_reported_once(suite, options):
    if options:
        pytest.importorskip("xdist")
    result = suite.run(SUITE, *options)
    result.assert_outcomes(passed=6)
    summary = " ".join(result.stdout.str().partition("= dataloader-faults =")[2].split())
    assert summary.count("like a cache") == 1
    about_cached = summary.partition("test_inner.py::test_cached: ")[2]
    note = about_cached.partition("test_inner.py::")[0].partition("note: ")[2]
    assert note.startswith("16 files that the workers read (cache/00.npy")
    assert "like a cache" in note
