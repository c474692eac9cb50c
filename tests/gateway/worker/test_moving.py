from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.session.session import CLOSED, CONNECTED_STATE
from gateway.worker.draining import DRAIN_RATE_MIN
from gateway.worker.moving import SETTLE_S, OrphanMoves
from holdmq.mqtt import ReasonCode


class OneSession:
    """A session; `head`: what its client waits to be acknowledged."""

    def __init__(self, head: object) -> None:
        self.state = CONNECTED_STATE
        self.inbound = SimpleNamespace(head=head)


class OneConnection:
    """What a connection does when it is sent away."""

    def __init__(self, orphans: dict[Any, None], head: object = None) -> None:
        self.session = OneSession(head)
        self.code: int | None = None
        self._orphans = orphans

    def pause(self, _reason: int) -> None:
        """Nothing is read any more."""

    def close(self, reason_code: int, _reason: str, _sentence: str) -> None:
        self.code = reason_code
        self.session.state = CLOSED
        self._orphans.pop(self.session, None)


def moves(connections: list[OneConnection], orphans: dict[Any, None]) -> OrphanMoves:
    made: Any = OrphanMoves
    found: OrphanMoves = made(orphans, connections, SimpleNamespace(is_draining=False))
    found.tick(0.0)
    return found


def gone(connections: list[OneConnection]) -> int:
    return sum(one.code == ReasonCode.SERVER_SHUTTING_DOWN for one in connections)


def test_orphans_are_sent_away_at_a_rate_and_others_are_left_alone() -> None:
    orphans: dict[Any, None] = {}
    connections = [OneConnection(orphans) for _ in range(3 * DRAIN_RATE_MIN)]
    moving = moves(connections, orphans)
    orphans.update({one.session: None for one in connections[: 2 * DRAIN_RATE_MIN]})
    moving.tick(0.25)
    assert gone(connections) == DRAIN_RATE_MIN // 4
    for quarter in range(2, 9):
        moving.tick(quarter / 4)
    assert gone(connections) == 2 * DRAIN_RATE_MIN
    moving.tick(9.0)
    assert [one.code for one in connections[2 * DRAIN_RATE_MIN :]] == [None] * DRAIN_RATE_MIN


def test_who_waits_for_an_acknowledgement_gets_it_first_but_not_for_ever() -> None:
    orphans: dict[Any, None] = {}
    connections = [OneConnection(orphans, "publish") for _ in range(2)]
    moving = moves(connections, orphans)
    orphans.update({one.session: None for one in connections})
    moving.tick(0.25)
    assert gone(connections) == 0
    connections[0].session.inbound.head = None
    moving.tick(0.5)
    assert [one.code for one in connections] == [ReasonCode.SERVER_SHUTTING_DOWN, None]
    moving.tick(0.25 + SETTLE_S)
    assert gone(connections) == 2
