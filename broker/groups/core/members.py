"""The members of a group: its members are connections, all in the same mode.

A member that was silent for `expiry_s` (no join, no lease) is dropped: a process that hangs keeps its
connection, and what is allocated to it would wait for ever. A second connection of the same client
id takes the first one's place: usually the broker has not heard yet that the first is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from holdmq.errors import Code, RemoteError
from holdmq.names.rooms import room_fault
from holdmq.wire.group_headers import GroupSubscription

MEMBERS_MAX: Final = 100_000
"""Memberships of one broker, some 1 KiB each: ten for each of 10,000 connections."""
SUBSCRIPTIONS_MAX: Final = 1_000
SUBSCRIPTIONS_MAX_BYTES: Final = 64 << 10
"""Topics and filters of one member together: what a CONNECT may bring, too."""
STRATEGY_MAX: Final = 120
"""Characters of a strategy's name: as many as a group's has."""

Owner = TypeVar("Owner")


class GroupMember(Generic[Owner]):
    """One connection's membership. Times: `joined_ms` wall clock, `renewed_at` the caller's clock.

    `told_version`: the group's version that it knows.
    """

    __slots__ = (
        "client_id",
        "group",
        "joined_ms",
        "mode",
        "owner",
        "renewed_at",
        "room",
        "strategy",
        "subscriptions",
        "told_version",
    )

    def __init__(
        self, owner: Owner, group: str, client_id: str, mode: str, joined_ms: int, renewed_at: float
    ) -> None:
        self.owner = owner
        self.group = group
        self.client_id = client_id
        self.mode = mode
        self.strategy = ""
        self.room = ""
        self.subscriptions: list[GroupSubscription] = []
        self.joined_ms = joined_ms
        self.renewed_at = renewed_at
        self.told_version = 0


class Joined(NamedTuple, Generic[Owner]):
    """What a join did: the member, whether it is new or changed, and whose place it took."""

    member: GroupMember[Owner]
    is_new: bool
    is_change: bool
    replaced: GroupMember[Owner] | None


class Members(Generic[Owner]):
    """All members of all groups of one broker.

    Versions of all groups come from one counter, so that a group that ends and begins again never
    repeats one.
    """

    def __init__(
        self, expiry_s: float, group_max: int, first_version: int = 1, members_max: int = MEMBERS_MAX
    ) -> None:
        self.expiry_s = expiry_s
        self.expired = 0
        self.group_max = group_max
        self._members_max = members_max
        self._version = first_version
        self._versions: dict[str, int] = {}
        self._groups: dict[str, dict[Owner, GroupMember[Owner]]] = {}
        self._by_owner: dict[Owner, set[str]] = {}
        # Renewing moves to the end: the first is the one that was silent longest.
        self._by_renewal: dict[tuple[Owner, str], GroupMember[Owner]] = {}

    def __len__(self) -> int:
        return len(self._by_renewal)

    def get(self, owner: Owner, group: str) -> GroupMember[Owner] | None:
        """This connection's membership; None = it is no member."""
        return self._by_renewal.get((owner, group))

    def of(self, group: str) -> list[GroupMember[Owner]]:
        """A group's members, by client id."""
        return sorted(self._groups.get(group, {}).values(), key=lambda member: member.client_id)

    def unlike(self, member: GroupMember[Owner]) -> GroupMember[Owner] | None:
        """A member of the same group that wants or divides other messages; None = all are alike."""
        wanted = sorted(member.subscriptions)
        for other in self._groups.get(member.group, {}).values():
            is_same = other.subscriptions == member.subscriptions or sorted(other.subscriptions) == wanted
            if other.strategy != member.strategy or not is_same:
                return other
        return None

    def count(self, group: str) -> int:
        """How many members a group has."""
        return len(self._groups.get(group, ()))

    def mode(self, group: str) -> str:
        """The mode of a group's members; "" = it has none."""
        for member in self._groups.get(group, {}).values():
            return member.mode
        return ""

    def groups(self) -> Iterator[str]:
        """Groups that have members."""
        return iter(self._groups)

    def version(self, group: str) -> int:
        """The group's version; 0 = it has no members."""
        return self._versions.get(group, 0)

    def raise_version(self, group: str) -> None:
        """Something that members act upon has changed."""
        if group in self._groups:
            self._version += 1
            self._versions[group] = self._version

    def start_above(self, version: int) -> None:
        """Give groups only versions above this one (an earlier start's)."""
        self._version = max(self._version, version)

    def _check_join(self, owner: Owner, group: str, mode: str, replaced: GroupMember[Owner] | None) -> None:
        """Raise MODE_CONFLICT or LIMIT_EXCEEDED if this connection cannot become a member."""
        others = [m for m in self._groups.get(group, {}).values() if m.owner != owner and m is not replaced]
        if others and others[0].mode != mode:
            raise RemoteError(
                Code.MODE_CONFLICT,
                f"group {group!r} has members that consume in mode {others[0].mode}, not {mode}",
            )
        if (owner, group) in self._by_renewal or replaced is not None:
            return
        if len(others) >= self.group_max:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"group {group!r} has broker.group_members_max ({self.group_max}) members",
            )
        if len(self._by_renewal) >= self._members_max:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{self._members_max} members of groups at this broker")

    def check_wishes(self, subscriptions: list[GroupSubscription], strategy: str, room: str = "") -> None:
        """Raise LIMIT_EXCEEDED if these are too much for one member, MISSING_FIELD for what is no room."""
        fault = room_fault(room)
        if fault is not None:
            raise RemoteError(Code.MISSING_FIELD, fault)
        if len(strategy) > STRATEGY_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"a strategy of {len(strategy)} characters; {STRATEGY_MAX} are possible"
            )
        size = sum(len(s.topic) + len(s.filter) for s in subscriptions)
        if len(subscriptions) > SUBSCRIPTIONS_MAX or size > SUBSCRIPTIONS_MAX_BYTES:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"{len(subscriptions)} subscriptions of {size} characters; {SUBSCRIPTIONS_MAX} and "
                f"{SUBSCRIPTIONS_MAX_BYTES} are possible",
            )

    def join(
        self,
        owner: Owner,
        client_id: str,
        group: str,
        mode: str,
        strategy: str,
        subscriptions: list[GroupSubscription],
        now: float,
        now_ms: int,
        room: str = "",
    ) -> Joined[Owner]:
        """Become a member, renew, or change subscriptions.

        Raises MODE_CONFLICT, LIMIT_EXCEEDED, MISSING_FIELD; then nothing has happened.
        """
        self.check_wishes(subscriptions, strategy, room)
        known = self._groups.get(group, {})
        replaced = next((m for m in known.values() if m.client_id == client_id and m.owner != owner), None)
        self._check_join(owner, group, mode, replaced)
        if replaced is not None:
            self._remove(replaced)
        known = self._groups.setdefault(group, {})
        member = known.get(owner)
        is_new = member is None
        if member is None:
            member = GroupMember(owner, group, client_id, mode, now_ms, now)
            known[owner] = member
            self._by_owner.setdefault(owner, set()).add(group)
        wanted = (mode, strategy, subscriptions, room)
        is_change = is_new or wanted != (member.mode, member.strategy, member.subscriptions, member.room)
        member.mode, member.strategy, member.subscriptions, member.room = wanted
        self._renewed(member, now)
        if is_change:
            self.raise_version(group)
        return Joined(member, is_new, is_change, replaced)

    def renew(self, owner: Owner, group: str, now: float) -> bool:
        """A member gave a sign of life; False = it is none."""
        member = self._by_renewal.get((owner, group))
        if member is None:
            return False
        self._renewed(member, now)
        return True

    def leave(self, owner: Owner, group: str) -> GroupMember[Owner] | None:
        """End a membership; None = there was none."""
        member = self._by_renewal.get((owner, group))
        if member is not None:
            self._remove(member)
        return member

    def close(self, owner: Owner) -> list[GroupMember[Owner]]:
        """A connection is gone: end its memberships."""
        left = [self._by_renewal[owner, group] for group in sorted(self._by_owner.get(owner, ()))]
        for member in left:
            self._remove(member)
        return left

    def expire(self, now: float) -> list[GroupMember[Owner]]:
        """End the memberships of those that were silent too long."""
        late: list[GroupMember[Owner]] = []
        for member in self._by_renewal.values():
            if member.renewed_at + self.expiry_s > now:
                break
            late.append(member)
        for member in late:
            self._remove(member)
        self.expired += len(late)
        return late

    def next_deadline(self) -> float | None:
        """When `expire` should be called; None = nobody is a member."""
        for member in self._by_renewal.values():
            return member.renewed_at + self.expiry_s
        return None

    def postpone(self, by_s: float) -> None:
        """This process stood still for so long: nobody could renew."""
        for member in self._by_renewal.values():
            member.renewed_at += by_s

    def _renewed(self, member: GroupMember[Owner], now: float) -> None:
        key = (member.owner, member.group)
        self._by_renewal.pop(key, None)
        self._by_renewal[key] = member
        member.renewed_at = now

    def _remove(self, member: GroupMember[Owner]) -> None:
        group = member.group
        del self._by_renewal[member.owner, group]
        del self._groups[group][member.owner]
        groups = self._by_owner[member.owner]
        groups.discard(group)
        if not groups:
            del self._by_owner[member.owner]
        if self._groups[group]:
            self.raise_version(group)
        else:
            del self._groups[group]
            del self._versions[group]
