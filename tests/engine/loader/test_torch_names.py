"""The private names of torch that the package uses: the table of them is whole, and torch has them.

A name counts as torch's if torch's loader has it and the package uses it of what is not its own.
"""

import ast
import contextlib
import importlib
import inspect
import re
from pathlib import Path

import torch.utils.data
from packaging.version import Version

import pytest_dataloader_faults
from support.rows import rows
from support.torch_names import NEWER, USED_OF_TORCH

PACKAGE = Path(pytest_dataloader_faults.__file__).parent
NAMES = [(owner, name) for owner, names in USED_OF_TORCH.items() for name in names]
OTHERS = {"_C", "_fields"}
"""torch's extension module, and those of named tuples, which torch's loader has as well."""
NODES = [[*ast.walk(ast.parse(path.read_text("utf-8")))] for path in PACKAGE.rglob("*.py")]
"""Those of each module."""
_BY_NAME = ("getattr", "hasattr", "setattr")


def _is_private(name):
    return name.startswith("_") and not name.startswith("__")


def _torch_names():
    """Every private word of torch's loader."""
    folder = Path(torch.utils.data.__file__).parent
    sources = [*folder.glob("*.py"), *folder.glob("_utils/*.py")]
    words = (re.findall(r"\b_\w+", path.read_text("utf-8")) for path in sources)
    return {each for matches in words for each in matches if _is_private(each)}


def _imported_names(node):
    """The private parts of what is imported from torch, such as ``_utils``, also by its name."""
    if isinstance(node, ast.Constant) and re.fullmatch(r"torch(\.\w+)+", str(node.value)):
        return {each for each in node.value.split(".") if _is_private(each)}
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
        parts = {part for each in node.names for part in each.name.split(".")}
        return {each for each in {*str(node.module).split("."), *parts} if _is_private(each)}
    return set()


def _name(node):
    return getattr(node, "id", None)


def _is_call_of_super(node):
    """Whether it is a private method of what a class is mixed into, or of its base."""
    is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
    return is_private and isinstance(node.value, ast.Call) and _name(node.value.func) == "super"


def _attributes(nodes):
    """What is used of objects other than an instance of the class itself; all of it in a mixin."""
    for node in nodes:
        if isinstance(node, ast.ClassDef) and any(map(_is_call_of_super, ast.walk(node))):
            yield from (each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute))
        elif isinstance(node, ast.Attribute) and _name(node.value) not in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Call) and _name(node.func) in _BY_NAME:
            yield from (each.value for each in node.args[1:2] if isinstance(each, ast.Constant))


def _used_names():
    attributes = {name for nodes in NODES for name in _attributes(nodes) if _is_private(name)}
    imports = [_imported_names(node) for nodes in NODES for node in nodes]
    return (attributes & _torch_names()).union(*imports)


def _owner(path):
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            owner = getattr(owner, name)
        return owner
    raise AssertionError(path)


@rows(("owner", "name"), NAMES)
def test_torch_has_it(owner, name):
    if Version(torch.__version__) < Version(NEWER.get(name, "0")):
        return
    loaded_owner = _owner(owner)
    with contextlib.suppress(ModuleNotFoundError):  # It is no submodule.
        importlib.import_module(f"{owner}.{name}")
    assert hasattr(loaded_owner, name) or f"self.{name}" in inspect.getsource(loaded_owner)


def test_the_table_is_whole():
    names = {name for _, name in NAMES if _is_private(name)}
    owners = {each for owner in USED_OF_TORCH for each in owner.split(".")}
    used_names = _used_names()
    assert [set(), set()] == [used_names - OTHERS - names - owners, names - used_names]
