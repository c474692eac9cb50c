"""The page of conformance says what the tests show, and they show all that binds a server."""

from __future__ import annotations

from mqtt_conformance import PAGE, page, problems
from mqtt_statements import STATEMENTS


def test_every_statement_that_binds_a_server_has_a_test_and_every_marker_a_statement() -> None:
    assert problems() == []


def test_the_page_is_what_the_tests_say() -> None:
    assert PAGE.read_text() == page(), "write it anew: make conformance"


def test_statements_are_listed_once_and_in_the_order_of_the_standard() -> None:
    numbers = [
        [int(part) for part in name.removeprefix("MQTT-").replace("-", ".").split(".")] for name in STATEMENTS
    ]
    assert numbers == sorted(numbers, key=lambda n: (n[:2], n[2:]))
