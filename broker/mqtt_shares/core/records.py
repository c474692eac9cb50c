"""What `%SHARE%` and its snapshot say of MQTT's share groups, and how a start puts them together again.

The body of a `%SHARE%` record is msgpack, an array of entries, done in their order::

    [0, group, log position]                              it begins there
    [1, group, client id, uid, expiry s, ended ms]        a session holds it; ended 0 = it is connected
    [2, group, client id]                                 that session holds it no more
    [3, group, client id, [log positions]]                QoS 2 messages that stay with a session
    [4, group, [log positions]]                           messages that wait to be handed out again
    [5, group, [log positions]]                           settled messages
    [6, group]                                            it is gone

The snapshot holds entries as JSON that make the same of nothing; those of records behind it may be done a
second time. What was at members with QoS 1 is in no record: what a snapshot has as handed out waits again,
and what lies behind its position is found again, but for what entries say was settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from reprlib import repr as shown
from typing import Any, Final, NamedTuple

import msgpack

from holdmq.errors import RecordError, WireError
from holdmq.wire.untrusted import unpack

SHARE_TOPIC: Final = "%SHARE%"
RECORD_BYTES: Final = 256 << 10
"""A record's body, about: below the smallest record_max_bytes."""
POSITIONS_PER_ENTRY: Final = 10_000

BEGINS: Final = 0
HOLDS: Final = 1
LEAVES: Final = 2
TAKEN: Final = 3
WAITS: Final = 4
SETTLED: Final = 5
ENDS: Final = 6

_FIELDS: Final[dict[int, tuple[type, ...]]] = {
    BEGINS: (int,),
    HOLDS: (str, int, int, int),
    LEAVES: (str,),
    TAKEN: (str, list),
    WAITS: (list,),
    SETTLED: (list,),
    ENDS: (),
}
Entry = list[Any]


class ShareNews:
    """What happened since the last record, in its order; what follows its like is one entry with it."""

    __slots__ = ("_entries", "_last")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._last: dict[str, Entry] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, kind: int, group: str, *fields: Any) -> None:
        """Add an entry without positions."""
        entry = [kind, group, *fields]
        self._entries.append(entry)
        self._last[group] = entry

    def taken(self, group: str, client_id: str, position: int) -> None:
        """A QoS 2 message stays with a session."""
        last = self._last.get(group)
        if (
            last is not None
            and last[0] == TAKEN
            and last[2] == client_id
            and len(last[3]) < POSITIONS_PER_ENTRY
        ):
            last[3].append(position)
        else:
            self.add(TAKEN, group, client_id, [position])

    def place(self, kind: int, group: str, position: int) -> None:
        """A message waits again (WAITS), or is settled (SETTLED)."""
        last = self._last.get(group)
        if last is not None and last[0] == kind and len(last[2]) < POSITIONS_PER_ENTRY:
            last[2].append(position)
        else:
            self.add(kind, group, [position])

    def extend(self, news: ShareNews) -> None:
        """Take all that `news` has."""
        self._entries += news._entries
        self._last.update(news._last)
        news._entries = []
        news._last = {}

    def bodies(self) -> Iterator[bytes]:
        """The bodies of the records that say all of it."""
        packed: list[bytes] = []
        size = 0
        for entry in self._entries:
            part: bytes = msgpack.packb(entry)
            if packed and size + len(part) > RECORD_BYTES:
                yield _array(packed)
                packed, size = [], 0
            packed.append(part)
            size += len(part)
        if packed:
            yield _array(packed)


def _array(packed: list[bytes]) -> bytes:
    head: bytes = msgpack.Packer().pack_array_header(len(packed))
    return head + b"".join(packed)


class Holder(NamedTuple):
    """A session that holds a group; `ended_ms` 0 = it was connected."""

    uid: int
    expiry_s: int
    ended_ms: int


class RestoredGroup:
    """A group as entries tell it: `settled` are positions that are not looked at again."""

    __slots__ = ("holders", "position", "settled", "taken", "waiting")

    def __init__(self, position: int) -> None:
        self.position = position
        self.holders: dict[str, Holder] = {}
        self.taken: dict[int, str] = {}
        self.waiting: set[int] = set()
        self.settled: set[int] = set()


class RestoredShares:
    """All groups as the snapshot and the log say them."""

    def __init__(self) -> None:
        self.groups: dict[str, RestoredGroup] = {}

    def apply_body(self, body: bytes) -> None:
        """Take a record's body; RecordError if it is none."""
        try:
            entries = unpack(body, f"a record of {SHARE_TOPIC}")
        except WireError as error:
            raise RecordError(str(error)) from None
        self.apply(entries)

    def apply(self, entries: Any) -> None:
        """Take entries in their order; RecordError if they are none."""
        if not isinstance(entries, list):
            raise RecordError(f"a record of {SHARE_TOPIC} holds no array")
        for entry in entries:
            _check(entry)
            kind, name, *fields = entry
            if kind == BEGINS:
                # A group of this name that is there is the same one: its end would be told before.
                self.groups.setdefault(name, RestoredGroup(fields[0]))
                continue
            if kind == ENDS:
                self.groups.pop(name, None)
                continue
            group = self.groups.get(name)
            if group is not None:
                _apply(group, kind, fields)


def _apply(group: RestoredGroup, kind: int, fields: list[Any]) -> None:
    if kind == HOLDS:
        group.holders[fields[0]] = Holder(*fields[1:4])
    elif kind == LEAVES:
        group.holders.pop(fields[0], None)
    elif kind == TAKEN:
        group.waiting.difference_update(fields[1])
        group.taken.update(dict.fromkeys(fields[1], fields[0]))
    else:
        for position in fields[0]:
            group.taken.pop(position, None)
        if kind == WAITS:
            group.waiting.update(fields[0])
        else:
            group.waiting.difference_update(fields[0])
            group.settled.update(position for position in fields[0] if position >= group.position)


def snapshot_entries(
    name: str,
    position: int,
    holders: Iterable[tuple[str, Holder]],
    taken: Iterable[tuple[str, list[int]]],
    waiting: list[int],
    settled: list[int],
) -> Iterator[Entry]:
    """The entries that make a group of nothing. `taken`: by client id, what stays with its session."""
    yield [BEGINS, name, position]
    for client_id, holder in holders:
        yield [HOLDS, name, client_id, *holder]
    for client_id, positions in taken:
        yield [TAKEN, name, client_id, positions]
    if waiting:
        yield [WAITS, name, waiting]
    if settled:
        yield [SETTLED, name, settled]


def _check(entry: Any) -> None:
    is_array = isinstance(entry, (list, tuple)) and len(entry) >= 2
    fields = _FIELDS.get(entry[0]) if is_array and isinstance(entry[0], int) else None
    if fields is None or not isinstance(entry[1], str) or len(entry) < 2 + len(fields):
        raise RecordError(f"an entry of {SHARE_TOPIC} is malformed: {shown(entry)}")
    for kind, value in zip(fields, entry[2:], strict=False):
        is_fit = isinstance(value, kind)
        if kind is list:
            is_fit = is_fit and all(isinstance(position, int) and position >= 0 for position in value)
        if not is_fit:
            raise RecordError(f"an entry of {SHARE_TOPIC} is malformed: {shown(entry)}")
