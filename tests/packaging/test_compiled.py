"""What mypyc asks of modules that are not compiled: tests run the sources, where none of it shows."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
ORDINARY = {"NamedTuple", "Protocol", "IntEnum", "IntFlag", "Enum", "TypedDict", "Exception"}
"""Bases whose classes mypyc leaves as they are for others."""


def compiled() -> list[Path]:
    return [ROOT / path.removeprefix("/") for path in WHEEL["hooks"]["mypyc"]["include"]]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def bases_of(node: ast.ClassDef) -> list[str]:
    found = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [ast.unparse(base) for base in found]


def classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))


def imported(path: Path) -> dict[str, str]:
    """Name here → module.name there."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_module_that_is_to_be_compiled_is_there() -> None:
    assert [path for path in compiled() if not path.is_file()] == []


def test_no_module_that_is_not_compiled_inherits_from_a_compiled_class() -> None:
    """Its instances could not be made: "interpreted classes cannot inherit from compiled"."""
    native = {
        f"{module_of(path)}.{node.name}"
        for path in compiled()
        for node in classes(path)
        if not ORDINARY.intersection(bases_of(node))
    }
    assert "storage.api.batches.Batch" in native
    interpreted = {path for name in WHEEL["packages"] for path in (ROOT / name).rglob("*.py")} - set(
        compiled()
    )
    heirs = []
    for path in sorted(interpreted):
        names = imported(path)
        heirs += [
            f"{module_of(path)}.{node.name}({base})"
            for node in classes(path)
            for base in bases_of(node)
            if names.get(base) in native and "Protocol" not in bases_of(node)
        ]
    assert heirs == []


def test_what_waits_for_tasks_is_left_to_the_interpreter() -> None:
    """A compiled coroutine takes the cancelling of a task that it waits for as its own."""
    waiting_for_futures_only = {"holdmq.rpc.connection", "holdmq.rpc.server"}
    waiting = {
        module_of(path)
        for path in compiled()
        if any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert waiting == waiting_for_futures_only
