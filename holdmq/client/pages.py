"""Pages of lists that are spread over brokers: first a column of all names, then the rows of one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdmq.errors import Code, WireError

ColumnValue = int | str
Column = Mapping[str, ColumnValue]


def column_of(names: list[str], values: list[ColumnValue]) -> Column:
    """Return a broker's column. Raises WireError for what is none."""
    if len(names) != len(values) or not all(isinstance(name, str) for name in names):
        raise WireError("a column must have a value for each name", Code.MISSING_FIELD)
    if not all(isinstance(value, ColumnValue) for value in values):
        raise WireError("the values of a column must be numbers or texts", Code.MISSING_FIELD)
    return dict(zip(names, values, strict=True))


def merged(columns: Iterable[Column], add: Callable[[int, int], int]) -> dict[str, ColumnValue]:
    """Return one column of those of several brokers: numbers by `add`, of texts the first counts."""
    found: dict[str, ColumnValue] = {}
    for column in columns:
        if not found:
            found = dict(column)
            continue
        for name, value in column.items():
            known = found.get(name)
            if known is None:
                found[name] = value
            elif isinstance(known, int) and isinstance(value, int):
                found[name] = add(known, value)
    return found


def ranked(column: Column, *, is_descending: bool = False) -> list[str]:
    """Return the names by their values; equal ones by name. Numbers come before texts."""
    names = sorted(column)
    names.sort(key=lambda name: (isinstance(column[name], str), column[name]), reverse=is_descending)
    return names
