"""Which registry tells of lost processes, of which, and when it says instead that it sees nobody."""

from __future__ import annotations

from holdmq.alarms.core.alarms import AlarmKey, Alarms, Reading, State
from registry.core.roster import ProcessKey, Roster
from registry.core.watch import ClusterWatch, RegistryView, Told

BROKER, OTHER = ProcessKey("broker", "b"), ProcessKey("broker", "c")
GATEWAY = ProcessKey("gateway", "g:1883")
LOST_S = 10.0


class Watching:
    """A registry that started at 0, with its alarms."""

    def __init__(self, own_id: bytes = b"own", started_ms: int = 0, forget_s: float = 1000) -> None:
        self.roster = Roster()
        self.watch = ClusterWatch(self.roster, own_id, started_ms, 0.0, LOST_S, forget_s)
        self.alarms = Alarms(60, is_repeated=False)

    def look(self, now: float, **peers: RegistryView | None) -> list[tuple[str, str, str]]:
        """What is told after one round."""
        for one in self.watch.peers_heard(peers, now):
            if (one.kind, one.name) not in self.alarms.raised:
                self.alarms.resume(Reading(AlarmKey(one.kind, one.name), 1, 1, one.text), one.since_ms)
        if not self.watch.is_on_duty:
            self.alarms = Alarms(60, is_repeated=False)
            return []
        readings = list(self.watch.readings(self.alarms.raised, now))
        notices = self.alarms.update(readings, now, int(now * 1000))
        self.watch.told = {
            (key.kind, key.name): Told(*key, alarm.since_ms, alarm.reading.text)
            for key, alarm in self.alarms.raised.items()
        }
        return [(notice.state.value, *notice.key) for notice in notices]

    def view(self) -> RegistryView:
        """What it says to others."""
        return RegistryView(
            self.watch._own[0],
            self.watch._own[1],
            self.watch.is_on_duty,
            self.roster.present,
            list(self.watch.told.values()),
        )


def test_who_is_gone_without_a_goodbye_is_told_once_and_so_is_its_return() -> None:
    it = Watching()
    it.roster.here(BROKER, "x", 0)
    it.roster.here(GATEWAY, "w0", 0)
    it.roster.here(GATEWAY, "w1", 0)
    it.roster.closed("w0", 20)
    assert it.look(40) == [], "another worker of the gateway is here"
    it.roster.closed("x", 40)
    assert it.look(40 + LOST_S - 1) == [], "a restart takes less"
    assert it.look(40 + LOST_S) == [("raised", "broker_lost", "b")]
    assert it.look(900) == []
    it.roster.here(BROKER, "y", 900)
    assert it.look(901) == [("over", "broker_lost", "b")]
    it.roster.closed("w1", 901)
    assert it.look(950) == [("raised", "gateway_lost", "g:1883")]


def test_who_leaves_in_order_is_not_missed() -> None:
    it = Watching()
    it.roster.here(BROKER, "x", 0)
    it.roster.here(GATEWAY, "w0", 0)
    it.roster.leave(GATEWAY, "w0")
    it.roster.closed("w0", 20)
    it.roster.leave(BROKER, "x")
    assert it.look(500) == []
    assert not it.roster.lost


def test_who_was_given_up_is_not_lost_any_more_until_it_is_here_again() -> None:
    it = Watching()
    it.roster.here(BROKER, "x", 0)
    it.roster.here(OTHER, "y", 0)
    it.roster.closed("x", 20)
    assert it.look(40) == [("raised", "broker_lost", "b")]
    it.roster.give_up(BROKER)
    assert it.look(41) == [("over", "broker_lost", "b")]
    it.roster.lose(BROKER, 42)
    it.roster.give_up(OTHER)
    it.roster.closed("y", 43)
    assert it.look(400) == [], "neither by another registry's word, nor by the end of its old connection"
    it.roster.here(BROKER, "anew", 400)
    it.roster.here(OTHER, "z", 400)
    it.roster.closed("anew", 401)
    assert it.look(500) == [("raised", "broker_lost", "b")]


def test_who_hangs_is_lost_though_its_connection_stands_and_is_forgotten_in_the_end() -> None:
    it = Watching(forget_s=500)
    it.roster.here(BROKER, "x", 0)
    it.roster.here(OTHER, "y", 0)
    it.roster.here(OTHER, "y", 100)
    it.roster.expire(125, 120)
    assert it.roster.present == {OTHER}
    assert it.look(140) == [("raised", "broker_lost", "b")]
    assert it.look(625) == [("over", "broker_lost", "b")]


def test_a_registry_that_sees_nobody_any_more_says_that_alone_and_nothing_of_all_the_others() -> None:
    it = Watching()
    for owner, key in enumerate((BROKER, OTHER, GATEWAY)):
        it.roster.here(key, owner, 0)
    for owner in range(3):
        it.roster.closed(owner, 20 + 3 * owner)
    assert it.look(20 + LOST_S) == [("raised", "cannot_see", "cluster")]
    assert it.look(200) == []
    it.roster.here(BROKER, "again", 200)
    assert it.look(201) == [("over", "cannot_see", "cluster")]
    assert it.look(205) == [], "the others need time, too"
    it.roster.here(OTHER, "again", 206)
    assert it.look(201 + LOST_S) == [("raised", "gateway_lost", "g:1883")]


def test_two_registries_tell_once_and_the_second_goes_on_when_the_first_is_gone() -> None:
    first, second = Watching(b"1", 1), Watching(b"2", 2)
    for it in (first, second):
        it.roster.here(BROKER, "x", 0)
        it.roster.here(OTHER, "y", 0)
        it.look(1, a=first.view(), b=second.view())
    assert (first.watch.is_on_duty, second.watch.is_on_duty) == (True, False)
    for it in (first, second):
        it.roster.closed("x", 20)
    assert first.look(31, a=first.view(), b=second.view()) == [("raised", "broker_lost", "b")]
    assert second.look(31, a=first.view(), b=second.view()) == []
    # The first is killed: its death is told, and not again what it told.
    assert second.look(45, a=None, b=second.view()) == [("raised", "registry_lost", "a")]
    # It comes back, as another one: the second stays on duty, and tells the end of both.
    first = Watching(b"3", 50)
    assert second.look(51, a=first.view(), b=second.view()) == [("over", "registry_lost", "a")]
    assert first.look(51, a=first.view(), b=second.view()) == []
    for it in (first, second):
        it.roster.here(BROKER, "z", 60)
    assert first.look(61, a=first.view(), b=second.view()) == []
    assert second.look(61, a=first.view(), b=second.view()) == [("over", "broker_lost", "b")]


def test_what_another_registry_sees_is_not_lost_and_a_registry_may_stop_in_order() -> None:
    first, second = Watching(b"1", 1), Watching(b"2", 2)
    first.roster.here(BROKER, "x", 0)
    second.roster.here(BROKER, "x", 0)
    first.look(1, b=second.view())
    first.roster.closed("x", 20)
    assert first.look(50, b=second.view()) == []
    first.watch.peer_left("b")
    first.roster.here(BROKER, "x", 51)
    assert first.look(500, b=None) == []


def test_a_registry_that_starts_again_tells_nothing_twice_and_what_is_over() -> None:
    it = Watching()
    it.watch.told = {("broker_lost", "b"): Told("broker_lost", "b", 7, "gone")}
    assert it.look(0) == []
    assert it.look(100) == []
    assert it.alarms.raised[AlarmKey("broker_lost", "b")].since_ms == 7
    it.roster.here(BROKER, "x", 100)
    assert it.look(101) == [(State.OVER.value, "broker_lost", "b")]


def test_too_many_processes_are_counted_and_not_watched() -> None:
    roster = Roster(processes_max=1)
    roster.here(BROKER, "x", 0)
    roster.here(OTHER, "y", 0)
    assert (roster.present, roster.refused) == ({BROKER}, 1)
