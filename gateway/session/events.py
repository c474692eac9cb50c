"""What a session tells its connection; a `PublishRun` of the decoder is an event as it is."""

from __future__ import annotations

from gateway.ground.entries import TopicEntry
from gateway.session.replay import ReplayStart
from holdmq.mqtt import PublishRun, Subscription, Will
from holdmq.wire.session_state import LogPlace


class Connected:
    """CONNECT may be accepted: answer with `Session.admit` or `Session.refuse` when its owner has said so."""

    __slots__ = ()


class Subscribing:
    """Filters to add; answer with `Session.subscribed` when they are in effect.

    `granted` has for each filter of the packet the reason code and, when it is granted, the filter.
    `replay`: the filters begin there and not now; `starts` are its log positions by broker, once they are
    known. `reason` is told in SUBACK. `fresh` are the filters that the session did not have.
    """

    __slots__ = ("fresh", "granted", "identifier", "left_out", "packet_id", "reason", "replay", "starts")

    def __init__(
        self, packet_id: int, granted: list[tuple[int, Subscription | None]], identifier: int | None
    ) -> None:
        self.packet_id = packet_id
        self.granted = granted
        self.identifier = identifier
        self.left_out: dict[str, tuple[str, ...]] | None = None
        """By filter, those of topics in it that the client must not get."""
        self.replay: ReplayStart | None = None
        self.starts: dict[str, LogPlace] | None = None
        self.reason = ""
        self.fresh: list[str] = []

    @property
    def is_granted(self) -> bool:
        """Whether any filter is."""
        return any(subscription is not None for _, subscription in self.granted)

    def refuse(self, code: int, reason: str) -> None:
        """Refuse every filter that is granted."""
        self.granted = [(code if wanted is not None else known, None) for known, wanted in self.granted]
        self.reason = reason


class Unsubscribing:
    """Filters to take away; answer with `Session.unsubscribed`."""

    __slots__ = ("packet_id", "topic_filters")

    def __init__(self, packet_id: int, topic_filters: list[str]) -> None:
        self.packet_id = packet_id
        self.topic_filters = topic_filters


class WindowOpened:
    """The client acknowledged enough for sending to go on."""

    __slots__ = ()


class Closed:
    """The session is over: write what is left, then close the socket.

    `reason` is the metric's name, `sentence` for people; `will` is due, if there was one (`had_will`) and
    DISCONNECT did not delete it.
    """

    __slots__ = ("had_will", "reason", "sentence", "will")

    def __init__(self, reason: str, sentence: str, will: Will | None, had_will: bool = False) -> None:
        self.reason = reason
        self.sentence = sentence
        self.will = will
        self.had_will = had_will


Event = PublishRun[TopicEntry] | Connected | Subscribing | Unsubscribing | WindowOpened | Closed

CONNECTED = Connected()
WINDOW_OPENED = WindowOpened()
