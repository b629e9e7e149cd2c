"""Strongly connected components, sinks first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def components(
    nodes: Iterable[Node], successors: Callable[[Node], Sequence[Node]]
) -> list[tuple[Node, ...]]:
    """Tarjan's, without recursion: a component comes after all that it leads to."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[tuple[Node, ...]] = []
    for start in nodes:
        if start in index:
            continue
        work = [(start, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            targets = successors(node)
            if at < len(targets):
                work.append((node, at + 1))
                target = targets[at]
                if target not in index:
                    work.append((target, 0))
                elif target in on_stack:
                    low[node] = min(low[node], index[target])
                continue
            if low[node] == index[node]:
                begin = stack.index(node)
                found.append(tuple(stack[begin:]))
                on_stack.difference_update(stack[begin:])
                del stack[begin:]
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return found
