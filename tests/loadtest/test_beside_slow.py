from __future__ import annotations

import struct

import pytest

from holdmq.errors import StartupError
from loadtest.beside_slow import LoadPlan, MissingError, Order, SlowSubscriber, SlowTraffic
from loadtest.swarm import publish_run, swarm


def body(publisher: int, number: int) -> bytes:
    """A PUBLISH without its fixed header, as a swarm gives it."""
    return publish_run("t", [struct.pack(">dII", 1.5, publisher, number)], 1)[2:]


def run_until_something_comes(traffic: SlowTraffic, seconds: float) -> None:
    while not traffic.run(seconds):
        pass


@pytest.mark.parametrize("is_pairs", [True, False])
def test_who_did_not_read_gets_everything_afterwards_and_readers_got_theirs(
    peer: tuple[str, int], is_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.beside_slow.BEHIND_S", 60.0)
    traffic = SlowTraffic(LoadPlan(3, 300.0, is_pairs), f"{peer[0]}:{peer[1]}")
    try:
        run_until_something_comes(traffic, 0.1)
        had = traffic.stall()
        run_until_something_comes(traffic, 0.2)
        assert traffic.stall() == had
        traffic.read()
        told = traffic.finish()
        assert told.came == traffic.sent > had.came
        assert (told.again, told.closed) == (0, 0)
    finally:
        traffic.close()


def test_a_rate_that_is_not_answered_ends_the_run(peer: tuple[str, int]) -> None:
    traffic = SlowTraffic(LoadPlan(1, 50.0, False), f"{peer[0]}:{peer[1]}")
    try:
        traffic.sent = 1_000
        with pytest.raises(StartupError, match="more than is carried"):
            traffic.run(0.1)
    finally:
        traffic.close()


def test_a_gap_is_told_and_a_repetition_is_counted() -> None:
    order = Order("somebody")
    assert order.check(body(7, 0)) == 1.5
    order.check(body(7, 1))
    order.check(body(8, 0))
    order.check(body(7, 1))
    assert (order.came, order.again) == (3, 1)
    with pytest.raises(MissingError, match="somebody: message 3 of 7 came where 2"):
        order.check(body(7, 3))


def test_a_slow_subscriber_whose_connection_was_closed_comes_back_for_the_rest(
    peer: tuple[str, int],
) -> None:
    target = f"{peer[0]}:{peer[1]}"
    slow = SlowSubscriber(target, "slow", "t")
    with swarm(target, "slow") as thief, swarm(target, "giver") as giver:
        thief.connect(1)  # the same client id: the server closes the older connection
        thief.disconnect()
        giver.connect(1)
        (publisher,) = giver.sockets()
        publisher.setblocking(True)
        publisher.sendall(b"".join(publish_run("t", [body(1, n)[5:]], n + 1) for n in range(3)))
        while slow.state.came < 3:
            slow.step(1)
    assert slow.state == (3, 0, 1)
    slow.close()
