"""What the sessions of a worker share, and where they say what they need of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.ground.counters import Counters
from gateway.ground.entries import TopicEntry
from gateway.ground.limits import SessionLimits
from holdmq.mqtt import CheckedTopics

if TYPE_CHECKING:
    from gateway.session.authenticating import BeginAt
    from gateway.session.session import Session


class SessionContext:
    """What all sessions of a worker share.

    `traced` is told what clients send, while somebody wants to see it. `dirty` lists sessions that have bytes
    to send, `unserved` those that must be closed because their broker did not take what they sent,
    `planning` those whose row must be written before they send more, `stale` those whose row lags behind.
    `methods` are those of enhanced authentication; with `keeps_connect` a session keeps its CONNECT until its
    client was authenticated.
    """

    __slots__ = (
        "counters",
        "dirty",
        "keeps_connect",
        "limits",
        "methods",
        "new_client_id",
        "planning",
        "stale",
        "topics",
        "traced",
        "unserved",
    )

    def __init__(
        self,
        topics: CheckedTopics[TopicEntry],
        limits: SessionLimits,
        counters: Counters,
        new_client_id: Callable[[], str],
    ) -> None:
        self.topics = topics
        self.limits = limits
        self.counters = counters
        self.new_client_id = new_client_id
        self.methods: dict[str, BeginAt] = {}
        self.keeps_connect = False
        self.dirty: list[Session] = []
        self.unserved: list[Session] = []
        self.planning: list[Session] = []
        self.stale: list[Session] = []
        self.traced: Callable[[Session, list[object]], None] | None = None
