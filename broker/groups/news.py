"""What members of groups are told by themselves: GROUP_CHANGED, all changes of a moment in one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from broker.groups.core.members import GroupMember, Members
from broker.groups.core.settings import GroupSetting
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import CLUSTERING, GroupState

TELL_MEMBER_S: Final = 0.0005
"""A group of n members is told of changes at most every n times this: each message names all n."""
WISHES_SHOWN: Final = 200
"""Characters of a member's strategy and subscriptions that a warning shows."""

log = structlog.get_logger("holdmq.broker")


class _News:
    """What a group's members do not know yet: all of them, and for whom a queue became free."""

    __slots__ = ("freed_for", "is_for_all")

    def __init__(self) -> None:
        self.is_for_all = False
        self.freed_for: set[Connection] = set()


class GroupNews:
    """Tells members at the end of the loop's turn; one handle for all groups."""

    def __init__(self, members: Members[Connection], get: Callable[[str], GroupSetting | None]) -> None:
        self.told = 0
        self._members = members
        self._get = get
        self._loop = asyncio.get_running_loop()
        self._news: dict[str, _News] = {}
        self._told_at: dict[str, float] = {}
        self._telling: asyncio.Handle | None = None

    def tell(self, group: str, *, for_all: bool = False, freed_for: Iterable[Connection] = ()) -> None:
        """Tell a group's members its state: all, or those for whom a queue became free."""
        news = self._news.setdefault(group, _News())
        news.is_for_all |= for_all
        news.freed_for.update(freed_for)
        if isinstance(self._telling, asyncio.TimerHandle):
            self._telling.cancel()
            self._telling = None
        if self._telling is None:
            self._telling = self._loop.call_soon(self._tell_all)

    def check_alike(self, member: GroupMember[Connection]) -> None:
        """Warn when a member divides the queues among others than the rest of its group does."""
        other = self._members.unlike(member) if member.mode == CLUSTERING else None
        if other is not None:
            log.warning(
                "members of a group differ: queues may be consumed by nobody, messages be filtered out",
                group=member.group,
                client_id=member.client_id,
                wants=_wishes(member),
                other_client_id=other.client_id,
                other_wants=_wishes(other),
            )

    def state(self, group: GroupSetting, asked_by: Connection | None = None) -> GroupState:
        """A group's state; for one who is about to be told that a queue is free, that too."""
        news = self._news.get(group.name)
        is_freed = asked_by is not None and news is not None and asked_by in news.freed_for
        members = self._members.of(group.name)
        return GroupState(
            group.name,
            self._members.version(group.name),
            [member.client_id for member in members],
            group.is_paused,
            group.retry_max_times,
            is_freed,
            {member.client_id: member.room for member in members if member.room},
        )

    def forget(self, group: str) -> None:
        """Its last member has gone."""
        self._news.pop(group, None)
        self._told_at.pop(group, None)

    def close(self) -> None:
        """Tell nobody any more."""
        if self._telling is not None:
            self._telling.cancel()

    def _tell_all(self) -> None:
        """Send what is due; a large group that was told a moment ago waits."""
        self._telling = None
        now = self._loop.time()
        later: list[float] = []
        for name, news in list(self._news.items()):
            due = self._told_at.get(name, 0.0) + self._members.count(name) * TELL_MEMBER_S
            if due > now:
                later.append(due)
                continue
            del self._news[name]
            group = self._get(name)
            if group is not None and self._members.count(name):
                self._told_at[name] = now
                self._send(group, news)
        if later and self._telling is None:
            self._telling = self._loop.call_at(min(later), self._tell_all)

    def _send(self, group: GroupSetting, news: _News) -> None:
        state = self.state(group)
        freed = replace(state, freed=True)
        for member in self._members.of(group.name):
            is_freed = member.owner in news.freed_for
            is_news = news.is_for_all and member.told_version < state.version
            # Who does not read what he is sent learns it from the answer to his next join.
            if (is_freed or is_news) and member.owner.is_writable:
                self.told += 1
                member.told_version = state.version
                member.owner.send_one_way(RequestCode.GROUP_CHANGED, freed if is_freed else state)


def _wishes(member: GroupMember[Connection]) -> str:
    """Strategy and subscriptions, as a line of the log."""
    wanted = ", ".join(f"{s.topic}: {s.filter}" for s in sorted(member.subscriptions))
    return f"{member.strategy} ({wanted})"[:WISHES_SHOWN]
