"""Verdicts do not depend on the names of this package's modules.

The user's code runs within this package, and this package's within torch. So the file of the
innermost frame of an error says whose error it is, and no list of our own files may decide that.
"""

import ast
import json
import os
import shutil
from pathlib import Path

import pytest

import pytest_dataloader_faults
from pytest_dataloader_faults.outcomes import Verdict
from support.datasets import write_records
from support.inner import start_python
from support.waiting import output_of

NAME = "pytest_dataloader_faults"
JUDGE = """
import json, operator, pathlib, sys
import numpy as np
from torch.utils.data import Dataset, IterableDataset
from pytest_dataloader_faults import check_dataset

PATHS = sorted(map(str, pathlib.Path(sys.argv[1]).iterdir()))

class ReadByC(IterableDataset):
    def __iter__(self):
        return map(np.fromfile, PATHS)

class Swallowing(Dataset):
    def __len__(self):
        return len(PATHS)

    def __getitem__(self, index):
        try:
            return pathlib.Path(PATHS[index]).read_bytes()
        except OSError:
            return None

class Unclear(Swallowing):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]

if __name__ == "__main__":
    joined = {"collate_fn": b"".join, "num_workers": 1}
    trials = [
        (ReadByC, "open-error", {"batch_size": None, "num_workers": 1}),
        (Swallowing, "open-error", joined),
        (Unclear, "read-error", {"num_workers": 1}),
    ]
    results = [
        check_dataset(kind, only=check, loader=loader, on_fail=None)[0]
        for kind, check, loader in trials
    ]
    facts = operator.attrgetter("verdict", "cause", "finding.library")
    print(json.dumps(list(map(facts, results))))
"""


def _names(package: Path) -> set[str]:
    """The modules in folders of the *package* that the package does not import by their names."""
    paths = [path.relative_to(package.parent) for path in package.rglob("*/*.py")]
    names = {".".join(path.with_suffix("").parts) for path in paths if path.stem != "__init__"}
    return names - {f"{NAME}.{home}" for home in pytest_dataloader_faults._HOMES.values()}


class Renamer(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_ImportFrom(self, node):  # ast's own
        for alias in node.names:
            if f"{node.module}.{alias.name}" in self.names:
                alias.asname = alias.asname or alias.name
                alias.name += "_renamed"
        node.module += "_renamed" if node.module in self.names else ""
        return node


def _rename_modules(package: Path) -> None:
    names = _names(package)
    for path in list(package.rglob("*.py")):
        tree = Renamer(names).visit(ast.parse(path.read_text(encoding="utf-8")))
        path.write_text(ast.unparse(tree), encoding="utf-8")
        if ".".join(path.relative_to(package.parent).with_suffix("").parts) in names:
            path.rename(path.with_stem(f"{path.stem}_renamed"))


@pytest.mark.usefixtures("engine")
def test_renamed_modules_find_the_same(tmp_path):
    original = Path(pytest_dataloader_faults.__file__).parent
    renamed = shutil.copytree(original, tmp_path / "renamed" / NAME)
    _rename_modules(renamed)
    records = write_records(tmp_path / "records")

    options = {"cwd": renamed.parent, "env": {**os.environ, "PYTHONPATH": ""}}
    output, errors = output_of(start_python("-c", JUDGE, records, **options))
    assert output, errors
    hides_cause = Verdict.FAILED_UNCLEARLY.usual_cause.phrase
    assert json.loads(output) == [
        ["failed_cleanly", "", ""],
        ["failed_unclearly", hides_cause, ""],
        ["failed_unclearly", hides_cause, ""],
    ]
