"""Refuses words that a newcomer cannot use: a class name that two things have, a public docstring that says
nothing.

    python .ci/words.py [PATH ...]        without paths: every product package

A public docstring has at least four words in its first sentence's line and begins with what it is about, not
with a pronoun. Docstrings of modules, classes, functions and of names at the top of a module or class count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

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
WORDS_MIN = 4
PRONOUNS = re.compile(r"(It|They|Who|Nobody)\b")
WORD = re.compile(r"[\w%$#/+*.'-]*\w[\w'/.-]*|``[^`]+``")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name and text of each public docstring."""
    if text := ast.get_docstring(tree):
        yield 1, "the module", text
    yield from _inside(tree.body, "")


def _inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[int, str, str]]:
    named = ""
    for node in body:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            if named:
                yield node.lineno, prefix + named, node.value.value
            named = ""
            continue
        named = ""
        if isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not node.name.startswith("_"):
            if text := ast.get_docstring(node):
                yield node.lineno, prefix + node.name, text
            if isinstance(node, ast.ClassDef):
                yield from _inside(node.body[1:] if text else node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                named = target.id


def fault(text: str) -> str | None:
    """What is wrong with a docstring, None if nothing is."""
    if found := PRONOUNS.match(text.strip()):
        return f"begins with {found[1]!r}: name what it is about"
    if len(text.split()) < WORDS_MIN:
        return f"has fewer than {WORDS_MIN} words"
    return None


def main(paths: list[str]) -> int:
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            *(paths or PRODUCT),
        ],  # the developer's own git
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    classes = defaultdict(list)
    faults = 0
    for path in (path for path in listed if path.endswith(".py") and Path(path).exists()):
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
        for line, name, text in docstrings(tree):
            if wrong := fault(text):
                print(
                    f"{path}:{line}: the docstring of {name} {wrong}: {text.strip().splitlines()[0][:60]!r}"
                )
                faults += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
    for name, places in sorted(classes.items()):
        if len(places) > 1:
            print(f"{name}: one class name for several things: {', '.join(places)}")
            faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
