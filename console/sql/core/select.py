"""What an analyst's statement may name: decided on DuckDB's own parse of it, before anything runs.

DuckDB gives a SELECT as a tree of JSON objects (``json_serialize_sql``), and gives nothing for any other
statement. This module walks the tree; it neither parses SQL nor knows where tables lie.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from console.sql.core.functions import FUNCTIONS

TABLE_FUNCTIONS: Final = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
"""What may stand in FROM besides tables. DuckDB has some hundred more: those that read files, those that take
addresses in memory (``arrow_scan``) or further statements as text (``query``), and whatever comes next."""

PREFIXES_REFUSED: Final = ("duckdb_", "pg_", "pragma_", "sqlite_")
"""DuckDB's own views begin so, settings and their paths among them. WITH may not give such a name: where it
does not reach, the name is the view's."""

NODES: Final = frozenset({"CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"})
"""What reads. WITH may also hold INSERT, UPDATE and DELETE, and a later DuckDB more."""

SHOWN: Final = frozenset({"", '"tables"'})
"""What SHOW may be asked for besides the columns of a table."""

SCHEMAS: Final = frozenset({"information_schema"})
"""Schemas that may be named, with all that is in them; tables have none."""

NODES_MAX: Final = 100_000
"""Parts of a statement: far above what people write, and walked in some 0.1 s."""


class Parts(NamedTuple):
    """What a statement names, each as it was written but in lower case."""

    tables: set[tuple[str, str]]
    """(schema or "", table)"""
    common: set[str]
    """Names that WITH gives."""
    table_functions: set[str]
    functions: set[str]
    nodes: set[str]
    """Kinds of statements that it is made of."""
    shown: set[str]
    """What SHOW is asked for."""


def parts_of(tree: Any) -> Parts:
    """Collect what the statement of this tree names. Raises ValueError for one of too many parts."""
    parts = Parts(set(), set(), set(), set(), set(), set())
    for count, node in enumerate(_objects(tree)):
        if count >= NODES_MAX:
            raise ValueError(f"the statement has more than {NODES_MAX:,} parts")
        kind = node.get("type")
        if kind == "BASE_TABLE":
            schema = node.get("schema_name") or node.get("catalog_name") or ""
            parts.tables.add((str(schema).lower(), str(node.get("table_name", "")).lower()))
        elif kind == "TABLE_FUNCTION":
            function = node.get("function")
            named = function.get("function_name") if isinstance(function, dict) else None
            # Without a name that is understood it is none of those that are allowed.
            parts.table_functions.add(str(named or "?").lower())
        elif kind == "SHOW_REF":
            parts.shown.add(str(node.get("table_name", "")).lower())
        elif isinstance(kind, str) and kind.endswith("_NODE"):
            parts.nodes.add(kind)
        if "function_name" in node or node.get("class") in ("FUNCTION", "WINDOW"):
            # Whatever kind of part has one, and one that is not understood is none of those that are allowed.
            parts.functions.add(str(node.get("function_name") or "?").lower())
        for key in ("cte_name", "ctename"):
            if isinstance(node.get(key), str):
                parts.common.add(node[key].lower())
        common = node.get("cte_map")
        for entry in common.get("map", ()) if isinstance(common, dict) else ():
            parts.common.add(str(entry.get("key", "")).lower())
    return parts


def refusal(parts: Parts, tables: Collection[str]) -> str | None:
    """Return why a statement of these parts is not run, as a sentence; None when it may be."""
    for name in sorted(parts.nodes - NODES):
        return f"{name.partition('_')[0]} is not available here: the tables are only read, with SELECT"
    for name in sorted(parts.shown - SHOWN):
        return f"SHOW {name} is not available here; SHOW TABLES and DESCRIBE are"
    for name in sorted(parts.table_functions - TABLE_FUNCTIONS):
        return (
            f"{name}(…) is not available here: a query reads the tables of the statistics job, and in FROM "
            f"only {', '.join(sorted(TABLE_FUNCTIONS))} besides them"
        )
    for name in sorted(parts.functions - FUNCTIONS - TABLE_FUNCTIONS):
        alike = get_close_matches(name, FUNCTIONS, 1)
        meant = f"; did you mean {alike[0]}?" if alike else ""
        return f"{name}(…) is not available here: functions are those that only compute{meant}"
    for name in sorted(name for name in parts.common if name.startswith(PREFIXES_REFUSED)):
        return f"WITH {name} is not available here: names that begin so are DuckDB's own, choose another"
    known = {table.lower() for table in tables} | parts.common
    for schema, name in sorted(parts.tables):
        if schema in SCHEMAS or (schema in ("", "main") and name in known):
            continue
        there = f"there are {', '.join(sorted(tables))}" if tables else "there is none yet: run holdmq stats"
        return f"there is no table {schema + '.' if schema else ''}{name}; {there}"
    return None


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a JSON value, without recursion: a statement may be nested deeply."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
