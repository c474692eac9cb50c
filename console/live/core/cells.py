"""A query's values as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from decimal import Decimal
from typing import Any, Final

EXACT_MAX: Final = (1 << 53) - 1
"""Larger whole numbers are text in JSON: most readers of JSON, browsers among them, would round them."""

EXACT_DIGITS: Final = 15
"""Decimals of more digits are text in JSON, for the same reason."""

_FORMULA: Final = re.compile(r"[=+\-@\t\r\n\uff0b\uff0d\uff1d\uff20]")
"""What a text begins with that a spreadsheet computes, wide forms too. Source: OWASP, CSV Injection."""

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d+)?([eE][+-]?\d+)?|Infinity)", re.ASCII)
"""A text that is one number, as `cell` gives those that JSON would round: it is computed to itself."""


def cell(value: Any) -> Any:
    """Return a value as JSON has it: times and intervals as ISO 8601 (UTC with Z), bytes as ``\\x`` and hex.

    Whole numbers beyond ±2^53 and long decimals are text, as are NaN and the infinities.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -EXACT_MAX <= value <= EXACT_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _odd(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, dict):
        return {str(key): cell(inner) for key, inner in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [cell(inner) for inner in value]
    if hasattr(value, "isoformat"):
        text = str(value.isoformat())
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
    if isinstance(value, tuple) and hasattr(value, "nanoseconds"):
        return _interval(*value)
    return str(value)


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval of Arrow, as P14M-3DT90.25S; its parts have signs of their own."""
    text = f"{months}M" if months else ""
    text += f"{days}D" if days else ""
    if nanoseconds or not text:
        seconds, rest = divmod(abs(nanoseconds), 10**9)
        fraction = f".{rest:09}".rstrip("0") if rest else ""
        text += f"T{'-' if nanoseconds < 0 else ''}{seconds}{fraction}S"
    return f"P{text}"


def _odd(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> Any:
    if not value.is_finite():
        return str(value)
    exponent = value.as_tuple().exponent
    if exponent == 0:
        return cell(int(value))
    return float(value) if len(value.as_tuple().digits) <= EXACT_DIGITS else format(value, "f")


def json_line(row: list[Any]) -> str:
    """Return a row of cells as a JSON array."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def csv_line(row: list[Any]) -> str:
    """Return a row of cells as a line of CSV (RFC 4180): nothing for NULL, JSON for lists and structures.

    A text that a spreadsheet would take for a formula gets an apostrophe before it: devices choose topics and
    client ids. Numbers stay numbers, negative ones too.
    """
    line = io.StringIO()
    csv.writer(line).writerow([_csv_cell(value) for value in row])
    return line.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
