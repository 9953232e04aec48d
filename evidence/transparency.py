"""Runs the loader tests of torch and of torchdata bare, and armed with a fault that never happens.

python evidence transparency --torch-tests FOLDER --torchdata-tests FOLDER

FOLDER has test_dataloader.py of torch, from pytorch/pytorch's folder test, or the tests of
torchdata, from meta-pytorch/data's folder test/stateful_dataloader, each of the installed version.
Without a folder they are downloaded. Their files are run in copies, and no copy is kept. It takes
an hour, and the packages expecttest and parameterized.

The exit status is 0 only if each test has the same result both times. A test whose results differ
runs once more, alone: some of these tests are about time, and fail on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

from paths import PYTHONPATH

ARMED = ("-p", "dataloader_faults", "-p", "armed_everywhere")
WAYS = {"bare": (), "armed": ARMED}
TORCH = ("pytorch/pytorch", "torch", "test", ["test_dataloader.py"])
_NAMES = "dataloader hugging_face incremental_state sampler state_dict".split()
TORCHDATA = (
    "meta-pytorch/data",
    "torchdata",
    "test/stateful_dataloader",
    [f"test_{name}.py" for name in _NAMES],
)
_STATEFUL = "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader"
"""torchdata's copy of torch's tests has this in place of torch's own loader."""

Results = dict[str, str]


def download(repository: str, package: str, folder: str, names: list[str], into: Path) -> Path:
    """The test files of the installed version of *package*."""
    tag = f"v{version(package).partition('+')[0]}"
    for name in names:
        address = f"https://raw.githubusercontent.com/{repository}/{tag}/{folder}/{name}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            (into / name).write_bytes(answer.read())
    return into


def suites(arguments: argparse.Namespace, scratch: Path) -> dict[str, Path]:
    """Each file of tests, in a copy of its own; torchdata's copy of torch's is both."""
    copies: dict[str, Path] = {}
    for source, local_folder in (
        (TORCH, arguments.torch_tests),
        (TORCHDATA, arguments.torchdata_tests),
    ):
        package, names = source[1], source[3]
        folder = local_folder or download(*source, into=_new(scratch / f"{package}-source"))
        for name in names:
            if (Path(folder) / name).exists():
                text = (Path(folder) / name).read_text(encoding="utf-8")
                if package == "torch":
                    text = text.replace(_STATEFUL, "from torch.utils.data import DataLoader")
                copy = _new(scratch / package) / name
                copy.write_text(text, encoding="utf-8")
                copies[f"{package} {name}"] = copy
    return copies


def _new(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def run(file: Path, way: str, seconds: int, tests: list[str] | None = None) -> Results:
    """The result of each test of *file*, or of *tests* alone."""
    junit = file.with_suffix(".xml")
    junit.unlink(missing_ok=True)
    plugins = ("-p", "pytest_timeout", "-p", "no:cacheprovider", *WAYS[way])
    options = ("-q", "-c", os.devnull, f"--rootdir={file.parent}", f"--timeout={seconds}")
    chosen = [f"{file.name}::{name.replace('.', '::')}" for name in tests or ()] or [file.name]
    paths = (PYTHONPATH, os.environ.get("PYTHONPATH", ""))
    changed = {"PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, f"--junitxml={junit}", *chosen],
        cwd=file.parent,
        env={**os.environ, **changed},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if not junit.exists():
        return {}  # The run itself died.
    cases = ET.parse(junit).getroot().iter("testcase")  # noqa: S314  # pytest wrote it
    return {_name(case, file): _result(case) for case in cases}


def _name(case: ET.Element, file: Path) -> str:
    """``Class.test``, without the module."""
    kind = case.attrib["classname"].removeprefix(file.stem).lstrip(".")
    return f"{kind}.{case.attrib['name']}".lstrip(".")


def _result(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def differing(results: dict[str, Results]) -> list[str]:
    """The tests whose result is not the same both times."""
    bare, armed = results["bare"], results["armed"]
    return [name for name in {**bare, **armed} if bare.get(name) != armed.get(name)]


def compare(title: str, file: Path, seconds: int) -> list[str]:
    """Run *file* both ways, print how many tests passed, and return what differs both times."""
    results = {way: run(file, way, seconds) for way in WAYS}
    for way, outcomes in results.items():
        counts = ", ".join(
            f"{n} {result}" for result, n in sorted(Counter(outcomes.values()).items())
        )
        print(f"{title:32} {way:6} {counts or 'nothing ran'}", flush=True)
    differences = differing(results)
    if differences and all(results.values()):
        differences = differing({way: run(file, way, seconds, differences) for way in WAYS})
    for name in differences:
        description = " and ".join(f"{way} {results[way].get(name, 'not there')}" for way in WAYS)
        print(f"  {name}: {description}", flush=True)
    return differences if all(results.values()) else [title]


def main() -> int:
    """Compare all files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--torch-tests", type=Path, metavar="FOLDER")
    parser.add_argument("--torchdata-tests", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", help="files that have this in their title")
    parser.add_argument("--seconds", type=int, default=300, help="for each test")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        chosen = {t: f for t, f in suites(arguments, Path(scratch)).items() if arguments.only in t}
        differ = [
            name
            for title, file in chosen.items()
            for name in compare(title, file, arguments.seconds)
        ]
    print(f"{len(differ)} tests differ" if chosen else "no file of tests was found")
    return 1 if differ or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
