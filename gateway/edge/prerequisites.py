"""What a client's packet waits for before it is handled: a topic, a row, a permission, a place in the log."""

from __future__ import annotations

from collections.abc import Callable

from gateway.access.access import Access
from gateway.deliver.replay import Replays
from gateway.ground.entries import TopicEntry
from gateway.persistent.retained_puts import RetainedPuts
from gateway.persistent.rows import SessionWriter
from gateway.publish.ingress import Keep, Missing, Unbound
from gateway.publish.topics import ClientTopics
from gateway.session.events import Subscribing
from gateway.session.session import Session


class Prerequisites:
    """Asks whoever can bring about what is missing; the connection waits meanwhile."""

    def __init__(
        self,
        access: Access,
        rows: SessionWriter,
        retained_puts: RetainedPuts,
        topics: ClientTopics,
        replays: Replays,
    ) -> None:
        self._access = access
        self._rows = rows
        self._retained_puts = retained_puts
        self._topics = topics
        self._replays = replays

    def bring(
        self, session: Session, missing: Missing, known: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        """Have what a publish misses brought about; one of both is called, perhaps at once."""
        if isinstance(missing, Unbound):
            self._rows.bind(session, missing, known)
        elif isinstance(missing, TopicEntry):
            self._access.ask_publish(session, missing, known)
        elif isinstance(missing, Keep):
            self._retained_puts.publish(session, missing, known, failed)
        else:
            self._topics.create(missing, known, failed)

    def delays(self, session: Session, event: Subscribing, known: Callable[[], None]) -> bool:
        """Whether a SUBSCRIBE has to wait; `known` is called then, later, and it may have to wait again."""
        if not self._access.decide_filters(session, event, known):
            return True
        return event.replay is not None and self._replays.locate(event, known)
