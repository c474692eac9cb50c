"""What a leader reads of its copies for alarms, and a replica of its shard's lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from holdmq.alarms.core.alarms import AlarmKey, Reading

REPLICA_LAG: Final = "replica_lag"
COPIES_MISSING: Final = "copies_missing"
ONE_COPY_LEFT: Final = "one_copy_left"
NO_LEADER: Final = "no_leader"


class ShardCopies(NamedTuple):
    """A leader's view: the replicas that are configured, those in sync (itself too), and others' lag in s.

    A member that is silent is not in sync here, though the leader goes on waiting for it.
    """

    shard: str
    replicas: tuple[str, ...]
    in_sync: frozenset[str]
    behind_s: Mapping[str, float]


class KnowsCopies(Protocol):
    """Says what is known of the copies of a broker's shard."""

    def copies(self) -> ShardCopies | None:
        """Give them as their leader sees them now; None = there is one copy, or another replica leads."""

    @property
    def replica(self) -> str:
        """Which of the replicas this is; "" = there is one copy."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each replica, this one too, answers the others: host:port; empty = there is one copy."""


class OneCopy:
    """A shard of one copy: none lags, and none is missing."""

    replica = ""

    @property
    def addresses(self) -> Mapping[str, str]:
        return {}

    def copies(self) -> ShardCopies | None:
        return None


class CopyReadings:
    """Readings of the copies of one shard, of one lead.

    A copy lags from `lag_s` on; copies are missing when some have not been in sync for `missing_s`, which
    a restart takes less than. 0 = never.
    """

    def __init__(self, lag_s: int, missing_s: int) -> None:
        self._lag_s = lag_s
        self._missing_s = missing_s
        self._missing_since: float | None = None

    def reconfigure(self, lag_s: int, missing_s: int) -> None:
        """Take other thresholds; how long copies have been missing counts on."""
        self._lag_s = lag_s
        self._missing_s = missing_s

    def of(self, copies: ShardCopies, now: float) -> Iterator[Reading]:
        """Readings at `now`, of a clock in seconds that never goes back."""
        if self._lag_s:
            for replica, behind_s in copies.behind_s.items():
                text = (
                    f"replica {replica} of broker {copies.shard} is {behind_s:.0f} s behind its leader: its "
                    "disk, network or CPU is slower than what comes, or it is gone; holdmq replica list"
                )
                yield Reading(AlarmKey(REPLICA_LAG, replica), int(behind_s), self._lag_s, text)
        missing = [replica for replica in copies.replicas if replica not in copies.in_sync]
        if not missing:
            self._missing_since = None
            return
        if self._missing_since is None:
            self._missing_since = now
        names = ", ".join(missing)
        if self._missing_s and now - self._missing_since >= self._missing_s:
            text = (
                f"{len(missing)} of {len(copies.replicas)} replicas of broker {copies.shard} have not been "
                f"in sync for {now - self._missing_since:.0f} s: {names}; start them"
            )
            yield Reading(AlarmKey(COPIES_MISSING, copies.shard), len(missing), 1, text)
        if len(copies.in_sync) <= 1:
            text = (
                f"the leader of broker {copies.shard} has the only copy in sync: what comes now is lost with "
                f"its disk, or refused until there are min_in_sync; start {names}"
            )
            yield Reading(AlarmKey(ONE_COPY_LEFT, copies.shard), 1, 1, text)


def leaderless(shard: str, replica: str) -> Reading:
    """The reading of a replica that sees nobody lead."""
    text = (
        f"nobody leads broker {shard}, as far as replica {replica} can see: it takes no messages; holdmq "
        "replica list says which replicas are missing, and the replicas' logs if the coordinator is"
    )
    return Reading(AlarmKey(NO_LEADER, shard), 1, 1, text)
