"""Run the battery over example datasets, and compare what it finds with expected.txt.

python examples/demo.py                      what it finds in three datasets
python examples/demo.py --all                in all of them, and a table of the verdicts
python examples/demo.py --only FromFile      in one of them, and its table
python examples/demo.py --verbose            with the evidence for each verdict
"""

import argparse
import inspect
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import data
import example_datasets
from pytest_dataloader_faults import CheckResult, check_dataset
from pytest_dataloader_faults.battery.checking import select_checks
from pytest_dataloader_faults.exceptions import EngineUnavailableError
from pytest_dataloader_faults.report import terminal
from pytest_dataloader_faults.report.model import Item, Report, item_of

EXPECTED = Path(__file__).with_name("expected.txt")
_OF_CONNECTIONS = ("connection-error", "http-error")
_OF_RANKS = ("ranks-agree", "rank-stops")
_OF_MEMORY = ("copy-on-write", "memory-exhaustion")
_OF_OTHERS = (*_OF_MEMORY, "thread-exhaustion")
_OF_NO_EXAMPLE = ("write-error", *_OF_CONNECTIONS, *_OF_RANKS, "resumes", *_OF_OTHERS)
LEFT_OUT = ("pin-memory", *_OF_NO_EXAMPLE)
CHECKS, TOTAL = select_checks(exclude=LEFT_OUT), len(select_checks())
"""All but the one that needs a GPU, so that the table is the same everywhere; and but those of
writes, of connections, of ranks, of states, of threads and of much memory, of which no example has
any."""
SHORT = ("HandlesInInit", "FromFile", "Careful")
"""A handle that workers share, silent corruption and an unclear error, and a healthy dataset."""
LEGEND = """
"survived" and "failed_cleanly" pass a check, and other verdicts fail it. "-": the check does not
apply, because the workers do nothing that its fault could affect.
"""
RERUN = "tox -e demo -- --only {name} --verbose"
NEXT = """
{checks} of {total} checks ran: the examples need none of those for writes, connections, ranks,
states, threads, much memory and GPUs.
Next: docs/tutorial/first_battery.md fixes a dataset step by step. Your own dataset is one command:
    pytest-dataloader-faults run my_package.data:make_dataset
All {count} examples, with a table of the verdicts: tox -e demo -- --all
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
        "PillowFolder": lambda: example_datasets.PillowFolder(root / "tiles", 24),
        "ZerosOnError": lambda: example_datasets.ZerosOnError(root / "tiles", 24),
        "FromFile": lambda: example_datasets.FromFile(root / "raw", 32),
        "Careful": lambda: example_datasets.Careful(root / "raw", 32),
        "Careful-loader": lambda: DataLoader(
            example_datasets.Careful(root / "raw", 32), batch_size=8, shuffle=True, num_workers=2
        ),
        "NpyDataset": lambda: example_datasets.NpyDataset(array),
        "NpyDataset-mmap": lambda: example_datasets.NpyDataset(array, mmap_mode="r"),
        "TarTiles": lambda: example_datasets.TarTiles(root / "tiles.tar"),
        "H5Digits": lambda: example_datasets.H5Digits(root / "digits.h5"),
        "LmdbPerProcess": lambda: example_datasets.LmdbPerProcess(root / "digits.lmdb"),
    }


def about(name: str) -> str:
    """What the example does and what is wrong with it, in the words of its docstring."""
    docstring = inspect.getdoc(getattr(example_datasets, name.partition("-")[0]))
    summary, reason = docstring.split("\n\n")[:2]
    flaw = re.split(r"(?<=\.)\s", reason)[0]
    line = f"{name} {summary[0].lower()}{summary[1:]} {flaw}"
    return textwrap.fill(line, terminal.WIDTH, subsequent_indent="    ")


def word(result: CheckResult) -> str:
    """The cell of the table that `result` fills."""
    return str(result.verdict) if result.applies else "-"


def read_matrix(text: str) -> Matrix:
    """The verdicts in a table, by dataset and check. Each of its parts starts with names."""
    matrix: Matrix = {}
    names: list[str] = []
    for line in filter(None, text.splitlines()):
        if line.startswith(" "):
            names = line.split()
            continue
        check, *cells = line.split()
        for name, cell in zip(names, cells, strict=True):
            matrix.setdefault(name, {})[check] = cell
    return matrix


def table(matrix: Matrix) -> str:
    """The verdicts, in tables of as many datasets as fit into a line."""
    lines: list[str] = []
    for names in (list(matrix)[start : start + 3] for start in range(0, len(matrix), 3)):
        checks = matrix[names[0]]
        rows = [("", names), *((each, [matrix[name][each] for name in names]) for each in checks)]
        lines += ["".join(f"{each:21}" for each in (f"{title:23}", *row)) for title, row in rows]
        lines.append("")
    return "\n".join(line.rstrip() for line in lines)


def items_of(name: str, results: list[CheckResult]) -> list[Item]:
    """What a report of pytest would have of `results`."""
    return [
        item_of(
            result,
            nodeid=f"{name}::{result.check}",
            test=name,
            file="examples/demo.py",
            duration=sum(trial.duration for trial in result.trials),
        )
        for result in (replace(each, reproduce=RERUN.format(name=name)) for each in results)
    ]


def differences(expected: Matrix, actual: Matrix) -> Iterator[str]:
    """Each cell that is not as expected."""
    for name, cells in actual.items():
        for check, cell in cells.items():
            expected_cell = expected.get(name, {}).get(check, "nothing")
            if expected_cell != cell:
                yield f"{name} {check}: expected {expected_cell}, found {cell}"


def try_all(names: Iterable[str]) -> dict[str, list[CheckResult]]:
    """Run the batteries. Say before each what it tries, and afterwards what it found."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="dataloader-faults-") as folder:
        factories = examples(data.build(Path(folder)))
        for name in names:
            print(about(name), flush=True)
            results[name] = check_dataset(factories[name], only=CHECKS, on_fail=None)
            for text, _ in terminal.summary(Report(items=tuple(items_of(name, results[name])))):
                print(text)
            print(flush=True)
    return results


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    has_table = options.all or options.only
    names = examples(Path()) if options.all else SHORT
    results = try_all([options.only] if options.only else names)
    actual = {
        name: {result.check: word(result) for result in dataset_results}
        for name, dataset_results in results.items()
    }
    if has_table:
        print(f"{table(actual)}{LEGEND}")
    if options.verbose:
        print_evidence(results)
    unexpected = list(differences(read_matrix(EXPECTED.read_text()), actual))
    print(*unexpected or ["The verdicts are the expected ones."], sep="\n")
    if not has_table and not unexpected:
        print(NEXT.format(count=len(examples(Path())), checks=len(CHECKS), total=TOTAL), end="")
    return 1 if unexpected else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options. A bad one ends the program, with what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--all", action="store_true", help="try all datasets, not only three")
    group.add_argument("--only", metavar="NAME", choices=examples(Path()), help="try one dataset")
    parser.add_argument("--verbose", action="store_true", help="print the evidence, too")
    return parser.parse_args(arguments)


def print_evidence(results: dict[str, list[CheckResult]]) -> None:
    for name, dataset_results in results.items():
        for result in dataset_results:
            print(f"{name} {result.check}: {result.explanation}\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineUnavailableError as error:
        sys.exit(str(error))
