"""Typed headers of what brokers ask each other when one joins a cluster."""

from __future__ import annotations

from holdmq.wire.header import Header, header


@header
class KeptCountsResponse(Header):
    """What a broker has of what belongs to one broker each: open and stored sessions, retained messages.

    It answers KEPT_COUNTS, which has no fields. `is_keeper`: it has the tables, and gets more of both.
    """

    is_keeper: bool
    sessions: int
    retained: int
