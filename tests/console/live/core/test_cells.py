"""Values as JSON and as CSV."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from console.live.core.cells import cell, csv_line, json_line

SECOND = dt.datetime(2026, 1, 31, 23, 59, 59, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        ("ä\n", "ä\n"),
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        (-(2**63), "-9223372036854775808"),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal(12), 12),
        (Decimal("1.50"), 1.5),
        (Decimal("123456789012345.678"), "123456789012345.678"),
        (Decimal(2**70), "1180591620717411303424"),
        (b"\x00\xff", "\\x00ff"),
        (SECOND, "2026-01-31T23:59:59Z"),
        (SECOND.replace(tzinfo=None), "2026-01-31T23:59:59"),
        (SECOND.date(), "2026-01-31"),
        (dt.timedelta(hours=1), "1:00:00"),
        ([1, {"a": SECOND}], [1, {"a": "2026-01-31T23:59:59Z"}]),
        ([("key", 2**60)], [["key", str(2**60)]]),
    ],
)
def test_a_value_is_what_json_readers_can_hold(value: Any, shown: Any) -> None:
    assert cell(value) == shown
    assert type(cell(value)) is type(shown)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", '"\'\r=1"'),
        ("\uff1d1", "'\uff1d1"),
        ("a=1", "a=1"),
        ("-5", "-5"),
        (-5, "-5"),
        (-0.5, "-0.5"),
        ("-9007199254740993", "-9007199254740993"),
        ("-Infinity", "-Infinity"),
        ("-1e5", "-1e5"),
        (cell(Decimal("-123456789012345678.25")), "-123456789012345678.25"),
        (["=1"], '"[""=1""]"'),
    ],
)
def test_no_cell_of_csv_is_a_formula_and_a_number_stays_one(value: object, shown: str) -> None:
    assert csv_line([value]) == f"{shown}\r\n"


def test_a_line_of_csv_quotes_what_must_be_and_has_nothing_for_null() -> None:
    assert (
        csv_line(["a,b", 'say "x"', None, True, 3, ["x", 1]]) == '"a,b","say ""x""",,true,3,"[""x"", 1]"\r\n'
    )


def test_a_line_of_json_is_an_array() -> None:
    assert json_line(["ä", None, 1]) == '["ä",null,1]'
