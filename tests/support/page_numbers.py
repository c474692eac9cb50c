"""Numbers that pages say, as the code has them: with their units, as the values that a constant may have."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from page_blocks import ROOT

_UNITS: Final[dict[str, tuple[float, ...]]] = {
    "": (1,),
    "bytes": (1,),
    "KB": (1000,),
    "KiB": (1 << 10, 1),
    "MiB": (1 << 20, 1 << 10, 1),
    "GiB": (1 << 30, 1),
    "ms": (0.001, 1, 1e6),
    "s": (1, 1000, 1e9),
    "seconds": (1, 1000),
    "min": (60, 60_000),
    "minute": (60, 60_000),
    "minutes": (60, 60_000),
    "h": (3600, 3_600_000),
    "hour": (3600, 3_600_000),
    "hours": (3600, 3_600_000),
    "day": (86_400, 86_400_000, 1),
    "days": (86_400, 86_400_000, 1),
    "%": (0.01, 1),
}
"""By what a constant may count what has this unit."""
_NUMBER: Final = re.compile(
    r"(?<![\w.,/:`-])(\d[\d,]*(?:\.\d+)?)(?:\s(bytes|[KMG]iB|KB|ms|s|seconds|min|minutes?|h|hours?|days?|%)(?!\w))?"
    r"(?![\w])"
)
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}


def numbers_in(text: str) -> Iterator[tuple[str, list[float]]]:
    """Each number of a text, as it is said, and the values that a constant may have for it."""
    for found in _NUMBER.finditer(text):
        number = float(found[1].rstrip(",").replace(",", ""))
        yield found[0], [number * unit for unit in _UNITS[found[2] or ""]]


def literals_of(path: Path, names: Mapping[str, Any]) -> set[float]:
    """All numbers that a module has: written, its own or imported `names`, and computed from these."""
    found = {float(value) for value in names.values() if _is_number(value)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        value = computed(node, names)
        if value is not None:
            found.add(value)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def computed(node: ast.AST, names: Mapping[str, Any]) -> float | None:
    """The number that an expression is, with these `names`; None = it is none."""
    if isinstance(node, ast.Constant):
        return float(node.value) if _is_number(node.value) else None  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return float(names[node.id]) if _is_number(names.get(node.id)) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = computed(node.left, names), computed(node.right, names)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.LShift):
            return float(int(left) << int(right)) if 0 <= right < 64 else None
        if (isinstance(node.op, ast.Pow) and right > 64) or (
            isinstance(node.op, ast.Div | ast.FloorDiv) and not right
        ):
            return None
        return float(_OPERATORS[type(node.op)](left, right))
    return None


def is_one_of(values: list[float], known: set[float]) -> bool:
    """Whether one of the values is known, but for what a computer rounds."""
    return any(abs(value - one) <= 1e-9 * max(1.0, abs(one)) for value in values for one in known)


DEFAULT: Final = re.compile(r"`([a-z]+(?:\.[a-z_]+)+)`\s\((\d[^);:]*)")
"""A key of the configuration with its default behind it."""
_SAID: Final = r"(\d[\d,.]*(?: (?:bytes|[KMG]iB|ms|s|seconds|min|minutes?|h|hours?|days?|%)(?!\w))?)"
_SCANNED: Final = re.compile(r"(?<![\w.,/:%$~-])\d[\d,.]*(?!\w)")


def path_of(page: str) -> Path:
    """The file of a page: README and ARCHITECTURE lie above those of docs/."""
    return ROOT / f"{page}.md" if page.isupper() else ROOT / "docs" / f"{page}.md"


def text_of(page: str) -> str:
    """The sentences of a page on one line, without blocks, quotes and the numbers of lists."""
    text = path_of(page).read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```$|^> [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"^ *\d+\. ", "", text, flags=re.MULTILINE).split())


def sayings_in(text: str, words: str) -> list[re.Match[str]]:
    """Where a text says these words, with a group for the number at each {}."""
    return list(re.finditer(_SAID.join(map(re.escape, words.split("{}"))), text))


def unknown_numbers(text: str, known: list[tuple[int, int]]) -> Iterator[str]:
    """The numbers of a text that are in none of the `known` spans, nor in code, with what is around them."""
    assert text.count("`") % 2 == 0, "code begins and does not end"
    known = [
        *known,
        *(match.span(2) for match in DEFAULT.finditer(text)),
        *(match.span() for match in re.finditer(r"`[^`]*`|QoS \d( and \d)?|MQTT \d|\b3\.x", text)),
    ]
    for number in _SCANNED.finditer(text):
        if not any(start <= number.start() < end for start, end in known):
            yield text[max(0, number.start() - 50) : number.end() + 30]


def value_of(module: str, name: str) -> Any:
    """A constant of a module, a member of an enumeration there, or the default of a field of a class."""
    first, _, field = name.partition(".")
    found = getattr(importlib.import_module(module), first)
    if not field:
        return found
    if issubclass(found, enum.Enum):
        return found[field]
    return next(one.default for one in dataclasses.fields(found) if one.name == field)
