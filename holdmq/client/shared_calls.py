"""What `Admin` asks about shared groups."""

from __future__ import annotations

from dataclasses import dataclass

from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
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


class SharedCalls:
    """The part of `Admin` that is about shared groups."""

    async def _ask_all(
        self, code: RequestCode, header: Header, timeout_s: float | None = None
    ) -> dict[str, Reply | HoldMQError]:
        raise NotImplementedError

    async def shared_groups(self, group: str = "") -> dict[str, SharedView | HoldMQError]:
        """What a shared group ("" = all) has done and what it has in flight, by live broker."""
        answers = await self._ask_all(RequestCode.SHARED_STATE, SharedStateRequest(group))
        found: dict[str, SharedView | HoldMQError] = {}
        for broker, reply in answers.items():
            if isinstance(reply, HoldMQError):
                found[broker] = reply
                continue
            answer = reply.header(SharedStateResponse)
            found[broker] = SharedView(
                rows(SharedQueueRow, answer.queues), rows(SharedMemberRow, answer.members)
            )
        return found
