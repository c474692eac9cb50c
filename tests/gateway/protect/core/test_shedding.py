from __future__ import annotations

from gateway.protect.core.shedding import REST_S, ROUND_S, Shedding

ABOVE = 1000
RATE = 10


def run(
    shedding: Shedding, connections: int, seconds: int, *, come_back: bool, start: float = 0.0
) -> list[int]:
    """What it sends away each second; those leave for good unless they come back here."""
    sent = []
    for second in range(seconds):
        due = shedding.due(start + second, connections)
        shedding.sent(due)
        sent.append(due)
        connections -= 0 if come_back else due
    return sent


def test_it_sends_a_few_away_each_second_until_there_are_no_more_than_there_should_be() -> None:
    assert run(Shedding(ABOVE, RATE), ABOVE + 25, 5, come_back=False) == [10, 10, 5, 0, 0]


def test_it_goes_on_for_as_many_rounds_as_help() -> None:
    surplus = int(3 * ROUND_S) * RATE
    sent = run(Shedding(ABOVE, RATE), ABOVE + surplus, int(3 * ROUND_S) + 5, come_back=False)
    assert sum(sent) == surplus
    assert max(sent) == RATE


def test_when_all_come_back_it_rests_after_a_round_and_then_tries_again() -> None:
    shedding = Shedding(ABOVE, RATE)
    sent = run(shedding, 2 * ABOVE, int(ROUND_S + REST_S), come_back=True)
    assert sum(sent) == ROUND_S * RATE
    assert sent[int(ROUND_S) :] == [0] * int(REST_S)
    again = run(shedding, 2 * ABOVE, 3, come_back=True, start=ROUND_S + REST_S)
    assert again == [RATE] * 3


def test_others_that_connect_meanwhile_do_not_make_a_round_that_helps_a_failure() -> None:
    shedding, connections = Shedding(ABOVE, RATE), 2 * ABOVE
    for second in range(int(ROUND_S) + 1):
        due = shedding.due(second, connections)
        shedding.sent(due)
        connections += 4 - due
        assert due == RATE


def test_clients_that_could_not_be_sent_away_make_no_round_a_failure() -> None:
    shedding = Shedding(ABOVE, RATE)
    assert [shedding.due(second, 2 * ABOVE) for second in range(int(2 * ROUND_S))] == [RATE] * int(
        2 * ROUND_S
    )


def test_nothing_is_sent_away_without_a_bound_or_below_it() -> None:
    assert run(Shedding(0, RATE), 10 * ABOVE, 3, come_back=False) == [0, 0, 0]
    assert run(Shedding(ABOVE, RATE), ABOVE, 3, come_back=False) == [0, 0, 0]
