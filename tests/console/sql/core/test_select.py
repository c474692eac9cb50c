"""What a statement may name. Trees as DuckDB makes them are in tests/console/sql/test_engine.py."""

from __future__ import annotations

from typing import Any

import pytest

from console.sql.core.select import NODES_MAX, parts_of, refusal


def base(name: str, schema: str = "") -> dict[str, Any]:
    return {"type": "BASE_TABLE", "schema_name": schema, "catalog_name": "", "table_name": name}


def test_tables_names_of_with_and_functions_are_found_wherever_they_are() -> None:
    tree = {
        "cte_map": {"map": [{"key": "Mine", "value": {"query": base("Tps_1s")}}]},
        "select_list": [{"class": "FUNCTION", "type": "FUNCTION", "function_name": "SUM", "children": []}],
        "from_table": {
            "type": "JOIN",
            "left": base("mine"),
            "right": {"type": "TABLE_FUNCTION", "function": {"class": "FUNCTION", "function_name": "Glob"}},
        },
    }
    parts = parts_of(tree)
    assert parts.tables == {("", "tps_1s"), ("", "mine")}
    assert parts.common == {"mine"}
    assert parts.table_functions == {"glob"}
    assert "sum" in parts.functions
    assert "glob" in str(refusal(parts, {"tps_1s"}))


@pytest.mark.parametrize("node", ["DELETE_QUERY_NODE", "WHATEVER_COMES_NODE"])
def test_only_nodes_that_read_are_allowed(node: str) -> None:
    assert refusal(parts_of({"type": "SELECT_NODE", "cte": {"type": "SET_OPERATION_NODE"}}), ()) is None
    assert "only read" in str(refusal(parts_of({"type": "SELECT_NODE", "cte": {"type": node}}), ()))


def test_a_table_function_that_is_not_understood_is_refused() -> None:
    assert refusal(parts_of({"type": "TABLE_FUNCTION", "function": ["new"]}), ()) is not None


@pytest.mark.parametrize(
    ("schema", "name", "allowed"),
    [
        ("", "TPS_1S", True),
        ("main", "tps_1s", True),
        ("information_schema", "columns", True),
        ("pg_catalog", "pg_class", False),
        ("", "/etc/passwd", False),
        ("", "duckdb_settings", False),
    ],
)
def test_tables_are_those_of_the_job(schema: str, name: str, allowed: bool) -> None:
    reason = refusal(parts_of(base(name, schema)), {"tps_1s"})
    assert (reason is None) is allowed
    assert allowed or "there are tps_1s" in str(reason)


def test_without_tables_the_refusal_says_how_to_get_them() -> None:
    assert "holdmq stats" in str(refusal(parts_of(base("tps_1s")), ()))


def test_a_statement_of_too_many_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="parts"):
        parts_of([{}] * (NODES_MAX + 1))


def test_a_deep_statement_is_walked() -> None:
    tree: Any = base("deep")
    for _ in range(50_000):
        tree = {"child": tree}
    assert parts_of(tree).tables == {("", "deep")}
