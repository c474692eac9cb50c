"""Where two logs part, by their epochs: each is written by one leader, so the same epochs are the same log.

Cutting to a confirmed offset instead loses records or keeps diverged ones (Kafka's KIP-101).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage.api.replication import Epoch


class CommonPrefix(NamedTuple):
    """What two logs have in common: its end, and how many epochs began in it."""

    end: int
    epochs: int


def common_prefix(own: Sequence[Epoch], own_end: int, other: Sequence[Epoch], end: int) -> CommonPrefix:
    """The longest prefix that two logs share, from their ascending epochs and their ends."""
    same = 0
    while same < len(own) and same < len(other) and own[same] == other[same]:
        same += 1
    if not same:
        return CommonPrefix(0, 0)
    own_stop = own[same].start if same < len(own) else own_end
    stop = other[same].start if same < len(other) else end
    return CommonPrefix(min(own_stop, stop, own_end, end), same)


def next_epoch(epochs: Sequence[Epoch], known: int) -> Epoch | None:
    """The first of `epochs` above `known`."""
    for epoch in epochs:
        if epoch.epoch > known:
            return epoch
    return None
