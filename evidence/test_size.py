"""The counts that later changes are measured by."""

from __future__ import annotations

import size
from paths import ROOT

CODE = '''"""A docstring."""

# A comment.
import os  # Not a comment line.


def name(path):
    # Another one.
    if path:
        return "# no comment"
    text = """
# no comment
"""
    return os.fspath(path), text
'''


def test_size_of_a_module():
    lines = len(CODE.splitlines())
    assert size.size_of(CODE) == size.Size(statements=7, lines=lines - 2, comments=2, modules=1)


def test_parts_of_a_checkout(tmp_path):
    package = tmp_path / size.PACKAGE
    for name in ("_engine/arm.py", "steps.py", "battery/checks/a.py", "report/b.py", "c.py"):
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a = 1\n")

    sizes = size.measure(tmp_path)

    modules = {part: each.modules for part, each in sizes.items()}
    assert modules == {"engine": 2, "trial": 1, "battery": 1, "plugin": 1, "package": 5, "tests": 0}
    assert sizes["package"] == size.Size(5, 5, 0, 5)


def test_size_of_this_checkout():
    sizes = size.measure(ROOT)
    assert sizes["package"].modules == len([*(ROOT / size.PACKAGE).rglob("*.py")])
    assert min(each.statements for each in sizes.values()) > 0
    assert list(size.table(ROOT))[-1].startswith(f"{len([*(ROOT / 'docs').rglob('*.md')])} pages")
