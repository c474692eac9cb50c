"""What a session is owed of retained messages: for each subscription a place at each broker, never a message.

A subscription is answered slice by slice, broker by broker: `before` is the log position below which its
answer ends (what is newer comes live), `after` the topic that was sent last. Both are session state, so
that an answer goes on where it was over a reconnect. Source: mqtt.md, Retained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from holdmq.wire.retained_headers import LOG_END, RetainedRow, retained_owner
from holdmq.wire.session_state import RetainedPlace, RetainedRest, RetainedState

MET_MAX: Final = 10_000
"""Topics remembered that came live while a slice was under way; past it the slice is asked for again."""


class OwedRetained:
    """The retained messages that one subscription is owed. `places` are what is left of it, by broker.

    `number` is that of its row; `is_held`: its SUBACK has not been sent, so that it may not begin.
    """

    __slots__ = ("is_held", "number", "places", "topic_filter")

    def __init__(self, topic_filter: str, number: int) -> None:
        self.topic_filter = topic_filter
        self.number = number
        self.is_held = True
        self.places: dict[str, RetainedPlace] | None = None

    def begin(self, brokers: Collection[str]) -> None:
        """The subscription is in effect: these brokers keep retained messages, of one topic only one does.

        No brokers: none is known yet; call it again.
        """
        self.is_held = False
        if not brokers:
            return
        if self.places is not None:
            # One that keeps none any more was given up: what it had is lost, and nobody waits for it.
            self.places = {name: place for name, place in self.places.items() if name in brokers}
            return
        if "+" not in self.topic_filter and not self.topic_filter.endswith("#"):
            brokers = [retained_owner(self.topic_filter, brokers)]
        self.places = dict.fromkeys(brokers, RetainedPlace(LOG_END, ""))

    def hold_at(self, broker: str, before: int) -> None:
        """Nothing of a slice was sent: the next one begins where it did, and what is newer comes live."""
        if self.places is not None and broker in self.places:
            self.places[broker] = RetainedPlace(before, self.places[broker].after)

    def advance(self, broker: str, before: int, after: str | None) -> None:
        """All up to the topic `after` was sent; None = all of this broker's."""
        if self.places is None or broker not in self.places:
            return
        if after is None:
            del self.places[broker]
        else:
            self.places[broker] = RetainedPlace(before, after)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.places is not None and not self.places


class RetainedDue:
    """All that a session is owed.

    `is_asking`: a slice of it is under way, or in line. `met`: topics of which messages to retain came live
    meanwhile, and each broker's newest position; `is_outdated`: there were too many topics. `is_held`: what
    the session had in flight comes first.
    """

    __slots__ = ("answers", "is_asking", "is_held", "is_outdated", "met")

    def __init__(self) -> None:
        self.answers: list[OwedRetained] = []
        self.is_asking = False
        self.is_held = False
        self.is_outdated = False
        self.met: dict[bytes, dict[str, int]] | None = None

    def owe(self, topic_filter: str, number: int) -> OwedRetained:
        """A subscription is to be answered from the beginning, whatever was left of it."""
        self.forget(topic_filter)
        answer = OwedRetained(topic_filter, number)
        self.answers.append(answer)
        return answer

    def forget(self, topic_filter: str) -> None:
        """A subscription ended, or is answered anew."""
        self.answers = [answer for answer in self.answers if answer.topic_filter != topic_filter]

    def begin(self, filters: Collection[str], brokers: Collection[str]) -> None:
        """These subscriptions are in effect."""
        for answer in self.answers:
            if answer.topic_filter in filters and answer.is_held:
                answer.begin(brokers)
        self.drop_finished()

    def brokers_known(self, brokers: Collection[str]) -> None:
        """Brokers are known: what waits for that may begin, and nothing waits for one that was given up."""
        for answer in self.answers:
            if not answer.is_held:
                answer.begin(brokers)
        self.drop_finished()

    def drop_finished(self) -> None:
        """Forget what is answered."""
        self.answers = [answer for answer in self.answers if not answer.is_over]

    def at(self, broker: str) -> Iterator[tuple[OwedRetained, RetainedPlace]]:
        """What is owed by a broker and may be sent, in the order of the subscriptions."""
        for answer in self.answers:
            if not answer.is_held and answer.places is not None and broker in answer.places:
                yield answer, answer.places[broker]

    def brokers(self) -> Iterator[str]:
        """Brokers that owe something that may be sent now, in the order of the subscriptions; some twice."""
        for answer in self.answers:
            if not answer.is_held:
                yield from answer.places or ()

    def ask(self) -> None:
        """A slice is asked for: what comes live from now on may be newer than what it has."""
        self.met = {}
        self.is_outdated = False

    def came(self, topic: bytes, broker: str, position: int) -> None:
        """A message to retain came live, from this position of a broker's log."""
        met = self.met
        if met is None:
            return
        brokers = met.get(topic)
        if brokers is None:
            if len(met) >= MET_MAX:
                self.is_outdated = True
                return
            brokers = met[topic] = {}
        brokers[broker] = max(position, brokers.get(broker, 0))

    def is_replaced(self, owner: str, row: RetainedRow) -> bool:
        """Whether a message came live meanwhile that its owner's log has behind this row.

        One that it has before it came late, as its broker was away, and is older.
        """
        brokers = None if self.met is None else self.met.get(row.topic.encode())
        return brokers is not None and brokers.get(owner, -1) > row.version

    def is_in_doubt(self, owner: str, row: RetainedRow) -> bool:
        """Whether one came live from another broker's log, and nobody knows which of the two is older.

        What it left with its owner was there before it came: to ask again settles it.
        """
        brokers = None if self.met is None else self.met.get(row.topic.encode())
        return brokers is not None and any(broker != owner for broker in brokers)

    def rest(self) -> list[RetainedRest]:
        """What is left, as session state has it."""
        return [RetainedRest(answer.topic_filter, dict(answer.places or {})) for answer in self.answers]


def restored(state: RetainedState | None, numbers: Mapping[str, int]) -> RetainedDue | None:
    """What a session that came back is owed, by its state and its filters' numbers; None = nothing.

    It is held until the filters are in effect. What the state does not know had not begun when it was made.
    """
    due = RetainedDue()
    due.is_held = True
    known = 0 if state is None else state.number
    for rest in () if state is None else state.rests:
        number = numbers.get(rest.topic_filter)
        if number is not None and number <= known:
            due.owe(rest.topic_filter, number).places = dict(rest.places) or None
    for topic_filter, number in numbers.items():
        if number > known:
            due.owe(topic_filter, number)
    return due if due.answers else None
