"""Replay: subscriptions that begin in the past (the user property `from` of SUBSCRIBE).

Every broker is asked where in its log the moment lies. Then the session goes back there, and catches up like
one that was slow (gateway.deliver.catchup): the new subscriptions count from the moment on, its others from
where the session stood, so that nothing comes twice for them. Until it is live again everything reaches it in
the order of the logs, QoS 0 too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from gateway.ground.clock import wall_ms
from gateway.ground.limits import SUBACK_WAIT_S
from gateway.ground.system_topics import is_system_filter
from gateway.session.events import Subscribing
from gateway.session.lag import Lag, Starts
from gateway.session.session import Session
from holdmq.errors import HoldMQError
from holdmq.mqtt import ReasonCode
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import ReadAtRequest, ReadPosition
from holdmq.wire.session_state import LogPlace

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.deliver.catchup import CatchUp
    from gateway.deliver.wanted import WantedFilters
    from gateway.ground.counters import Counters

LOCATING_MAX: Final = 1_000
"""SUBSCRIBEs that wait for brokers to find their moment: as many look-ups as a broker takes."""


class StartRows(Protocol):
    """Writes into the rows of sessions that outlive their connections from where on their filters count."""

    def store_starts(self, session: Session, names: list[str]) -> None:
        """Have these filters' rows say from where on they count, before any state that is asked for later."""


class _Locating:
    """A SUBSCRIBE that waits for `left` brokers, and who is told then."""

    __slots__ = ("event", "left", "on_located", "starts")

    def __init__(self, event: Subscribing, left: int, on_located: Callable[[], None]) -> None:
        self.event = event
        self.left = left
        self.on_located = on_located
        self.starts: dict[str, LogPlace] = {}


class Replays:
    """Finds the beginnings of subscriptions, and leads their sessions back."""

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        wanted: WantedFilters,
        rows: StartRows,
        catchup: CatchUp,
        counters: Counters,
        turn: Turn,
    ) -> None:
        self._links = links
        self._wanted = wanted
        self._rows = rows
        self._catchup = catchup
        self._counters = counters
        self._turn = turn
        self.locating = 0

    def locate(self, event: Subscribing, on_located: Callable[[], None]) -> bool:
        """Find where a SUBSCRIBE with a replay begins; False: it is decided, `on_located` is not called.

        Then `event.starts` says it, or the event is refused.
        """
        replay = event.replay
        if replay is None or event.starts is not None or not event.is_granted:
            return False
        wanted = (subscription.topic_filter for _, subscription in event.granted if subscription is not None)
        if all(map(is_system_filter, wanted)):
            return False  # no log has any of it
        if self.locating >= LOCATING_MAX:
            self._refuse(event, ReasonCode.QUOTA_EXCEEDED, "too many replays begin now; try again")
            return False
        links = [link for link in self._links.values() if not link.is_gone]
        for link in links:
            if link.connection is None or not link.reader.is_open:
                self._refuse(event, ReasonCode.UNSPECIFIED_ERROR, f"broker {link.name} is away; try again")
                return False
        if not links:
            event.starts = {}
            return False
        self.locating += 1
        waiting = _Locating(event, len(links), on_located)
        now_ms = wall_ms()
        for link in links:
            assert link.connection is not None
            link.connection.request(
                RequestCode.READ_AT,
                ReadAtRequest(replay.store_ms(now_ms + link.clock_ahead_ms)),
                partial(self._located, waiting, link),
                SUBACK_WAIT_S,
            )
        return True

    def _located(self, waiting: _Locating, link: BrokerLink, result: Reply | HoldMQError) -> None:
        event = waiting.event
        if isinstance(result, HoldMQError):
            sentence = f"broker {link.name} does not find its place ({result}); try again"
            self._refuse(event, ReasonCode.UNSPECIFIED_ERROR, sentence)
        else:
            found = result.header(ReadPosition)
            waiting.starts[link.name] = LogPlace(found.log_epoch, found.position)
        waiting.left -= 1
        if waiting.left:
            return
        self.locating -= 1
        if event.is_granted:
            event.starts = waiting.starts
        waiting.on_located()
        self._turn.settle()

    def _refuse(self, event: Subscribing, code: ReasonCode, sentence: str) -> None:
        if event.is_granted:
            self._counters.refused[f"subscribe_{code.name.lower()}"] += 1
            event.refuse(code, sentence)

    def begin(self, session: Session, fresh: Collection[str], starts: Mapping[str, LogPlace]) -> None:
        """Lead a session back to `starts`, by broker, for the filters `fresh`, which it has just got."""
        outbound = session.outbound
        assert outbound is not None
        self._counters.replays_total += 1
        lag = outbound.lag
        if lag is None:
            lag = outbound.lag = Lag()
            self._counters.lagging_sessions += 1
        for broker, start in starts.items():
            stands = lag.stands_at(broker, self._links[broker].reader.position or 0)
            for name, granted in outbound.subscriptions.items():
                if granted.starts is None:
                    granted.starts = Starts()
                begins = start.position if name in fresh else max(stands, granted.starts.get(broker) or 0)
                granted.starts.put(broker, begins)
            lag.replay_from(broker, start.log_epoch, min(stands, start.position), stands)
        if session.cursor is not None:
            # Before a state can say that the session is further back than where these count from.
            self._rows.store_starts(session, [n for n in outbound.subscriptions if n not in fresh])
        lag.holds += 1
        self._wanted.when_in_effect(partial(self._in_effect, session, lag))

    def _in_effect(self, session: Session, lag: Lag) -> None:
        lag.holds -= 1
        self._catchup.ready(session)
