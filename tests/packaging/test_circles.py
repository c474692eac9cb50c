"""The gate against circles of imports (.ci/circles.py) finds them, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("gate", Path(__file__).parents[2] / ".ci" / "circles.py")
assert _SPEC is not None
assert _SPEC.loader is not None
gate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gate)


def found(imports: dict[str, str]) -> list[list[str]]:
    return sorted(gate.circles(imports, lambda module: imports[module]))


def test_modules_that_reach_each_other_are_a_circle_however_long() -> None:
    imports = {"a": "b", "b": "c", "c": "a", "d": "a", "e": "f", "f": "e"}
    assert found(imports) == [["a", "b", "c"], ["e", "f"]]
    long = {chr(n): chr(n + 1) for n in range(1000, 9000)} | {chr(9000): chr(1000)}
    assert [len(circle) for circle in found(long)] == [8001]


def test_two_circles_through_one_module_are_one() -> None:
    assert found({"a": "bd", "b": "c", "c": "a", "d": "a"}) == [["a", "b", "c", "d"]]


def test_what_is_imported_twice_is_no_circle() -> None:
    assert found({"a": "bc", "b": "d", "c": "d", "d": ""}) == []
