"""What `Admin` asks about shared groups."""

from __future__ import annotations

from dataclasses import dataclass

from holdmq.client.cluster_calls import ClusterCalls
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.shared_headers import (
    SharedMemberRow,
    SharedQueueRow,
    SharedStateRequest,
    SharedStateResponse,
)


@dataclass(slots=True)
class SharedView:
    """Shared groups at one broker: a row per queue of a group, and one per member."""

    queues: list[SharedQueueRow]
    members: list[SharedMemberRow]


class SharedCalls(ClusterCalls):
    """The part of `Admin` that is about shared groups."""

    async def shared_groups(self, group: str = "") -> dict[str, SharedView | HoldMQError]:
        """What a shared group ("" = all) has done and what it has in flight, by live broker."""

        def read(reply: Reply) -> SharedView:
            answer = reply.header(SharedStateResponse)
            return SharedView(rows(SharedQueueRow, answer.queues), rows(SharedMemberRow, answer.members))

        return await self._read_all(RequestCode.SHARED_STATE, SharedStateRequest(group), read)
