"""Take up the plugin in a repository with 21 datasets, as its maintainer would, and write the page.

python evidence adoption           do it again, and write the page; it takes a quarter of an hour
python evidence adoption --page    only the page, from the record

Its datasets are classes of evidence/field whose libraries the suite has, and one of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pages import Page, commit
from paths import PYTHONPATH

PAGE = Page("adoption")
OTHERS = (
    "wds_plain wds_continue hf_disk hf_images sqlite_rows sqlite_counted nanogpt h5_kept h5_slices"
    " zarr_rows lmdb_kept neighbour deep_text_like augmented fromfile_rows json_parsed pandas_csv"
    " safetensors_kept torch_mapped vilt_like"
).split()
_TEST = '''"""The fault test of {name}."""

import pytest
from field import load_all

ONE = load_all()["{name}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Its data."""
    path = tmp_path_factory.mktemp("{name}")
    ONE.write(path)
    return path


def test_{name}(fault_check, folder):
    fault_check(lambda: ONE.make(folder), **ONE.arguments())
'''
_OWN_TEST = '''"""The fault test of the team's own dataset."""

import numpy as np
import pytest
from scans import Scans


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """16 scans of 64 by 64."""
    path = tmp_path_factory.mktemp("scans")
    for number in range(16):
        np.full((64, 64), number + 1, np.float32).tofile(path / f"{number:02}.raw")
    return path


def test_scans(fault_check, folder):
    fault_check(lambda: Scans(folder))
'''
_OWN = '''"""The team's own dataset."""

import numpy as np
import torch
from torch.utils.data import Dataset


class Scans(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.raw"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        scan = np.fromfile(self.paths[index], np.float32)
        if scan.size != 64 * 64:
            raise ValueError(f"{self.paths[index]}: {scan.size} values")
        return torch.from_numpy(scan.reshape(64, 64))
'''
_CHECKED = """        if scan.size != 64 * 64:
            raise ValueError(f"{self.paths[index]}: {scan.size} values")
        return torch.from_numpy(scan.reshape(64, 64))
"""
_UNCHECKED = """        whole = np.zeros(64 * 64, np.float32)
        whole[: scan.size] = scan
        return torch.from_numpy(whole.reshape(64, 64))
"""
_INI = "[pytest]\ntestpaths = tests\npythonpath = .\n"
_KNOWN = _INI + "dataloader_faults_baseline = baseline.json\n"
_PYTEST = "pytest -q -n 2 --tb=no"
_SHOWN = re.compile(r"FAILED |known\.json: |\d+ known failures|  tests/.*::")
"""Lines of pytest's output about failures, known ones and those that no longer fail."""
_QUOTED = ("defect", "next night", "compare", "mended", "again")


class Step(NamedTuple):
    """What the maintainer does, the command that is run then, and what is changed before it.

    *edits*: a text and what takes its place, for the files of the repository that have it.
    """

    what: str
    command: str
    edits: tuple[str, str] | None = None


STEPS = {
    "first": Step(
        "The maintainer writes the failures to a file.",
        f"{_PYTEST} --dataloader-faults-baseline=baseline.json --dataloader-faults-update-baseline",
    ),
    "night": Step(
        "`pytest.ini` names the file. A job runs all checks at night.",
        f"{_PYTEST} --dataloader-faults-report=night-1.json",
        (_INI, _KNOWN),
    ),
    "push": Step(
        "Another job runs the quick checks at each push.",
        f"{_PYTEST} --dataloader-faults-only=quick",
    ),
    "defect": Step(
        "Somebody makes the class `Scans` pad short files with zeros. The push job fails.",
        f"{_PYTEST} --dataloader-faults-only=quick",
        (_CHECKED, _UNCHECKED),
    ),
    "next night": Step(
        "It is merged anyway. The next nightly job fails as well.",
        f"{_PYTEST} --dataloader-faults-report=night-2.json",
    ),
    "compare": Step(
        "The reports of the two nights are compared.",
        "pytest-dataloader-faults compare night-1.json night-2.json",
    ),
    "back": Step(
        "The change is reverted. The push job passes.",
        f"{_PYTEST} --dataloader-faults-only=quick",
        (_UNCHECKED, _CHECKED),
    ),
    "mended": Step(
        "A known defect is fixed: each worker opens the HDF5 file itself. All checks run.",
        _PYTEST,
        ('["h5_kept"]', '["h5_lazy"]'),
    ),
    "again": Step(
        "The file is written again, without what no longer fails.",
        f"{_PYTEST} --dataloader-faults-baseline=baseline.json --dataloader-faults-update-baseline",
    ),
}


def walk(folder: Path) -> dict[str, Any]:
    """What each step came to, in the new repository *folder*."""
    _write_repository(folder)
    results = {}
    for name, step in STEPS.items():
        if step.edits:
            _edit(folder, *step.edits)
        results[name] = _run(folder, step.command)
        print(name, results[name]["exit"], results[name]["sum"], flush=True)
    return {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "steps": results}


def _write_repository(folder: Path) -> None:
    (folder / "tests").mkdir(parents=True)
    for name in OTHERS:
        (folder / f"tests/test_{name}.py").write_text(_TEST.format(name=name), encoding="utf-8")
    (folder / "tests/test_scans.py").write_text(_OWN_TEST, encoding="utf-8")
    (folder / "scans.py").write_text(_OWN, encoding="utf-8")
    (folder / "pytest.ini").write_text(_INI, encoding="utf-8")


def _edit(folder: Path, old: str, new: str) -> None:
    files = [*folder.glob("*.py"), *folder.glob("*.ini"), *folder.glob("tests/*.py")]
    (changed,) = (each for each in files if old in each.read_text(encoding="utf-8"))
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text.replace(old, new), encoding="utf-8")


def _run(folder: Path, command: str) -> dict[str, Any]:
    """The exit status and the seconds of *command*, and what of its output the page shows."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": PYTHONPATH}
    began = time.monotonic()
    process = subprocess.run(
        command.split(), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lines = process.stdout.splitlines()
    seconds = round(time.monotonic() - began)
    if " compare " in command:
        return {"exit": process.returncode, "seconds": seconds, "sum": lines[0], "shown": lines}
    excerpt = list(filter(_SHOWN.match, lines))
    return {"exit": process.returncode, "seconds": seconds, "sum": lines[-1], "shown": excerpt}


def page(record: dict[str, Any]) -> str:
    """The page about the *record*."""
    steps = record["steps"]
    return PAGE.text(
        **{each: record[each] for each in ("commit", "date")},
        count=len(OTHERS) + 1,
        failed=counts(steps["first"])["failed"],
        share=f"{steps['push']['seconds'] / steps['night']['seconds']:.0%}",
        rows="\n".join(_rows(steps)),
        **{f"shown_{name.replace(' ', '_')}": "\n".join(steps[name]["shown"]) for name in _QUOTED},
    )


def _rows(steps: dict[str, Any]) -> Iterator[str]:
    for name, step in STEPS.items():
        result = steps[name]
        summary = re.sub(r" in [\d.]+s.*", "", result["sum"])
        cells = step.what, f"`{step.command}`", str(result["exit"]), summary, str(result["seconds"])
        yield f"| {' | '.join(cells)} |"


def counts(step: dict[str, Any]) -> dict[str, int]:
    """How many items passed, failed and so on, as the line that sums up says."""
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", step["sum"])}


def main() -> None:
    """Take all the steps in a new folder, unless only the page is asked for."""
    if sys.argv[1:] != ["--page"]:
        with tempfile.TemporaryDirectory(prefix="adoption") as name:
            PAGE.keep(walk(Path(name) / "repository"))
    PAGE.path.write_text(page(PAGE.record()), encoding="utf-8")


if __name__ == "__main__":
    main()
