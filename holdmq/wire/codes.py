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

    TOPIC_UPDATE = 43
    TOPIC_GROW = 44
    QUEUES_REMOVE = 45
    TOPIC_DELETE = 46
    TOPIC_PAUSE = 47

    BROKER_STATUS = 50
    CONNECTION_LIST = 51
    STATISTICS = 52
    BACKLOG = 53
    ALARM_LIST = 54

    BROKER_REGISTER = 60
    BROKER_UNREGISTER = 61
    ROUTE_GET = 62
    CLUSTER_GET = 63
    ORDER_GET = 64
    ORDER_SET = 65

    GROUP_JOIN = 70
    GROUP_LEAVE = 71
    GROUP_CHANGED = 72
    GROUP_MEMBERS = 73
    GROUP_LIST = 74
    GROUP_UPDATE = 75
    GROUP_DELETE = 76
    GROUP_PAUSE = 77
    QUEUE_LEASE = 78
    QUEUE_RELEASE = 79

    OFFSET_REPORT = 80
    OFFSET_GET = 81
    OFFSET_RESET = 82
    OFFSET_CLONE = 83

    SHARED_OPEN = 90
    SHARED_PULL = 91
    SHARED_ACK = 92
    SHARED_NACK = 93
    SHARED_EXTEND = 94
    SHARED_CLOSE = 95
    SHARED_STATE = 96

    SEND_BACK = 100
    DELAY = 101
    DLQ_LIST = 102
    DLQ_RESEND = 103
    DLQ_PURGE = 104

    MESSAGE_GET = 110
    MESSAGE_FIND = 111
    MESSAGE_BACKWARDS = 112
    OFFSET_AT = 113

    TABLE_GET = 120
    TABLE_SCAN = 121
    TABLE_PUT = 122
    TABLE_DELETE = 123
    TABLE_WATCH = 124
    TABLE_CHANGED = 125
    TABLE_UNWATCH = 126
