"""Typed headers of topic administration: settings, growth, safe removal, pause.

The highest queues of a topic are removed in three steps, each refused with TOPIC_IN_USE and the
reason while its condition fails::

    HIDE_FROM_PRODUCERS   routes do not show them to producers any more; what is still sent there by an
                          old route is taken for a while
    HIDE_FROM_CONSUMERS   every group has consumed them, and old routes have had their time
    DELETE                nobody sees them: what they hold is given up, for good

A topic goes the same way, with no queue left, and then by TOPIC_DELETE. Source: broker.md, Topics.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

HIDE_FROM_PRODUCERS: Final = "hide_from_producers"
HIDE_FROM_CONSUMERS: Final = "hide_from_consumers"
DELETE: Final = "delete"
FIRST_GROUP_OWN: Final = "own"
"""Every group begins where its consumers say."""
FIRST_GROUP_BEGINNING: Final = "beginning"
"""The first group that ever reads the topic begins with all it has, unless its consumers say something."""
FIRST_GROUPS: Final = (FIRST_GROUP_OWN, FIRST_GROUP_BEGINNING)
SPREAD_ALL: Final = "all"
"""Every broker of the cluster has queues of the topic: one that joins, or was away, gets them by itself."""
SPREAD_FIXED: Final = "fixed"
"""The brokers at which it was created have it, and no others by themselves."""
SPREADS: Final = (SPREAD_ALL, SPREAD_FIXED)
STEPS: Final = (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS, DELETE)

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4


@header
class TopicUpdateRequest(Header):
    """Change settings of a topic; None leaves one as it is. `retention_ms` 0 = as long as the log.

    Answered with TopicCreateResponse, durable in topic.json, like every request of this page. `filter_type`
    and `sys_flag` have no effect: TOPIC_INVALID for values that the topic does not have.
    """

    topic: str
    perm: int | None = None
    order: bool | None = None
    retention_ms: int | None = None
    filter_type: str | None = None
    sys_flag: int | None = None
    first_group: str | None = None
    spread: str | None = None


@header
class TopicGrowRequest(Header):
    """Give a topic `queues` queues here, more than it has now; hidden ones are shown again.

    A topic with `order` grows only when every group has consumed all of it (TOPIC_IN_USE).
    """

    topic: str
    queues: int


@header
class QueuesRemoveRequest(Header):
    """One step of removing the queues from `queues` on; see the module. A repeated step changes nothing."""

    topic: str
    queues: int
    step: str


@header
class TopicDeleteRequest(Header):
    """Remove a topic that is hidden from consumers, or with `force` at once, whoever uses it.

    Answered without rows once everything that it held is given up durably.
    """

    topic: str
    force: bool = False


@header
class TopicPauseRequest(Header):
    """Pause (`pause` True) or resume a topic: while paused it takes and keeps, and delivers nothing."""

    topic: str
    pause: bool


class FirstReaderRow(NamedTuple):
    """The first group of a topic here, "" = nobody has read it yet."""

    topic: str
    group: str


@header
class TopicFirstGroupRequest(Header):
    """Ask which group was the first to read these topics, as far as their `first_group` says that it matters.

    `is_claim`: be it, where there is none. Answered with what is durable then.
    """

    group: str
    topics: list[str]
    is_claim: bool = False


@header
class TopicFirstGroupResponse(Header):
    """FirstReaderRow for each of the topics whose first group begins at the beginning."""

    topics: list[FirstReaderRow]
