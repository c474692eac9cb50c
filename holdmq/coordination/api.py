"""What replication needs of a coordinator: one register S and one leased key L for each shard.

S is who leads a shard in which epoch, and which replicas have all that is confirmed. Only a compare-and-set
on S makes an epoch. L is who may trust its clock: its holder alone hands out what leaves without a write. A
candidate holds L before it sets S; that order, and counting L's time from before a call was sent, is all that
the clocks of leaders need.

S as JSON, which operators may read, and never write while a replica runs::

    {"epoch": 7, "leader": "a", "in_sync": ["a", "b"], "format_level": 1, "confirmed": 5242880}
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Protocol

from holdmq.errors import ShardStateError

REPLICAS_MAX: Final = 32
"""Members of a shard: each gets every byte from the leader, so that a handful is usual."""
STATE_MAX_BYTES: Final = 16 << 10
"""A state as JSON: four times what REPLICAS_MAX names of full length take."""
_NUMBER_MAX: Final = (1 << 63) - 1
_REPLICA_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELDS: Final = frozenset({"epoch", "leader", "in_sync", "format_level", "confirmed"})
_OPTIONAL: Final = frozenset({"confirmed"})


def is_replica_id(text: str) -> bool:
    """Whether this can name a replica: 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit."""
    return _REPLICA_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ShardState:
    """S: who leads, and who has all that is confirmed.

    `epoch` (1 or more) rises with each new leader. `in_sync` are replica ids, at least one, each once; the
    leader of record may have left them. `format_level` is what all members can read. `confirmed` is a log
    position below which everything was confirmed when S was written: a lower bound, for people who weigh a
    loss.
    """

    epoch: int
    leader: str
    in_sync: tuple[str, ...]
    format_level: int
    confirmed: int = 0

    def encode(self) -> bytes:
        """Give it as JSON. Raises ShardStateError when it is no valid state."""
        fields = asdict(self)
        _refuse(_fault_of(fields), "a state that would be written")
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes | str, where: str = "the coordinator's state of a shard") -> ShardState:
        """Read what `encode` gave; `where` names the place in what is raised.

        Raises ShardStateError for all that is not exactly a state, fields of a newer version among it.
        """
        if len(data) > STATE_MAX_BYTES:
            raise ShardStateError(f"{where} has {len(data)} bytes, more than {STATE_MAX_BYTES}: {_REMEDY}")
        try:
            fields = json.loads(data, object_pairs_hook=_each_once)
        except (ValueError, RecursionError) as error:
            raise ShardStateError(f"{where} is no JSON of a state ({error}): {_REMEDY}") from None
        _refuse(_fault_of(fields), where)
        return cls(**{**fields, "in_sync": tuple(fields["in_sync"])})


class ShardSnapshot(NamedTuple):
    """S and L at one moment.

    `state` None = there is none: the shard was never founded, or the coordinator lost what it had; `version`
    is 0 then. A version is good for `compare_and_set` and for nothing else: it neither counts nor orders
    states. `holder` is the replica id that holds L, "" = nobody does.
    """

    state: ShardState | None
    version: int
    holder: str


class Coordinator(Protocol):
    """S and L of one shard, as one replica uses them.

    Each call has an end: it answers or raises CoordinatorError within the bound that the client was made with
    (`changed`: beside `wait_s`). CoordinatorError says that nobody knows whether the call took effect: read,
    then believe that. Calls may be under way at the same time, but only one of `hold` and `release`.
    """

    async def read(self) -> ShardSnapshot:
        """Give S and L, not older than the call: all that was answered to anybody before is in it.

        Raises ShardStateError when S is there and not understood.
        """
        ...

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        """Make S `state` if its version still is `version` (0: if there is none).

        Returns the new version; None = not done, and never will be: S has another version. After
        CoordinatorError it may be done, or yet become done as long as a read shows `version`. Raises
        ShardStateError when `state` is no valid one, or what is there cannot be told from damage.
        """
        ...

    async def hold(self, ttl_s: float) -> str | None:
        """Take or renew L for `ttl_s` (1 or more, the same each time).

        Returns the acquisition; None = somebody else holds L, an earlier process of this replica id among
        them. The time counts for the caller from before this call, for all others from when it arrived, so
        that they wait longer. While the acquisition is the same nobody else can have held L in between; a new
        one says that L was lost, and taken again.
        """
        ...

    async def release(self, acquisition: str) -> None:
        """Give L up, if it still is this acquisition: an old one's release never ends a newer one."""
        ...

    async def changed(self, seen: ShardSnapshot, wait_s: float) -> ShardSnapshot:
        """Wait until version or holder are not those of `seen`, at most `wait_s`, and give what they are.

        A change that was undone at once may go unseen.
        """
        ...

    async def close(self) -> None:
        """End connections; calls that are under way raise CoordinatorError. L stays until it expires."""
        ...


_REMEDY: Final = (
    "nothing was changed; if a newer version wrote it, upgrade this replica, otherwise find out who wrote "
    "it, and restore the coordinator's data from its backup"
)


def _refuse(fault: str | None, where: str) -> None:
    if fault is not None:
        raise ShardStateError(f"{where} {fault}: {_REMEDY}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _fault_of(fields: Any) -> str | None:
    """What is wrong with the fields of a state, as the end of a sentence; None if nothing is."""
    if not isinstance(fields, dict):
        return "is no JSON object"
    if unknown := sorted(fields.keys() - _FIELDS):
        return f"has a field that is not known here, {unknown[0][:64]!r}"
    if missing := sorted(_FIELDS - _OPTIONAL - fields.keys()):
        return f"has no field {missing[0]!r}"
    for name, least in (("epoch", 1), ("format_level", 0), ("confirmed", 0)):
        value = fields.get(name, 0)
        if type(value) is not int or not least <= value <= _NUMBER_MAX:
            return f"has {name} = {value!r:.64}, which is no whole number from {least} to 2^63 - 1"
    in_sync = fields["in_sync"]
    if not isinstance(in_sync, list | tuple) or not 1 <= len(in_sync) <= REPLICAS_MAX:
        return f"has no list of 1 to {REPLICAS_MAX} replica ids as in_sync"
    for replica_id in (fields["leader"], *in_sync):
        if not isinstance(replica_id, str) or not is_replica_id(replica_id):
            return f"names a replica {replica_id!r:.80}, which is no replica id"
    if len(set(in_sync)) != len(in_sync):
        return "names a replica twice in in_sync"
    return None
