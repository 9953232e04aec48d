"""README's battery, and faults under a loop of one's own, in one of the places."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from places import environment
from support.scripts import ROOT, load_script

_FILES = 8
_PATIENCE = 300
_INJECT = """
from pathlib import Path

import pytest
from my_data import MyDataset
from torch.utils.data import DataLoader

DATA = Path(__file__).parent / "data"


class Honest(MyDataset):
    def __getitem__(self, index):
        return list(self.paths[index].read_bytes())


def loader(dataset):
    return DataLoader(dataset, num_workers=2, batch_size=None)


def test_caught(read_errors):
    armed = read_errors("*/03.bin")
    first = [each[0].item() for each in loader(MyDataset(DATA))]
    assert first == [1, 2, 3, 0, 5, 6, 7, 8]
    assert armed.fired == 1


def test_raised(read_errors):
    armed = read_errors("*/03.bin")
    with pytest.raises(OSError, match="Errno 5"):
        list(loader(Honest(DATA)))
    assert armed.fired == armed.mentioned == 1
"""


@dataclass(frozen=True)
class Run:
    """What pytest's header says of us, the verdict and the message of each item, what is left."""

    header: str
    verdicts: dict[str, str]
    messages: dict[str, str]
    left: list[str]
    printed: str


@contextmanager
def folder_for_a_run() -> Iterator[Path]:
    """A folder that other users can reach, as pytest's own are not, with the tests and the data."""
    generate = load_script("docs/generate.py")
    with tempfile.TemporaryDirectory(prefix="place-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for subfolder in ("data", "tmp", "out"):
            (folder / subfolder).mkdir()
        for number in range(_FILES):
            content = array("f", [number + 1] * 64).tobytes()
            (folder / "data" / f"{number:02}.bin").write_bytes(content)
        for block in generate.blocks((ROOT / "README.md").read_text(encoding="utf-8")):
            if block.kind == "file":
                (folder / block.argument).write_text(block.text, encoding="utf-8")
        (folder / "test_inject.py").write_text(_INJECT, encoding="utf-8")
        yield folder


def run_in(place: str, *options: str) -> Run:
    """Run pytest with *options* in *place*."""
    with folder_for_a_run() as folder:
        command = [sys.executable, "-m", "places", place, sys.executable, "-m", "pytest"]
        command += ["--junitxml=out/junit.xml", *options, "test_data.py", "test_inject.py"]
        process = subprocess.run(
            command,
            cwd=folder,
            env=environment(str(folder)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        return _run(folder, process.stdout)


def _run(folder: Path, printed: str) -> Run:
    junit = folder / "out/junit.xml"
    assert junit.exists(), printed
    cases = list(ET.parse(junit).getroot().iter("testcase"))  # noqa: S314
    results = {
        case.attrib["name"].partition("[")[2][:-1] or case.attrib["name"]: case for case in cases
    }
    header = next((line for line in printed.splitlines() if "dataloader-faults:" in line), "")
    return Run(
        header,
        {name: _verdict(case) for name, case in results.items()},
        {name: _message(case) for name, case in results.items()},
        sorted(each.name for each in (folder / "tmp").iterdir() if "pytest-of-" not in each.name),
        printed,
    )


def _message(case: ET.Element) -> str:
    elements = [case.find(kind) for kind in ("failure", "error", "skipped")]
    return next((each.attrib["message"] for each in elements if each is not None), "")


def _verdict(case: ET.Element) -> str:
    """The first word of a failure, that an item was skipped, or that it passed."""
    if case.find("skipped") is not None:
        return "skipped"
    return _message(case).removeprefix("Failed: ").partition(":")[0] or "passed"
