"""A kernel as somebody would write it who has never heard of kprof: its source without our calls."""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import textwrap
from typing import Any

import triton


def without_kprof(kernel: Any) -> Any:
    """The kernel, and the kernels that it hands its track to, without calls of kprof.triton and without a track.
    Parameters other than the track stay where they are, so that the machine code finds its arguments alike."""
    function = kernel.fn
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    strip = _Strip()
    strip.visit(tree)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    assert "kp." not in text
    scope = dict(function.__globals__)
    for name in strip.users_of_track:
        scope[name] = without_kprof(scope[name])
    return triton.jit(_compiled(text, tree.name, scope))


def _compiled(text: str, name: str, scope: dict[str, Any]) -> Any:
    file_name = f"stripped {name} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    exec(compile(text, file_name, "exec"), scope)
    return scope[name]


def _is_track(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "track"


class _Strip(ast.NodeTransformer):
    """Removes what has to do with tracks."""

    def __init__(self) -> None:
        self.users_of_track: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        assert isinstance(node.value, ast.expr)
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).startswith("kp."):
            return None
        self.generic_visit(node)
        return ast.Expr(node.value) if _is_track(node.targets[0]) else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if any(map(_is_track, node.args)):
            self.users_of_track.add(ast.unparse(node.func))
            node.args = [arg for arg in node.args if not _is_track(arg)]
        self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return | None:
        return None if node.value is not None and _is_track(node.value) else node

    def visit_If(self, node: ast.If) -> ast.If | None:
        self.generic_visit(node)
        return node if node.body else None

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        node.args = [arg for arg in node.args if arg.arg != "track"]
        for arg in node.args:
            arg.annotation = arg.annotation if _is_constexpr(arg) else None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node


def _is_constexpr(arg: ast.arg) -> bool:
    return arg.annotation is not None and "constexpr" in ast.unparse(arg.annotation)
