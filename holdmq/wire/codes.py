"""Request codes of the internal RPC. Numbers are never reused.

Response codes are `holdmq.errors.Code`.
"""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """What a request asks for."""

    HELLO = 1
    HEARTBEAT = 2

    PRODUCE = 10

    PULL = 20
    FILTER_SET = 21

    READ_OPEN = 30
    READ_FILTER = 31
    READ = 32
    READ_CLOSE = 33

    TOPIC_CREATE = 40
    TOPIC_LIST = 41
    QUEUE_BOUNDS = 42

    BROKER_STATUS = 50
    CONNECTION_LIST = 51

    BROKER_REGISTER = 60
    BROKER_UNREGISTER = 61
    ROUTE_GET = 62
    CLUSTER_GET = 63
