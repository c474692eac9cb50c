"""Whether a reader may be sent to a replica that does not lead.

A leader names the replica in its answer, and the reader goes on there, for a while; whatever the replica
cannot answer for certain is the leader's again. Offsets, leases and hand-outs always are.
"""

from __future__ import annotations

from enum import IntEnum


class ReplicaReads(IntEnum):
    """What a request says in `replica_reads`; in texts by these names in small letters."""

    NEVER = 0
    """The leader answers, wherever what is asked for lies: also what who knows nothing of this says."""
    ALLOW = 1
    """A replica may be named for what has left the leader's memory."""
    PREFER = 2
    """A replica is to be named for all that the log has, in memory or not."""

    @classmethod
    def of(cls, text: str) -> ReplicaReads:
        """Read `never`, `allow` or `prefer`; ValueError for anything else."""
        known = {each.name.lower(): each for each in cls}
        if text not in known:
            raise ValueError(f"{text!r} is not one of {', '.join(known)}")
        return known[text]
