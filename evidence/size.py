"""Count statements, lines and modules of the package, by part, and of the tests and the pages.

    python evidence size [CHECKOUT]     of this checkout, or of another one

A statement is one of the syntax tree, so that its layout does not matter. A comment line holds
only a comment; all other lines are *lines*, whether they hold code, a docstring or nothing.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from paths import ROOT

PACKAGE = "pytest_dataloader_faults"
PARTS = {
    "trial": "_trial _settings steps outcomes".split(),
    "battery": ["battery"],
    "plugin": "plugin report".split(),
}
ENGINE = "engine"
"""The part of all other folders and modules: faults, strategies, search, injection, ..."""
_TITLES = "statements", "lines", "comment lines", "modules"


class Size(NamedTuple):
    """Numbers of a module, or sums over several."""

    statements: int = 0
    lines: int = 0
    comments: int = 0
    modules: int = 0


def size_of(code: str) -> Size:
    """The size of a module with this *code*."""
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(code)))
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = sum(
        each.type == tokenize.COMMENT and each.line.lstrip().startswith("#") for each in tokens
    )
    return Size(statements, len(code.splitlines()) - comments, comments, modules=1)


def total(paths: Iterable[Path]) -> Size:
    """The sum over the modules at *paths*."""
    sizes = [size_of(path.read_text(encoding="utf-8")) for path in paths]
    return Size(*map(sum, zip(Size(), *sizes, strict=True)))


def part_of(module: Path) -> str:
    """The part to which a *module* belongs, by its path in the package."""
    top = module.parts[0].removesuffix(".py")
    return next((part for part, names in PARTS.items() if top in names), ENGINE)


def measure(checkout: Path) -> dict[str, Size]:
    """The size of each part, of the whole package, and of the tests."""
    package = checkout / PACKAGE
    parts: dict[str, list[Path]] = {part: [] for part in (ENGINE, *PARTS)}
    for path in package.rglob("*.py"):
        parts[part_of(path.relative_to(package))].append(path)
    sizes = {part: total(paths) for part, paths in parts.items()}
    in_all = Size(*map(sum, zip(*sizes.values(), strict=True)))
    return {**sizes, "package": in_all, "tests": total((checkout / "tests").rglob("*.py"))}


def table(checkout: Path) -> Iterator[str]:
    """The lines to print."""
    yield " " * 8 + "".join(f"{title:>15}" for title in _TITLES)
    for part, size in measure(checkout).items():
        yield f"{part:8}" + "".join(f"{number:15,}" for number in size)
    pages = list((checkout / "docs").rglob("*.md"))
    lines = sum(len(page.read_text(encoding="utf-8").splitlines()) for page in pages)
    yield f"{len(pages)} pages in docs with {lines:,} lines"


if __name__ == "__main__":
    print("\n".join(table(Path(*sys.argv[1:2] or [ROOT]))))
