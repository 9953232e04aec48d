"""Variables and parameters are named after what they hold, not by pronouns and participles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_dataloader_faults

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pytest_dataloader_faults.__file__).parent
FOLDERS = (PACKAGE, *(ROOT / name for name in "tests evidence benchmarks docs examples".split()))
MOST_VAGUE = 0.015
"""The largest share of vague names among all that a folder binds."""
VAGUE = set(
    "each one other others found made given known own asked told what which how who every whole"
    " rest more most least some here there this that then these those it they all both many few"
    " kept taken came first last before after wanted meant seen left gone got had done shown named"
    " said held used tried".split()
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _is_short(node: ast.AST) -> bool:
    return isinstance(node, _COMPREHENSIONS) and node.lineno == node.end_lineno


def _names(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """Every name that *tree* binds, its line, and whether it is in a comprehension of one line."""
    pending = [(tree, False)]
    for node, in_short in pending:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno, in_short
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg, node.lineno, False
        is_inside = in_short or _is_short(node)
        pending.extend((child, is_inside) for child in ast.iter_child_nodes(node))


def _is_vague(name: str, *, in_short: bool) -> bool:
    return name in VAGUE and not (in_short and name == "each")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_few_names_are_vague(folder):
    count, places = 0, []
    for path in folder.rglob("*.py"):
        for name, line, in_short in _names(ast.parse(path.read_text(encoding="utf-8"))):
            count += 1
            if _is_vague(name, in_short=in_short):
                places.append(f"{path}:{line} {name}")

    assert len(places) <= MOST_VAGUE * count, "\n".join(places)
