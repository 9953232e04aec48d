"""The page about costs says what ``python benchmarks`` measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.scripts import ROOT, load_script

page = load_script("benchmarks/page.py")


def _run(*arguments):
    command = [sys.executable, str(ROOT / "benchmarks"), *arguments]
    wide = {**os.environ, "COLUMNS": "200"}  # So that argparse wraps no list of names.
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env=wide
    )
    return done.stdout


def test_the_page_is_that_of_its_record():
    """It is generated, and not edited; `python benchmarks --page` writes it anew."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.record())


def test_every_table_of_the_command_is_on_the_page():
    """Each was measured, and the page shows it."""
    (listed,) = re.findall(r"^  TABLE +(.+)$", _run("--help"), re.MULTILINE)
    names = listed.split(", ")
    assert names == list(page.record()["tables"])
    assert (
        re.findall(r"^\$(\w+)$", page.TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE) == names
    )


@pytest.mark.slow
def test_tables_can_be_measured(engine):
    """The command prints a table, and with --quick it leaves the page alone."""
    before = page.RECORD.read_bytes()
    assert "open, read and close of one" in _run("--quick", "calls")
    assert page.RECORD.read_bytes() == before
