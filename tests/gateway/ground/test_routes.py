from __future__ import annotations

from gateway.ground.entries import make_entry
from gateway.ground.routes import NO_ROUTES, Route, Routes

ROUTES = Routes(
    [
        Route("sensors/+/debug", "mqtt-tree-debug"),
        Route("sensors/#", "mqtt-tree-sensors"),
        Route("+/status", "mqtt-tree-sensors"),
    ]
)


def test_the_first_rule_that_matches_says_where_a_topic_is_stored() -> None:
    assert ROUTES.place_of("sensors/1/temp") == ("mqtt-tree-sensors", "sensors/1/temp")
    assert ROUTES.place_of("sensors") == ("mqtt-tree-sensors", "sensors")
    assert ROUTES.place_of("sensors/1/debug") == ("mqtt-tree-debug", "sensors/1/debug")
    assert ROUTES.place_of("x/status") == ("mqtt-tree-sensors", "x/status")
    assert ROUTES.place_of("x/other") is None
    assert NO_ROUTES.place_of("sensors/1") is None


def test_each_topic_of_the_rules_is_named_once() -> None:
    assert ROUTES.topics == ("mqtt-tree-debug", "mqtt-tree-sensors")


def test_an_entry_goes_where_the_rules_say_and_without_one_to_its_first_level() -> None:
    assert make_entry(b"sensors/1/t", 100, 10, ROUTES).own == ("mqtt-tree-sensors", "sensors/1/t")
    assert make_entry(b"$delayed/5/sensors/1/t", 100, 10, ROUTES).own == ("mqtt-tree-sensors", "sensors/1/t")
    assert make_entry(b"x/1/t", 100, 10, ROUTES).own == ("x", "1/t")
    assert make_entry(b"sensors/1/t", 100, 10, ROUTES).other == ("mqtt-other", "sensors/1/t")
