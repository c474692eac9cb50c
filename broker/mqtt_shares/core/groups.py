"""MQTT's share groups without their sockets: who is a member, who gets the next message, what comes again.

A group is a cursor into the log of this broker: everything below `position` was looked at, and of that each
message which its filter wants is in one place only:

- settled, and known no more;
- *out*, at a member: until it settles it, gives it back, or its connection ends. A QoS 2 message is *taken*:
  it stays with its session from then on, connected or not, and goes to nobody if that ends [MQTT-4.8.2-4]
  [MQTT-4.8.2-5];
- *waiting* to be handed out again.

So a group costs what is at its members, however long the log; one without members on line costs a number.
Time and positions are arguments; `news` is what must be written down, `woken` who may have something to hand
out. Source: mqtt.md, Shared.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final, Generic, TypeVar

from broker.kernel.core.deadlines import Deadlines
from broker.kernel.core.filters import FilterSet
from broker.mqtt_shares.core.records import (
    BEGINS,
    ENDS,
    HOLDS,
    LEAVES,
    SETTLED,
    WAITS,
    Entry,
    Holder,
    RestoredShares,
    ShareNews,
    snapshot_entries,
)
from holdmq.errors import Code
from holdmq.wire.session_headers import NEVER_EXPIRES_S
from holdmq.wire.share_headers import ShareJoin

GROUPS_MAX: Final = 10_000
"""Groups at a broker: each that reads a topic is looked at when a batch of it is confirmed."""
MEMBERS_MAX: Final = 200_000
"""Sessions that hold groups at a broker, connected or not."""
OUT_MAX: Final = 500_000
"""Messages out and waiting, of all groups: 100 MB at worst. At the bound only what waits is handed out."""
CREDIT_MAX: Final = 65_535
"""MQTT's largest receive maximum."""
LINGER_S: Final = 60.0
"""How long a session may be away that did not say so, or be late at its end: a worker's way back after a
broken connection, and what the clocks of gateways and brokers differ in."""

C = TypeVar("C", bound=Hashable)


class ShareMember(Generic[C]):
    """A session's part in a group. `owner` is the connection that speaks for it, None while there is none.

    `out` has its messages by log position, True for those that are taken. `credit`: how many it has room for.
    `is_leaving`: it holds the group no more, and only settles what it has.
    """

    __slots__ = (
        "client_id", "credit", "ended_ms", "expiry_s", "group", "is_leaving", "is_ready", "member_id", "out",
        "owner", "qos", "uid",
    )  # fmt: skip

    def __init__(self, group: ShareGroup[C], client_id: str, uid: int, expiry_s: int, qos: int) -> None:
        self.group = group
        self.client_id = client_id
        self.uid = uid
        self.expiry_s = expiry_s
        self.qos = qos
        self.ended_ms = 0
        self.owner: C | None = None
        self.member_id = 0
        self.credit = 0
        self.out: dict[int, bool] = {}
        self.is_leaving = False
        self.is_ready = False
        """Whether it is in its group's line of those with room."""


class ShareGroup(Generic[C]):
    """One `$share/<name>/<filter>`. `filters`, and the `topics` that they name, are its shell's.

    `is_live`: all of the log was looked at, so that its position is the log's end until a batch comes that
    may concern it.
    """

    __slots__ = (
        "chunk_bytes", "filters", "is_live", "is_reading", "leaving", "members", "name", "online", "out",
        "position", "qos0_from", "ready", "settled", "topic_filter", "topics", "waiting", "waits",
    )  # fmt: skip

    def __init__(self, name: str, position: int) -> None:
        self.name = name
        self.topic_filter = name.split("/", 2)[2]
        self.position = position
        self.qos0_from = position
        """Below it QoS 0 messages were published while nobody was there."""
        self.members: dict[str, ShareMember[C]] = {}
        self.leaving: set[ShareMember[C]] = set()
        self.online = 0
        self.ready: deque[ShareMember[C]] = deque()
        self.out: dict[int, ShareMember[C]] = {}
        self.waits: set[int] = set()
        self.waiting: list[int] = []
        """A heap of `waits`; what is in there and not in `waits` was settled meanwhile."""
        self.settled: set[int] = set()
        """After a start: positions past the group's own that were settled before."""
        self.filters = FilterSet()
        self.topics: set[str] = set()
        self.is_live = False
        self.is_reading = False
        self.chunk_bytes = 0

    def is_known(self, position: int) -> bool:
        """Whether a message that a scan finds is in hand, or done, already."""
        if position in self.settled:
            self.settled.discard(position)
            return True
        return position in self.out or position in self.waits

    def floor(self, confirmed: int) -> int:
        """What lies below in the log is needed no more. Any thread."""
        own = confirmed if self.is_live else self.position
        return min([own, *list(self.out), *list(self.waits)])


class ShareCounts:
    """Since the start, messages if nothing else is said."""

    __slots__ = (
        "behind",
        "given",
        "given_again",
        "joins",
        "nobody",
        "passed",
        "refused",
        "returned",
        "settled",
    )

    def __init__(self) -> None:
        self.given = self.given_again = self.settled = self.returned = 0
        self.nobody = 0
        """Taken by a session that ended."""
        self.behind = 0
        """Gone by retention before they were settled."""
        self.passed = 0
        """QoS 0 ones that nobody was there for."""
        self.joins = self.refused = 0


class _Ending(Generic[C]):
    """A member that is away since `ended_ms`: looked at when it may be over."""

    __slots__ = ("ended_ms", "member")

    def __init__(self, member: ShareMember[C]) -> None:
        self.member = member
        self.ended_ms = member.ended_ms

    @property
    def is_over(self) -> bool:
        member = self.member
        return member.ended_ms != self.ended_ms or member.group.members.get(member.client_id) is not member


class ShareGroups(Generic[C]):
    """All share groups of a broker."""

    def __init__(
        self, groups_max: int = GROUPS_MAX, members_max: int = MEMBERS_MAX, out_max: int = OUT_MAX
    ) -> None:
        self.groups: dict[str, ShareGroup[C]] = {}
        self.news = ShareNews()
        self.counts = ShareCounts()
        self.woken: dict[str, ShareGroup[C]] = {}
        self.crowded: dict[str, ShareGroup[C]] = {}
        """Those that may have more to hand out once less is in hand."""
        self.made: list[ShareGroup[C]] = []
        """Groups that came, for the shell to give them their filters."""
        self.ended: list[ShareGroup[C]] = []
        self.members = 0
        self.in_hand = 0
        """Messages out and waiting."""
        self.groups_max = groups_max
        self.members_max = members_max
        self.out_max = out_max
        self._restored_to = 0
        """What lies below it in the log was there before this start, and may be at a client."""
        self._of_owner: dict[C, dict[int, ShareMember[C]]] = {}
        self._endings: Deadlines[_Ending[C]] = Deadlines()

    # Start, and snapshots

    def restore(self, restored: RestoredShares, now_ms: int, end: int) -> None:
        """Go on with what a start found, in a log up to `end`. Nobody is connected."""
        self._restored_to = end
        for name, found in restored.groups.items():
            group: ShareGroup[C] = ShareGroup(name, found.position)
            self.groups[name] = group
            self.made.append(group)
            for client_id, holder in found.holders.items():
                member = ShareMember(group, client_id, holder.uid, holder.expiry_s, 0)
                member.ended_ms = holder.ended_ms or max(1, now_ms)
                group.members[client_id] = member
                self.members += 1
                self._await_end(member)
            for position, client_id in found.taken.items():
                holding = group.members.get(client_id)
                if holding is not None:
                    self._put_out(holding, position, True)
            for position in found.waiting:
                self._put_back(group, position)
            group.settled = {position for position in found.settled if position not in group.out}
            if not group.members:
                self._end_group(group)

    def entries(self, confirmed: int) -> Iterator[Entry]:
        """A snapshot's entries; messages at members with QoS 1 are told as waiting."""
        for group in self.groups.values():
            position = confirmed if group.is_live else group.position
            holders = [(m.client_id, Holder(m.uid, m.expiry_s, m.ended_ms)) for m in group.members.values()]
            taken = [
                (m.client_id, positions)
                for m in group.members.values()
                if (positions := [p for p, is_taken in m.out.items() if is_taken])
            ]
            waiting = [p for p, m in group.out.items() if not m.out[p]]
            yield from snapshot_entries(
                group.name, position, holders, taken, [*waiting, *group.waits], list(group.settled)
            )

    # Members

    def join(self, owner: C, row: ShareJoin, position: int, confirmed: int) -> tuple[Code, str]:
        """A session that is connected is a member; a group that is new begins at `position`.

        OK, or why it cannot be one.
        """
        group = self.groups.get(row.name)
        member = None if group is None else group.members.get(row.client_id)
        if member is not None and member.uid != row.uid:
            # The client has begun anew: its older session is over, and its group if nobody else holds it.
            self._over(member)
            group, member = self.groups.get(row.name), None
        elif member is not None and member.owner is owner and member.member_id != row.member_id:
            # It left, and came again before that was told: what it has is settled under its old number.
            self._leave(member)
            group, member = self.groups.get(row.name), None
        if member is None and self.members >= self.members_max:
            self.counts.refused += 1
            return Code.LIMIT_EXCEEDED, f"{self.members_max} sessions hold share groups at this broker"
        if group is None:
            if len(self.groups) >= self.groups_max:
                self.counts.refused += 1
                return Code.LIMIT_EXCEEDED, f"{self.groups_max} share groups at this broker"
            group = self.groups[row.name] = ShareGroup(row.name, position)
            self.made.append(group)
            self.news.add(BEGINS, group.name, position)
        if member is None:
            member = group.members[row.client_id] = ShareMember(
                group, row.client_id, row.uid, row.expiry_s, row.qos
            )
            self.members += 1
        elif member.owner is owner:
            self._change(member, row)
            return Code.OK, ""
        else:
            self._disconnect(member)
        self._attach(member, owner, row, confirmed)
        self.counts.joins += 1
        return Code.OK, ""

    def _change(self, member: ShareMember[C], row: ShareJoin) -> None:
        """The options of a subscription changed."""
        member.qos, member.expiry_s = row.qos, row.expiry_s
        # Told again: the log may have refused it the first time.
        self.news.add(BEGINS, member.group.name, member.group.position)
        self._note(member)

    def _attach(self, member: ShareMember[C], owner: C, row: ShareJoin, confirmed: int) -> None:
        group = member.group
        member.owner, member.member_id = owner, row.member_id
        member.qos, member.expiry_s, member.ended_ms = row.qos, row.expiry_s, 0
        self._of_owner.setdefault(owner, {})[row.member_id] = member
        if not group.online:
            group.qos0_from = max(group.qos0_from, confirmed)
        group.online += 1
        self._note(member)
        planned, held = set(row.planned), set(row.held)
        for position in list(member.out):
            if position not in planned and position not in held:
                self._return(member, position)
        for position in planned:
            self._settle_held(member, position)
        for position in held:
            if self._take_up(group, position) or self._is_found_later(group, position):
                self._put_out(member, position, False)
        self._wake(group)

    def credit(self, owner: C, member_id: int, messages: int) -> None:
        """A member has room for so many messages more."""
        member = self._of_owner.get(owner, {}).get(member_id)
        if member is not None:
            self._make_room(member, messages)

    def offline(self, owner: C, member_id: int, expiry_s: int, now_ms: int, begun: Collection[int]) -> None:
        """A member's connection ended: its session lasts for `expiry_s`, 0 = it is over.

        Of QoS 2 it has `begun` with these; what was on its way to it is free.
        """
        member = self._of_owner.get(owner, {}).get(member_id)
        if member is None:
            return
        member.expiry_s = expiry_s
        kept = frozenset(begun)
        for position in [p for p in member.out if p not in kept]:
            self._return(member, position)
        if member.is_leaving or not expiry_s:
            self._over(member)
        else:
            self._away(member, now_ms)

    def owner_gone(self, owner: C, now_ms: int) -> None:
        """A connection was lost: what its members had is for others, but for what is taken."""
        for member in list(self._of_owner.get(owner, {}).values()):
            if member.is_leaving:
                self._over(member)
            else:
                self._away(member, now_ms)
        self._of_owner.pop(owner, None)

    def leave(self, name: str, client_id: str, keep_uid: int) -> None:
        """A session holds the group no more. What its client has it may still settle."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(client_id)
        if member is not None and not (keep_uid and member.uid == keep_uid):
            self._leave(member)

    def expire(self, now_ms: int) -> None:
        """End the sessions that have been away for too long."""
        for ending in self._endings.due(now_ms / 1e3):
            if not ending.is_over:  # a member may have been away twice in one millisecond
                self._over(ending.member)

    def next_deadline(self) -> float | None:
        """When `expire` is due, in s since the epoch; None = nobody is away."""
        return self._endings.next()

    # Messages

    def done(self, owner: C, member_id: int, positions: list[int]) -> None:
        """A member has settled messages; one that waits for another try is settled, too."""
        member = self._of_owner.get(owner, {}).get(member_id)
        if member is None:
            return
        group = member.group
        for position in positions:
            is_settled = self._settle_held(member, position)
            if not is_settled and position not in group.out and self._was_settled(group, position):
                # Told again: the log may have refused it the first time.
                self.news.place(SETTLED, group.name, position)
        self._end_leaving(member)

    def back(self, owner: C, member_id: int, positions: list[int]) -> None:
        """A member gives messages back, for others or a later time."""
        member = self._of_owner.get(owner, {}).get(member_id)
        if member is not None:
            self._give_back(member, positions)

    def unsent(self, member: ShareMember[C], positions: list[int]) -> None:
        """Messages that were handed out did not leave; the member is connected as it was then."""
        self._give_back(member, positions)
        self._make_room(member, len(positions))

    @property
    def is_full(self) -> bool:
        """Whether nothing more but what waits is handed out until something is settled."""
        return self.in_hand >= self.out_max

    def next_waiting(self, group: ShareGroup[C], count: int) -> list[int]:
        """Up to `count` positions that wait, the lowest first; they stay where they are."""
        found: list[int] = []
        while group.waiting and len(found) < count:
            position = heapq.heappop(group.waiting)
            if position in group.waits and (not found or found[-1] != position):
                found.append(position)
        for position in found:
            heapq.heappush(group.waiting, position)
        return found

    def give(
        self, group: ShareGroup[C], position: int, qos: int, can_take: Callable[[C], bool]
    ) -> ShareMember[C] | None:
        """Hand a message to the member whose turn it is; None = nobody has room. QoS 0 is settled by it."""
        member = self._next(group, can_take)
        if member is None:
            return None
        member.credit -= 1
        self.counts.given += 1
        self.counts.given_again += self._take_up(group, position)
        if not qos:
            return member
        is_taken = min(qos, member.qos) == 2
        self._put_out(member, position, is_taken)
        if is_taken:
            self.news.taken(group.name, member.client_id, position)
        return member

    def drop(self, group: ShareGroup[C], position: int, *, is_behind: bool = False) -> None:
        """A message that waits is wanted by nobody any more, or gone from the log."""
        if self._take_up(group, position):
            self.counts.behind += is_behind
            self._note_settled(group, position)

    # Inside

    def _next(self, group: ShareGroup[C], can_take: Callable[[C], bool]) -> ShareMember[C] | None:
        ready = group.ready
        for _ in range(len(ready)):
            member = ready[0]
            if member.owner is None or member.is_leaving or member.credit <= 0:
                ready.popleft()
                member.is_ready = False
                continue
            ready.rotate(-1)
            if can_take(member.owner):
                return member
        return None

    def _make_room(self, member: ShareMember[C], messages: int) -> None:
        if member.is_leaving or messages <= 0:
            return
        member.credit = min(member.credit + messages, CREDIT_MAX)
        if not member.is_ready:
            member.is_ready = True
            member.group.ready.append(member)
        self._wake(member.group)

    def _wake(self, group: ShareGroup[C]) -> None:
        if group.ready:
            self.woken[group.name] = group

    def _note(self, member: ShareMember[C]) -> None:
        self.news.add(
            HOLDS, member.group.name, member.client_id, member.uid, member.expiry_s, member.ended_ms
        )

    def _put_out(self, member: ShareMember[C], position: int, is_taken: bool) -> None:
        member.out[position] = is_taken
        member.group.out[position] = member
        self.in_hand += 1

    def _take_in(self, member: ShareMember[C], position: int) -> bool:
        """Forget that a member has a message; whether it was taken."""
        del member.group.out[position]
        self.in_hand -= 1
        return member.out.pop(position)

    def _take_up(self, group: ShareGroup[C], position: int) -> bool:
        """Have a message wait no longer; whether it did."""
        if position not in group.waits:
            return False
        group.waits.discard(position)
        self.in_hand -= 1
        return True

    def _put_back(self, group: ShareGroup[C], position: int) -> None:
        group.waits.add(position)
        heapq.heappush(group.waiting, position)
        self.in_hand += 1

    def _settle_held(self, member: ShareMember[C], position: int) -> bool:
        """A member settles what it has, what waits for a try, or had before the start; whether it did."""
        group = member.group
        if position in member.out:
            self._take_in(member, position)
        elif not (self._take_up(group, position) or self._is_found_later(group, position)):
            return False
        self.counts.settled += 1
        self._note_settled(group, position)
        return True

    def _is_found_later(self, group: ShareGroup[C], position: int) -> bool:
        """Whether the group has yet to look at a message that was given to a client before the start."""
        is_ahead = group.position <= position < self._restored_to
        return is_ahead and position not in group.out and position not in group.settled

    def _was_settled(self, group: ShareGroup[C], position: int) -> bool:
        return position < group.position or position in group.settled

    def _note_settled(self, group: ShareGroup[C], position: int) -> None:
        self.news.place(SETTLED, group.name, position)
        if position >= group.position:
            # A start looks at the log again from where a snapshot was: this one is not to be found anew.
            group.settled.add(position)

    def _return(self, member: ShareMember[C], position: int) -> None:
        group = member.group
        if self._take_in(member, position):
            self.news.place(WAITS, group.name, position)
        self.counts.returned += 1
        self._put_back(group, position)
        self._wake(group)

    def _give_back(self, member: ShareMember[C], positions: list[int]) -> None:
        for position in positions:
            if position in member.out:
                self._return(member, position)
        self._end_leaving(member)

    def _leave(self, member: ShareMember[C]) -> None:
        """A session holds its group no more; what its client has it may still settle."""
        if member.owner is None or not member.out:
            self._over(member)
            return
        member.is_leaving = True
        member.credit = 0
        member.group.leaving.add(member)
        self._unhold(member)

    def _disconnect(self, member: ShareMember[C]) -> None:
        """Nobody speaks for a member any more: what is not taken is for others."""
        owner = member.owner
        if owner is None:
            return
        group = member.group
        of_owner = self._of_owner.get(owner)
        if of_owner is not None and of_owner.get(member.member_id) is member:
            del of_owner[member.member_id]
        member.owner = None
        member.credit = 0
        if not member.is_leaving:
            group.online -= 1
        for position in [p for p, is_taken in member.out.items() if not is_taken]:
            self._return(member, position)

    def _away(self, member: ShareMember[C], now_ms: int) -> None:
        self._disconnect(member)
        member.ended_ms = max(1, now_ms)
        self._note(member)
        self._await_end(member)

    def _await_end(self, member: ShareMember[C]) -> None:
        if member.expiry_s != NEVER_EXPIRES_S:
            self._endings.push(member.ended_ms / 1e3 + member.expiry_s + LINGER_S, _Ending(member))

    def _over(self, member: ShareMember[C]) -> None:
        """A session is over, or has left with what it had: what is taken goes to nobody."""
        group = member.group
        self._disconnect(member)
        for position in list(member.out):
            self._take_in(member, position)
            self.counts.nobody += 1
            self._note_settled(group, position)
        if member.is_leaving:
            group.leaving.discard(member)
        else:
            self._unhold(member)

    def _unhold(self, member: ShareMember[C]) -> None:
        """One session less holds a group; with the last one it ends."""
        group = member.group
        if member.is_leaving:
            group.online -= 1
        self.members -= 1
        del group.members[member.client_id]
        self.news.add(LEAVES, group.name, member.client_id)
        if not group.members:
            self._end_group(group)

    def _end_leaving(self, member: ShareMember[C]) -> None:
        if member.is_leaving and not member.out:
            member.group.leaving.discard(member)
            self._disconnect(member)

    def _end_group(self, group: ShareGroup[C]) -> None:
        del self.groups[group.name]
        self.woken.pop(group.name, None)
        self.crowded.pop(group.name, None)
        for member in list(group.leaving):
            for position in list(member.out):
                self._take_in(member, position)
            self._end_leaving(member)
        self.in_hand -= len(group.waits)
        group.waits.clear()
        self.ended.append(group)
        self.news.add(ENDS, group.name)
