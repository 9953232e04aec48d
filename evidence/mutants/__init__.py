"""Small changes of code, each of which a test should notice.

A mutation replaces the text of one expression or statement, and keeps the number of lines: tests
compare tracebacks, and a comment may be an argument of a linter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.And: ast.Or,
}
_SWAPPED |= {after: before for before, after in _SWAPPED.items()}
_NO_LOGIC = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
"""Nodes that are left alone with all below: Python 3.11 misplaces what is in an f-string."""


class Mutation(NamedTuple):
    """A change of a module.

    Attributes:
        line: The line of its first character, from 1.
        before, after: The code that is replaced, and what replaces it.
        start, end: The bytes of the module that are replaced.
    """

    line: int
    before: str
    after: str
    start: int
    end: int

    def apply(self, code: str) -> str:
        """The *code* of the module with this change."""
        content = code.encode()
        return (content[: self.start] + self.after.encode() + content[self.end :]).decode()


def mutations(code: str) -> Iterator[Mutation]:
    """All mutations of a module with this *code*, by their places."""
    lines = code.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for node in _logic(ast.parse(code)):
        for new_node in _replacements(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before = code.encode()[start:end].decode()
            padding = "\n" * before.count("\n")
            text = ast.unparse(new_node)
            after = f"({text}{padding})" if isinstance(new_node, ast.expr) else text + padding
            yield Mutation(node.lineno, before, after, start, end)


def _logic(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below *node* that decide what the code does, without annotations."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_logic = isinstance(child, ast.AST) and not isinstance(child, _NO_LOGIC)
            if not is_logic or name in ("annotation", "returns") or _is_for_types(child):
                continue
            yield child
            yield from _logic(child)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _replacements(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What may stand in place of *node*."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED:
            yield ast.Compare(node.left, [_SWAPPED[type(operator)]()], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(_SWAPPED[type(node.op)](), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
