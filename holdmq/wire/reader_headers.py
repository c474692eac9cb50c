"""Typed headers of TOPIC_READERS: who reads a topic at one broker, whichever way it reads.

Kinds are the modes of groups (holdmq.wire.group_headers: clustering, broadcast, shared), and these::

    pull      pulls for no group: a pull consumer, a replay, `holdmq sub`
    bulk      PULL_COLUMNS: Spark
    gateway   a gateway's reader of the log, for its MQTT clients
    $share    an MQTT shared subscription
    look-up   messages found by id, key or time, and the console's lists of messages
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

PULL: Final = "pull"
BULK: Final = "bulk"
GATEWAY: Final = "gateway"
MQTT_SHARE: Final = "$share"
LOOK_UP: Final = "look-up"


class ReaderRow(NamedTuple):
    """One reader. `group` "" = none; of `$share` it is the subscription's name.

    `principal` "" = anonymous. `since_ms` and `seen_ms` (when it read last, or came) are wall clock.
    """

    kind: str
    group: str
    client_id: str
    role: str
    address: str
    principal: str
    since_ms: int
    seen_ms: int


@header
class TopicReadersRequest(Header):
    """Ask who reads a topic; the first `rows_max` (1 to 10,000) are told."""

    topic: str
    rows_max: int = 1_000


@header
class TopicReadersResponse(Header):
    """Rows of ReaderRow, first come first, and how many there are. A topic that is not here has none.

    `has_others`: readers that are not named read it, too, as the broker's table of readers is full.
    """

    readers: list[ReaderRow]
    total: int
    has_others: bool = False
