"""Which clients of a worker are wanted, and the first of them in an order, sans-IO.

A search looks at one session after the other, so that who runs it can stop in between.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from gateway.session.session import CLOSED, Session
from holdmq.names.networks import network_of, packed_address
from holdmq.names.patterns import pattern_of
from holdmq.wire.client_headers import ClientSelection
from holdmq.wire.client_places import SortedBy, is_behind

Wants = Callable[[Session], object]
Place = tuple[Any, str]


class WallClock(NamedTuple):
    """What the worker's clock is by the wall: `wall_ms` = `offset_ms` + 1,000 × its seconds."""

    offset_ms: float

    def wall_ms(self, at: float) -> int:
        """A moment of the worker's clock as ms since the epoch; always the same of the same moment."""
        return int(self.offset_ms + at * 1000)


def wants_of(selection: ClientSelection, gateway: str, clock: WallClock) -> list[Wants] | None:
    """What must hold for a session to be selected; None = no session of this gateway can be."""
    wants: list[Wants] = []
    if selection.gateway and not pattern_of(selection.gateway).matcher()(gateway):
        return None
    if selection.exact_id:
        exact = selection.exact_id
        wants.append(lambda session: session.client_id == exact)
    if selection.version:
        version = selection.version
        wants.append(lambda session: session.version == version)
    if selection.address:
        network = network_of(selection.address)
        wants.append(lambda session: network.has(packed_address(session.born_host)))
    if selection.client_id:
        fits_id = pattern_of(selection.client_id).matcher()
        wants.append(lambda session: fits_id(session.client_id))
    if selection.user:
        fits_user = pattern_of(selection.user).matcher()
        wants.append(lambda session: fits_user(session.principal))
    from_ms, until_ms = selection.connected_from_ms, selection.connected_until_ms
    if from_ms:
        wants.append(lambda session: clock.wall_ms(session.began_at) >= from_ms)
    if until_ms:
        wants.append(lambda session: clock.wall_ms(session.began_at) < until_ms)
    return wants


def subscriptions_of(session: Session) -> int:
    """How many subscriptions a session has, shared ones among them."""
    outbound = session.outbound
    return 0 if outbound is None else len(outbound.subscriptions) + len(outbound.shared or ())


def in_flight_of(session: Session) -> tuple[int, int]:
    """Publishes of the client that wait for their answer, and messages that it has not acknowledged."""
    inbound, outbound = session.inbound, session.outbound
    return (
        0 if inbound is None else inbound.count,
        0 if outbound is None else len(outbound.inflight or ()),
    )


def messages_of(session: Session) -> tuple[int, int]:
    """Messages in and out over this connection."""
    inbound, outbound = session.inbound, session.outbound
    return 0 if inbound is None else inbound.messages, 0 if outbound is None else outbound.messages


_VALUES: Final[dict[str, Callable[[Session, WallClock], Any]]] = {
    "client_id": lambda session, _: session.client_id,
    "user": lambda session, _: session.principal,
    "address": lambda session, _: packed_address(session.born_host).hex(),
    "connected": lambda session, clock: clock.wall_ms(session.began_at),
    "keep_alive": lambda session, _: int(session.keep_alive_s),
    "subscriptions": lambda session, _: subscriptions_of(session),
    "in_flight": lambda session, _: sum(in_flight_of(session)),
    "messages_in": lambda session, _: messages_of(session)[0],
    "messages_out": lambda session, _: messages_of(session)[1],
    "version": lambda session, _: session.version,
}


class ClientSearch:
    """Finds the first `count` sessions behind the place `after`, and counts all that are wanted."""

    def __init__(
        self, wants: list[Wants], sort: SortedBy, after: Place | None, count: int, clock: WallClock
    ) -> None:
        self.total = 0
        self._wants = wants
        self._sort = sort
        self._after = after
        self._count = count
        self._clock = clock
        self._value = _VALUES[sort.column]
        self._best: list[tuple[Place, Session]] = []
        self._found = 0

    def look(self, sessions: Iterable[Session]) -> None:
        """Look at some sessions."""
        wants, value, clock, after, sort = self._wants, self._value, self._clock, self._after, self._sort
        fit: list[tuple[Place, Session]] = []
        for session in sessions:
            if is_selected(session, wants):
                self.total += 1
                place = value(session, clock), session.client_id
                if after is None or is_behind(place, after, sort):
                    fit.append((place, session))
        self._found += len(fit)
        choose = heapq.nlargest if sort.is_descending else heapq.nsmallest
        self._best = choose(self._count, [*self._best, *fit], key=_place_of)

    def take(self) -> tuple[list[tuple[Place, Session]], bool]:
        """The sessions with their places, and whether more are behind them."""
        return self._best, self._found > len(self._best)


def is_selected(session: Session, wants: list[Wants]) -> bool:
    """Whether a session's client is connected, and everything wanted holds for it."""
    # By hand: a generator for each of many thousand sessions takes longer than the questions.
    for want in wants:
        if not want(session):
            return False
    return session.state != CLOSED


def _place_of(found: tuple[Place, Session]) -> Place:
    return found[0]
