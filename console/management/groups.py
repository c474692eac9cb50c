"""Consumer groups: listed with their backlog, made, changed, moved, paused, deleted."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Literal

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, ListQuery, Noticed, Result
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from console.management.paging import following, offset_of, sort_of
from holdmq.client.groups import GroupView
from holdmq.client.pages import ranked
from holdmq.client.statistics import (
    BacklogView,
    GroupBacklog,
    StatisticsView,
    TrafficOf,
    group_backlogs,
    traffic,
)
from holdmq.errors import Code, HoldMQError, RemoteError

BACKLOG_FRESH_S: Final = 2.0
"""A backlog may be this old: ages are read from the log, for thousands of groups."""
BACKLOG_WAIT_S: Final = 0.6
"""How long a list waits for backlogs; it shows the ones before when they take longer."""
BACKLOG_ROWS_MAX: Final = 10_000
SORTS: Final = ("group", "mode", "members", "lag", "age_ms")


class GroupOverview(Answer):
    """A group over all brokers. `lag`: messages that it has yet to consume, the oldest for `age_ms`."""

    group: str
    mode: str
    members: int
    lag: int
    age_ms: int
    is_paused: bool
    retry_max_times: int
    brokers: list[str]


class GroupList(Noticed):
    """A part of the groups."""

    groups: list[GroupOverview]
    total: int
    next: str | None


class GroupSettingsAnswer(Answer):
    """What a group's members may, and how it retries; `delay_levels_ms` [] = as the broker does."""

    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    retry_queue_nums: int
    retry_max_times: int
    delay_levels_ms: list[int]


class GroupQueue(Answer):
    """A group's progress in a queue; `offset` -1 = none is kept."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    first_offset: int
    end_offset: int
    lag: int
    lag_ms: int


class GroupClient(Answer):
    """A member as one broker knows it, its machine room ("" = none), and how many queues it has there."""

    broker: str
    client_id: str
    address: str
    language: str
    software: str
    mode: str
    strategy: str
    room: str
    joined_ms: int
    queues: int
    topics: list[str]


class GroupTraffic(Answer):
    """What a group took of a topic per second in the last minute, and what came back since brokers started.

    `requeued` messages are delivered again, of `timed_out` the time was over at their member, `given_back`
    were sent back by it.
    """

    topic: str
    messages_out_per_s: float
    bytes_out_per_s: float
    requeued: int
    timed_out: int
    given_back: int


class GroupDetail(GroupOverview):
    """A group, queue by queue, member by member and topic by topic."""

    settings: GroupSettingsAnswer
    progress: list[GroupQueue]
    clients: list[GroupClient]
    traffic: list[GroupTraffic]


class GroupChange(InputModel):
    """Settings; null = as it is, or as the broker does."""

    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    retry_queue_nums: int | None = Field(None, ge=1, le=1024)
    retry_max_times: int | None = Field(None, ge=-1, le=1_000_000)
    delay_levels_ms: list[int] | None = Field(None, max_length=64)


class NewGroup(GroupChange):
    """A group to make at every broker."""

    group: str = Field(min_length=1, max_length=255)


class Reset(InputModel):
    """Where a group is to go in a topic: `value` is an offset, or ms since 1970. A dry run only tells."""

    topic: str = Field(min_length=1, max_length=255)
    to: Literal["earliest", "latest", "offset", "time"]
    value: int = Field(0, ge=0, le=(1 << 53) - 1)
    dry_run: bool = True


class MovedQueue(Answer):
    """A queue's offset before (-1 = none) and after."""

    topic: str
    broker: str
    queue_id: int
    before: int
    after: int


class ResetAnswer(Answer):
    """What was moved, or would be."""

    moved: list[MovedQueue]
    dry_run: bool


class BacklogOfGroups:
    """Knows the backlog of every group, a few seconds old at most where brokers can tell so fast."""

    def __init__(self, clients: ClusterClients) -> None:
        self._clients = clients
        self._known: dict[str, GroupBacklog] = {}
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def by_group(self) -> dict[str, GroupBacklog]:
        """Return the backlogs that are known."""
        if self._asking is None and time.monotonic() - self._asked_at >= BACKLOG_FRESH_S:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=BACKLOG_WAIT_S)
        return self._known

    async def _ask(self) -> None:
        try:
            views = await self._clients.admin.backlog(None, BACKLOG_ROWS_MAX)
            found = [view for view in views.values() if isinstance(view, BacklogView)]
            self._known = {one.group: one for one in group_backlogs(found)}
        except HoldMQError:
            # Whoever lists groups asks the brokers, too, and is told why they do not answer.
            self._known = {}
        finally:
            self._asked_at = time.monotonic()
            self._asking = None


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over the groups of the cluster."""
    groups = clients.groups
    backlogs = BacklogOfGroups(clients)

    async def list_(call: Call) -> Result:
        query: ListQuery = call.query
        wanted, offset = sort_of(query, SORTS), offset_of(query.after)
        column = wanted.removeprefix("-")
        asked = "group" if column in ("lag", "age_ms") else column
        values, known = await asyncio.gather(groups.column(asked, query.q), backlogs.by_group())
        if asked != column:
            values = {name: _waiting(known.get(name))[column] for name in values}
        names = ranked(values, is_descending=wanted.startswith("-"))[offset : offset + query.limit]
        views = await groups.groups(names) if names else {}
        rows = [_row(views[name], known.get(name)) for name in names if name in views]
        return GroupList.model_validate(
            {"groups": rows, "total": len(values), "next": following(query, len(values))}
        )

    async def detail(name: str) -> GroupDetail:
        view = (await groups.groups([name])).get(name)
        if view is None:
            raise RemoteError(Code.GROUP_UNKNOWN, f"there is no group {name[:255]!r}")
        progress, members, counted = await asyncio.gather(
            groups.progress(name),
            groups.members(name),
            clients.admin.statistics([], [name], group_topics=True),
        )
        views = [view for view in counted.values() if isinstance(view, StatisticsView)]
        now_ms = time.time_ns() // 1_000_000
        queues = [
            GroupQueue(
                topic=one.queue.topic,
                broker=one.queue.broker,
                queue_id=one.queue.queue_id,
                offset=one.offset,
                first_offset=one.first_offset,
                end_offset=one.end_offset,
                lag=one.lag,
                lag_ms=one.lag_ms(now_ms),
            )
            for one in progress
        ]
        row = next(iter(view.rows.values()))
        overview = _row(view, None)
        overview |= {
            "lag": sum(one.lag for one in queues), "age_ms": max((one.lag_ms for one in queues), default=0)
        }  # fmt: skip
        return GroupDetail(
            **overview,
            settings=GroupSettingsAnswer(
                **{field: getattr(row, field) for field in GroupSettingsAnswer.model_fields}
            ),
            progress=queues,
            traffic=[_traffic(one) for one in traffic(views, lambda view: view.group_topics)],
            clients=[
                GroupClient(
                    broker=broker,
                    topics=sorted({one.topic for one in member.subscriptions}),
                    **{
                        field: getattr(member, field)
                        for field in GroupClient.model_fields
                        if field not in ("broker", "topics")
                    },
                )
                for broker, found in members.items()
                for member in found
            ],
        )

    async def show(call: Call) -> Result:
        return await detail(call.path("name"))

    async def create(call: Call) -> Result:
        asked: NewGroup = call.body
        await groups.update(asked.group, **asked.model_dump(exclude={"group"}))
        return await detail(asked.group)

    async def update(call: Call) -> Result:
        asked: GroupChange = call.body
        name = call.path("name")
        if name not in await groups.groups([name]):
            raise RemoteError(Code.GROUP_UNKNOWN, f"there is no group {name[:255]!r}")
        await groups.update(name, **asked.model_dump())
        return await detail(name)

    async def reset(call: Call) -> Result:
        asked: Reset = call.body
        moved = await groups.reset(
            call.path("name"), asked.topic, asked.to, asked.value, dry_run=asked.dry_run
        )
        rows = [
            MovedQueue(
                topic=one.queue.topic,
                broker=one.queue.broker,
                queue_id=one.queue.queue_id,
                before=one.before,
                after=one.after,
            )
            for one in moved
        ]
        return ResetAnswer(moved=rows, dry_run=asked.dry_run)

    async def pause(call: Call) -> Result:
        await groups.pause(call.path("name"))
        return await detail(call.path("name"))

    async def resume(call: Call) -> Result:
        await groups.pause(call.path("name"), False)
        return await detail(call.path("name"))

    async def delete(call: Call) -> Result:
        await groups.delete(call.path("name"))
        return None

    viewer, operator = Rank.VIEWER, Rank.OPERATOR
    one = "groups/{name}"
    return [
        Endpoint("GET", "groups", viewer, list_, "Consumer groups and their backlogs.", GroupList, ListQuery),
        Endpoint("POST", "groups", operator, create, "Make a group at every broker.", GroupDetail,
                 body=NewGroup, status=201),
        Endpoint("GET", one, viewer, show, "A group, its members and its progress by queue.", GroupDetail),
        Endpoint("PATCH", one, operator, update, "Change a group's settings.", GroupDetail, body=GroupChange),
        Endpoint("DELETE", one, Rank.ADMIN, delete, "Delete a group without members, and its offsets.",
                 status=204),
        Endpoint("POST", f"{one}/reset", operator, reset, "Move a group in a topic, or tell what that would "
                 "do.", ResetAnswer, body=Reset),
        Endpoint("POST", f"{one}/pause", operator, pause, "Pause a group: it keeps its place, and gets "
                 "nothing.", GroupDetail),
        Endpoint("POST", f"{one}/resume", operator, resume, "Resume a group.", GroupDetail),
    ]  # fmt: skip


def _waiting(backlog: GroupBacklog | None) -> dict[str, int]:
    return {
        "lag": 0 if backlog is None else backlog.messages, "age_ms": 0 if backlog is None else backlog.age_ms
    }  # fmt: skip


def _row(view: GroupView, backlog: GroupBacklog | None) -> dict[str, Any]:
    settings = list(view.rows.values())
    return {
        "group": view.group,
        "mode": view.mode,
        "members": view.members,
        **_waiting(backlog),
        "is_paused": any(row.is_paused for row in settings),
        "retry_max_times": settings[0].retry_max_times,
        "brokers": sorted(view.rows),
    }


def _traffic(one: TrafficOf) -> GroupTraffic:
    return GroupTraffic(
        topic=one.topic,
        messages_out_per_s=one.minute.messages_out,
        bytes_out_per_s=one.minute.bytes_out,
        **one.back._asdict(),
    )
