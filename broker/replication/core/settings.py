"""The times and sizes of replication, with the reasons of their defaults."""

from __future__ import annotations

from typing import NamedTuple

from broker.replication.core.levels import LEVELS, FormatLevel


class ReplicaSettings(NamedTuple):
    """`min_in_sync`: members below which nothing is acknowledged.

    `ttl_s` is how long the lease of the lead lasts, `margin_s` how much earlier its holder stops to trust
    it, for clocks that differ in rate; it is renewed each `renew_s`. A member that is behind for `lag_s`
    leaves the set. A fetch with nothing to answer is held for `hold_s`; a call to a replica or the
    coordinator has an answer within `timeout_s` or counts as unanswered. The state is read each `read_s`,
    each `look_s` while there is nobody to follow, and at once when it is known to have changed. Members
    campaign `stagger_s` after each other, so that one of them is first. A switch-over is given up after
    `switch_s`. A leader that nobody follows leaves the lease to others for `offer_s` longer than that, which
    is how long they leave it to somebody who was asked to lead. `levels` are those that this release can
    read, ascending.
    """

    min_in_sync: int
    ttl_s: float = 9.0
    renew_s: float = 3.0
    margin_s: float = 2.0
    lag_s: float = 3.0
    hold_s: float = 0.5
    timeout_s: float = 2.0
    read_s: float = 1.0
    stagger_s: float = 0.2
    look_s: float = 0.05
    switch_s: float = 1.0
    offer_s: float = 1.5
    levels: tuple[FormatLevel, ...] = LEVELS

    @property
    def format_level(self) -> int:
        """The highest level that this release can."""
        return self.levels[-1].level
