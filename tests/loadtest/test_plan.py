"""Plans, targets and shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdmq.errors import UsageError
from loadtest.plan import ConnectPlan, FleetPlan, PublishPlan, parameters, parse_target
from loadtest.processes import shares

FLEET = FleetPlan("127.0.0.1", 1883, 10)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1", ("127.0.0.1", 1883)),
        ("127.0.0.1:1884", ("127.0.0.1", 1884)),
        ("localhost:7", ("localhost", 7)),
        ("[::1]:9", ("::1", 9)),
        ("[::1]", ("::1", 1883)),
    ],
)
def test_a_target_on_this_machine_is_taken(text: str, wanted: tuple[str, int]) -> None:
    assert parse_target(text, allow_remote=False) == wanted


@pytest.mark.parametrize("text", ["10.1.2.3", "10.1.2.3:1883", "[2001:db8::1]:1883", "0.0.0.0"])
def test_another_machine_must_be_allowed(text: str) -> None:
    with pytest.raises(UsageError, match="--allow-remote"):
        parse_target(text, allow_remote=False)
    assert parse_target(text, allow_remote=True)[0] in text


@pytest.mark.parametrize(
    "text", ["", ":1883", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:70000", "[::1]x"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no target"):
        parse_target(text, allow_remote=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "devices/#"},
        {"topic": ""},
        {"qos": 3},
        {"window": 0},
        {"window": 65536},
        {"seconds": 0},
        {"rate": -1},
        {"fleet": replace(FLEET, devices=0)},
        {"fleet": replace(FLEET, mqtt="4")},
        {"fleet": replace(FLEET, keep_alive_s=70000)},
        {"fleet": replace(FLEET, password="x")},
    ],
)
def test_an_impossible_plan_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        PublishPlan(**{"fleet": FLEET, **wrong}).check()


def test_shares_add_up_to_the_plan() -> None:
    parts = shares(PublishPlan(FLEET, rate=100, count=17), 3)
    assert [p.fleet.devices for p in parts] == [4, 3, 3]
    assert [p.fleet.first for p in parts] == [0, 4, 7]
    assert sum(p.rate for p in parts if isinstance(p, PublishPlan)) == pytest.approx(100)
    assert sum(p.count for p in parts if isinstance(p, PublishPlan)) == 17
    assert len(shares(ConnectPlan(replace(FLEET, devices=2)), 5)) == 2


def test_a_share_without_messages_is_left_out() -> None:
    parts = shares(PublishPlan(FLEET, count=1), 2)
    assert [p.count for p in parts if isinstance(p, PublishPlan)] == [1]


def test_parameters_never_show_the_password() -> None:
    shown = parameters(PublishPlan(replace(FLEET, username="u", password="secret")))
    assert "secret" not in str(shown)
    assert shown["username"] == "u"


def test_client_ids_have_the_length_that_is_asked_for() -> None:
    assert FLEET.client_id(7) == "load-7"
    assert replace(FLEET, client_id_bytes=23).client_id(7) == "load-000000000000000007"
    assert replace(FLEET, client_id_bytes=3).client_id(1234) == "load-1234"


@pytest.mark.parametrize(
    "wrong",
    [
        {"expiry_s": -1},
        {"will_delay_s": 5},
        {"will": "a/#"},
        {"subscribe": "a/#/b"},
    ],
    ids=str,
)
def test_a_device_that_could_not_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(FLEET, **wrong).check()
