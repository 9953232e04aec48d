"""Run the battery over the example datasets, and compare what it finds with expected.txt.

python examples/demo.py                      the matrix, the failures, unexpected verdicts
python examples/demo.py --only FromFile      of one dataset
python examples/demo.py --verbose            with the evidence for each verdict
"""

import argparse
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import data
import example_datasets
from pytest_dataloader_faults import CheckResult, Verdict, check_dataset
from pytest_dataloader_faults.battery._check_dataset import select_checks
from pytest_dataloader_faults.exceptions import EngineUnavailableError

EXPECTED = Path(__file__).with_name("expected.txt")
_OF_WRITES = ("write-error", "disk-full", "worker-killed-writing")
_OF_CONNECTIONS = ("connect-error", "connection-reset", "connection-closed", "connection-hung")
CHECKS = select_checks(exclude=("pinned", *_OF_WRITES, *_OF_CONNECTIONS))
"""All but the one that needs a GPU, so that the matrix is the same everywhere; and but those of
writes and of connections, of which no example has any."""
WIDTH = 120
WORDS = {
    Verdict.SURVIVED: "ok",
    Verdict.FAILED_CLEANLY: "clean",
    Verdict.HUNG: "HUNG",
    Verdict.CORRUPTED: "CORRUPT",
    Verdict.LEAKED: "LEAKED",
    Verdict.FAILED_UNCLEARLY: "UNCLEAR",
    Verdict.POISONED: "POISON",
    Verdict.CRASHED: "CRASHED",
    Verdict.BROKEN: "BROKEN",
    Verdict.NOT_EXERCISED: "UNFIRED",
}
LEGEND = """
ok     every sample was delivered and right
clean  a clear error before the deadline, and without the fault the same dataset works again
n/a    the workers do nothing that the fault is about
In capitals: the dataset fails the check. BROKEN: an error came although there was no fault.
"""

Matrix = dict[str, dict[str, str]]


def examples(root: Path) -> dict[str, Callable[[], Any]]:
    """What to try, by name, on the files that `data.build(root)` wrote."""
    records, array = root / "digits.bin", root / "digits.npy"
    return {
        "HandlesInInit": lambda: example_datasets.HandlesInInit(records),
        "OpensPerItem": lambda: example_datasets.OpensPerItem(records),
        "MmapPerItem": lambda: example_datasets.MmapPerItem(records),
        "ShardedRecords": lambda: example_datasets.ShardedRecords(records),
        "PillowFolder": lambda: example_datasets.PillowFolder(root / "tiles"),
        "ZerosOnError": lambda: example_datasets.ZerosOnError(root / "tiles"),
        "FromFile": lambda: example_datasets.FromFile(root / "raw"),
        "Careful": lambda: example_datasets.Careful(root / "raw"),
        "Careful-loader": lambda: DataLoader(
            example_datasets.Careful(root / "raw"), batch_size=8, shuffle=True, num_workers=2
        ),
        "NpyDataset": lambda: example_datasets.NpyDataset(array),
        "NpyDataset-mmap": lambda: example_datasets.NpyDataset(array, mmap_mode="r"),
        "TarTiles": lambda: example_datasets.TarTiles(root / "tiles.tar"),
        "H5Digits": lambda: example_datasets.H5Digits(root / "digits.h5"),
        "LmdbPerProcess": lambda: example_datasets.LmdbPerProcess(root / "digits.lmdb"),
    }


def word(result: CheckResult) -> str:
    """The cell of the matrix that `result` fills."""
    if not result.applies:
        return "n/a"
    return WORDS[result.verdict]


def layout(expected: Matrix) -> Callable[[str, list[str]], str]:
    """A function that aligns a name and its cells below the names of the checks."""
    parts = [check.split("-") for check in CHECKS]
    for cells in expected.values():
        parts = [[*column, cell] for column, cell in zip(parts, cells.values(), strict=True)]
    widths = [max(map(len, column)) for column in parts]
    first = max(map(len, expected), default=0)

    def line(name: str, cells: list[str]) -> str:
        aligned = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        return " ".join([f"{name:{first}}", *aligned]).rstrip()

    return line


def header(line: Callable[[str, list[str]], str]) -> str:
    """The names of the checks, each on top of its column, and an empty line."""
    rows = zip_longest(*(check.split("-") for check in CHECKS), fillvalue="")
    return "\n".join([line("", list(row)) for row in rows] + [""])


def read_matrix(text: str) -> Matrix:
    """The matrix out of its text; empty if that is about other checks than the battery's."""
    head, _, body = text.partition("\n\n")
    if head.split() != header(layout({})).split():
        return {}
    rows = (row.split() for row in body.splitlines())
    return {name: dict(zip(CHECKS, cells, strict=True)) for name, *cells in rows}


def failures(name: str, results: list[CheckResult]) -> Iterator[str]:
    """Per verdict, what the checks found first, in a sentence."""
    failed = [each for each in results if each.failed]
    for verdict in dict.fromkeys(each.verdict for each in failed):
        same = [each for each in failed if each.verdict is verdict]
        checks = ", ".join(each.check for each in same)
        sentence = same[0].explanation.splitlines()[0].removeprefix(f"{verdict}: ")
        yield f"{name}: {verdict} by {checks}: {sentence}"


def differences(expected: Matrix, found: Matrix) -> Iterator[str]:
    """Each cell that is not as expected."""
    for name, cells in found.items():
        for check, cell in cells.items():
            wanted = expected.get(name, {}).get(check, "nothing")
            if wanted != cell:
                yield f"{name} {check}: expected {wanted}, found {cell}"


def try_all(
    only: str | None, line: Callable[[str, list[str]], str]
) -> dict[str, list[CheckResult]]:
    """Run the batteries, and print each row of the matrix when it is known."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="dataloader-faults-") as folder:
        for name, make_dataset in examples(data.build(Path(folder))).items():
            if only in (None, name):
                found[name] = check_dataset(make_dataset, only=CHECKS, on_fail=None)
                print(line(name, list(map(word, found[name]))), flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", choices=examples(Path()), help="one dataset")
    parser.add_argument("--verbose", action="store_true", help="print the evidence, too")
    options = parser.parse_args(arguments)
    expected = read_matrix(EXPECTED.read_text())
    line = layout(expected)
    print(header(line), flush=True)
    results = try_all(options.only, line)
    print(LEGEND)
    for name, each in results.items():
        for text in failures(name, each):
            print(textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False))
    if options.verbose:
        print_evidence(results)
    found = {name: {one.check: word(one) for one in each} for name, each in results.items()}
    unexpected = list(differences(expected, found))
    print("", *unexpected or ["The matrix is the expected one."], sep="\n")
    return 1 if unexpected else 0


def print_evidence(results: dict[str, list[CheckResult]]) -> None:
    for name, each in results.items():
        for one in each:
            print(f"\n{name} {one.check}: {one.explanation}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineUnavailableError as error:
        sys.exit(str(error))
