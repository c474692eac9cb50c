"""What a broker that may not lead its shard any more does not answer: whatever leaves without a write.

A PRODUCE decides for itself, run by run (`broker.produce.requests`); what it stores is confirmed by the
copies, which a deposed leader does not have any more. All else (leases, offsets, sessions, reads) would hand
out what another broker may have handed out since, so each request asks the clock first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdmq.errors import Code, RemoteError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode

FREE: Final = frozenset(
    {
        RequestCode.HEARTBEAT,
        RequestCode.CONFIG_RELOAD,
        RequestCode.GATEWAY_RELOAD,
        RequestCode.PRODUCE,
        RequestCode.BROKER_STATUS,
        RequestCode.CONNECTION_LIST,
        RequestCode.STATISTICS,
        RequestCode.ALARM_LIST,
        RequestCode.REPLICA_LIST,
    }
)
"""Requests that say how this broker is, hand nothing out, or look at the lease by themselves."""


def fenced(
    routes: Mapping[RequestCode, OnRequest], may_hand_out: Callable[[], bool]
) -> dict[RequestCode, OnRequest]:
    """Give `routes` back with a look at the lease before each; NOT_LEADER when it has run out."""

    def guard(handler: OnRequest) -> OnRequest:
        def guarded(request: Request) -> None:
            if not may_hand_out():
                raise RemoteError(
                    Code.NOT_LEADER,
                    "another replica may lead this broker's shard: its lease has run out; refresh the route",
                )
            handler(request)

        return guarded

    return {code: handler if code in FREE else guard(handler) for code, handler in routes.items()}
