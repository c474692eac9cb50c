"""Consumer groups over all brokers: settings, members, progress, resets. See docs/groups.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls, known
from holdmq.client.names import check_group
from holdmq.client.pages import Column, ColumnValue, column_of, merged
from holdmq.errors import Code, RemoteError, UsageError
from holdmq.message import TopicQueue
from holdmq.names.search import names_found
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    GroupListRequest,
    GroupListResponse,
    GroupMembersResponse,
    GroupPauseRequest,
    GroupRequest,
    GroupRow,
    GroupUpdateRequest,
    MemberRow,
)
from holdmq.wire.header import Header, rows
from holdmq.wire.offset_headers import (
    MEMORY_THEN_STORE,
    TO_EARLIEST,
    TO_LATEST,
    TO_OFFSET,
    TO_TIME,
    OffsetChange,
    OffsetChangeResponse,
    OffsetCloneRequest,
    OffsetGetRequest,
    OffsetGetResponse,
    OffsetResetRequest,
    OffsetRow,
)

TIMEOUT_S: Final = 30.0
"""Deadline of one request, retries included: a broker's restart fits in. Every request may be repeated."""

_UNKNOWN: Final = (Code.GROUP_UNKNOWN, Code.TOPIC_UNKNOWN)


@dataclass(slots=True)
class GroupView:
    """One group over all brokers. `rows`: its settings at each; `members`: the most that a broker has."""

    group: str
    rows: dict[str, GroupRow] = field(default_factory=dict)

    @property
    def members(self) -> int:
        return max((row.members for row in self.rows.values()), default=0)

    @property
    def mode(self) -> str:
        """The mode in which it consumes, or did last; "" = nobody ever joined."""
        return next((row.mode for row in self.rows.values() if row.mode), "")


class QueueProgress(NamedTuple):
    """A group's progress in one queue. `offset` -1 = none is kept.

    `oldest_ms`: the store time of the oldest message that waits; 0 = none does, or it is not known. `done`:
    messages from `offset` on that a shared group has acknowledged.
    """

    queue: TopicQueue
    offset: int
    first_offset: int
    end_offset: int
    oldest_ms: int
    done: int = 0

    @property
    def lag(self) -> int:
        """Messages that wait or are in flight; 0 where the group has not begun."""
        if self.offset < 0:
            return 0
        return max(0, self.end_offset - max(self.offset, self.first_offset) - self.done)

    def lag_ms(self, now_ms: int) -> int:
        """How long the oldest message that waits has been stored; 0 = none waits."""
        return max(0, now_ms - self.oldest_ms) if self.oldest_ms else 0


class MovedOffset(NamedTuple):
    """A queue's offset before (-1 = none) and after a reset or clone."""

    queue: TopicQueue
    before: int
    after: int


def _group_column(asked: GroupListRequest, reply: Reply) -> Column:
    answer = reply.header(GroupListResponse)
    if answer.names is not None and answer.values is not None:
        return column_of(answer.names, answer.values)
    # A broker of before columns: whole rows of all groups.
    found = {row.group: row for row in rows(GroupRow, answer.groups)}
    return {name: getattr(found[name], asked.column) for name in names_found(found, None, asked.search)}


class GroupAdmin(AdminCalls):
    """Asks brokers about groups: `async with GroupAdmin(["host:9876"]) as groups`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Every call raises TransportError when
    a broker does not answer within `timeout_s`, RemoteError when one refuses (GROUP_UNKNOWN: none has the
    group).
    """

    KIND = "groups"
    TIMEOUT_S = TIMEOUT_S

    # Settings

    async def groups(self, names: Collection[str] | None = None, *, search: str = "") -> dict[str, GroupView]:
        """Groups by name; `names`: only these, None = all; `search`: as for `column`."""
        request = GroupListRequest(None if names is None else list(names), search)
        found: dict[str, GroupView] = {}
        for broker, reply in known(await self._ask_all(RequestCode.GROUP_LIST, request)).items():
            for row in rows(GroupRow, reply.header(GroupListResponse).groups):
                found.setdefault(row.group, GroupView(row.group)).rows[broker] = row
        return {name: found[name] for name in names_found(found, names, search)}

    async def column(self, column: str, search: str = "") -> dict[str, ColumnValue]:
        """Return of each group its name and `column`: group, mode, or members, the most that a broker has.

        `search`: only of groups that have it in their names, in capitals or not. What a page is to be sorted
        by is asked for so; then its rows are, by name.
        """
        request = GroupListRequest(None, search, column)
        answers = known(await self._ask_all(RequestCode.GROUP_LIST, request))
        return merged((_group_column(request, reply) for reply in answers.values()), max)

    async def update(self, group: str, **settings: Any) -> GroupView:
        """Create a group on every broker, or change its settings there; None leaves one as it is.

        Settings are those of GroupUpdateRequest: `consume_enable`, `consume_from_min_enable`,
        `consume_broadcast_enable`, `retry_queue_nums`, `retry_max_times`, `delay_levels_ms`, … Raises
        UsageError for a bad name, RemoteError GROUP_INVALID for a value out of its range.
        """
        check_group(group)
        request = GroupUpdateRequest(group, **settings)
        return self._view(group, known(await self._ask_all(RequestCode.GROUP_UPDATE, request)))

    async def pause(self, group: str, pause: bool = True) -> GroupView:
        """Pause a group (False: resume it) at every broker: it keeps its offsets and gets nothing."""
        check_group(group)
        answers = await self._ask_known(RequestCode.GROUP_PAUSE, GroupPauseRequest(group, pause))
        return self._view(group, answers)

    async def delete(self, group: str) -> None:
        """Delete a group and its offsets at every broker; RemoteError GROUP_IN_USE while it has members."""
        check_group(group)
        members = await self.members(group)
        if members:
            names = ", ".join(sorted({row.client_id for found in members.values() for row in found})[:5])
            raise RemoteError(Code.GROUP_IN_USE, f"group {group!r} has members: {names}; stop them first")
        try:
            await self._ask_known(RequestCode.GROUP_DELETE, GroupRequest(group))
        except RemoteError as error:
            # It was there a moment ago: an attempt took effect whose answer was lost.
            if error.code != Code.GROUP_UNKNOWN:
                raise

    # Members and progress

    async def members(self, group: str) -> dict[str, list[MemberRow]]:
        """A group's members, by the brokers at which there are any."""
        check_group(group)
        answers = await self._ask_known(RequestCode.GROUP_MEMBERS, GroupRequest(group))
        found = {b: rows(MemberRow, r.header(GroupMembersResponse).members) for b, r in answers.items()}
        return {broker: members for broker, members in found.items() if members}

    async def progress(
        self, group: str, topics: Collection[str] | None = None, *, read_type: str = MEMORY_THEN_STORE
    ) -> list[QueueProgress]:
        """A group's offsets and backlog in these topics, None = in all that it has offsets in or reads.

        `read_type`: memory, store (what is on disk) or memory_then_store. Queues without an offset have -1.
        """
        check_group(group)
        request = OffsetGetRequest(group, None if topics is None else list(topics), read_type)
        found: list[QueueProgress] = []
        for broker, reply in (await self._ask_known(RequestCode.OFFSET_GET, request)).items():
            for row in rows(OffsetRow, reply.header(OffsetGetResponse).offsets):
                queue = TopicQueue(row.topic, broker, row.queue_id)
                bounds = (row.first_offset, row.end_offset)
                found.append(QueueProgress(queue, row.offset, *bounds, row.oldest_ms, row.done))
        return sorted(found)

    async def reset(
        self,
        group: str,
        topic: str,
        to: str,
        value: int = 0,
        *,
        queues: Collection[TopicQueue] | None = None,
        dry_run: bool = False,
    ) -> list[MovedOffset]:
        """Move a group in a topic to `earliest`, `latest`, a `time` (`value`: ms) or an `offset` (`value`).

        `queues` None = all of the topic's. Every broker is asked first whether it can; `dry_run` ends there
        and returns what would happen. Members lose their leases and go on at the new offsets.
        """
        check_group(group)
        if to not in (TO_EARLIEST, TO_LATEST, TO_TIME, TO_OFFSET):
            raise UsageError(f"reset to {to!r}: earliest, latest, time and offset are possible")
        live = await self._live_brokers() if queues else []
        for queue in queues or ():
            if queue.topic != topic or queue.broker not in live:
                raise UsageError(f"{queue} is no queue of topic {topic!r} at a live broker")

        def request(broker: str, is_dry: bool) -> OffsetResetRequest | None:
            ids = None
            if queues is not None:
                ids = [q.queue_id for q in queues if (q.topic, q.broker) == (topic, broker)]
                if not ids:
                    return None
            return OffsetResetRequest(group, topic, to, value, ids, is_dry)

        return await self._move(RequestCode.OFFSET_RESET, request, dry_run)

    async def clone(
        self, source: str, target: str, topics: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> list[MovedOffset]:
        """Give `target`, a group without members, the offsets of `source`; it is created if need be."""
        check_group(source)
        check_group(target)
        names = None if topics is None else list(topics)
        return await self._move(
            RequestCode.OFFSET_CLONE,
            lambda _, is_dry: OffsetCloneRequest(source, target, names, is_dry),
            dry_run,
        )

    async def _move(self, code: RequestCode, request: Any, dry_run: bool) -> list[MovedOffset]:
        headers = {broker: request(broker, True) for broker in await self._live_brokers()}
        asked = {broker: header for broker, header in headers.items() if header is not None}
        planned = known(await self._ask_each(code, asked), _UNKNOWN)
        if not dry_run:
            asked = {broker: request(broker, False) for broker in planned}
            planned = known(await self._ask_each(code, asked), _UNKNOWN)
        return sorted(
            MovedOffset(TopicQueue(change.topic, broker, change.queue_id), change.before, change.after)
            for broker, reply in planned.items()
            for change in rows(OffsetChange, reply.header(OffsetChangeResponse).changes)
        )

    # Calls

    @staticmethod
    def _view(group: str, answers: dict[str, Reply]) -> GroupView:
        found = {b: rows(GroupRow, r.header(GroupListResponse).groups) for b, r in answers.items()}
        return GroupView(group, {broker: listed[0] for broker, listed in found.items() if listed})

    async def _ask_known(self, code: RequestCode, header: Header) -> dict[str, Reply]:
        """The answers of the brokers that know the group, at least one."""
        return known(await self._ask_all(code, header), _UNKNOWN)
