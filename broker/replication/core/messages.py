"""What replicas of a shard say to each other.

A copy begins with a hello, whose answer tells it where its log parts from the leader's. Then it fetches:
each fetch asks for bytes and acknowledges what the copy has. Both carry the number of the copy's
session, so that a fetch from before a restart or a cut counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage.api.replication import Epoch


class CopyHello(NamedTuple):
    """A copy's first words to a leader.

    `epoch`: the leader's, as the copy read it; `end`: behind the last byte that the copy would acknowledge;
    `confirmed`: what the copy knows to be confirmed; `is_whole` False: the copy may lack bytes that it has
    acknowledged before (its disk was emptied, or lost power under async); `format_level`: the highest
    that it can; `read_address`: where clients may read from it, "" = nowhere.
    """

    epoch: int
    store_id: bytes
    session: int
    epochs: Sequence[Epoch]
    end: int
    confirmed: int
    is_whole: bool
    format_level: int
    read_address: str = ""


class CopyWelcome(NamedTuple):
    """The leader's answer to a hello: its epochs, where its log begins, and what it has confirmed."""

    epoch: int
    store_id: bytes
    session: int
    epochs: Sequence[Epoch]
    first: int
    end: int


class CopyFetch(NamedTuple):
    """A copy asks for what follows `position` and acknowledges everything below `acknowledged`."""

    epoch: int
    session: int
    position: int
    acknowledged: int


class FetchGrant(NamedTuple):
    """What the leader answers to a fetch, before its bytes are read.

    The bytes are those of [position, limit), as far as one answer goes, and never across a segment's end.
    `is_whole`: the copy has everything that it can ever have acknowledged; `take_over`: the leader has
    stopped and asks the copy to lead; `first`: where the leader's log begins.
    """

    session: int
    position: int
    limit: int
    confirmed: int
    first: int
    is_whole: bool
    take_over: bool


class Refused(NamedTuple):
    """The answer of somebody who is not the leader of that epoch, or does not know the session any more.

    `epoch` is the highest that it knows, `leader` who leads in it ("" = it does not know). `needs`: the first
    release that can read what the shard's log may hold, said to a copy that cannot ("" = it can).
    """

    epoch: int
    leader: str
    needs: str = ""


class CopyQuestion(NamedTuple):
    """The founder of a shard asks a replica whether it has anything."""


class CopyReport(NamedTuple):
    """What a replica has: the end of its log and its epochs."""

    store_id: bytes
    end: int
    epochs: Sequence[Epoch]
