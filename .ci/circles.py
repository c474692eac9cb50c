"""Refuses circles of imports: more than two files of which each needs the others, for type checking too.

    python .ci/circles.py

Two files may know each other: what one declares the other is made of. A circle of three has no bottom: none
of its files is understood without all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grimp

PRODUCT = (
    "gateway",
    "broker",
    "storage",
    "registry",
    "pyspark_holdmq",
    "spark_streaming",
    "loadtest",
    "console",
    "holdmq",
)
FILES_MAX = 2
ROOT = Path(__file__).resolve().parents[1]


def circles(modules: Iterable[str], imports_of: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Modules that reach each other, two at least; `imports_of(module)` are those that a module imports.

    Tarjan's strongly connected components, with the path in a list: imports may be deeper than calls.
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: dict[str, None] = {}
    for start in sorted(modules):
        if start in index:
            continue
        index[start] = lowest[start] = len(index)
        waiting[start] = None
        path = [(start, iter(sorted(imports_of(start))))]
        while path:
            module, rest = path[-1]
            for other in rest:
                if other not in index:
                    index[other] = lowest[other] = len(index)
                    waiting[other] = None
                    path.append((other, iter(sorted(imports_of(other)))))
                    break
                if other in waiting:
                    lowest[module] = min(lowest[module], index[other])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[module])
                if lowest[module] == index[module]:
                    found = []
                    while (last := waiting.popitem()[0]) != module:
                        found.append(last)
                    if found:
                        yield sorted([*found, module])


def main() -> int:
    sys.path.insert(0, str(ROOT))  # this checkout, wherever the packages are installed from
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    found = [
        circle
        for circle in circles(graph.modules, graph.find_modules_directly_imported_by)
        if len(circle) > FILES_MAX
    ]
    for circle in found:
        print(
            f"{', '.join(circle)}: these import each other in a circle, type checking included; "
            "declare in the lowest what it needs of the others, or join what cannot be told apart"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
