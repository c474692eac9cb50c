"""Whether a broker keeps sessions and retained messages, which are spread over those that have the tables.

A broker that gets the tables takes over a part of the keys of all others, but not their rows. So who joins a
cluster that has such rows goes without, for good; only while there is none at any keeper, as when a cluster
is founded, one more keeper takes nothing from anybody. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

KEEPERLESS_S: Final = 60.0
"""How long a broker that knows of keepers waits for one: registries that forgot all learn them in 30 s."""
COUNTS_S: Final = 10.0
"""How long is asked for what the keepers have; one that is away then may have something."""


class KeptCounts(NamedTuple):
    """Rows of a keeper."""

    sessions: int
    retained: int


class Keepers(NamedTuple):
    """The keepers of a cluster as its registries say, also those that are away, and what each has.

    `counts` None = it did not answer.
    """

    names: Collection[str]
    counts: Mapping[str, KeptCounts | None]


def may_keep(name: str, has_tables: bool, is_newcomer: bool, found: Keepers, waited_s: float) -> bool | None:
    """Whether the broker `name` is to have the tables; None = ask again.

    `has_tables`: its disk has them already. `is_newcomer`: it went without them before. `waited_s`: since
    a registry answered first.
    """
    if has_tables or name in found.names:
        # Its keys are hashed to it anyway: without its table they would wait for it for ever.
        return True
    if not found.names:
        return True if not is_newcomer or waited_s >= KEEPERLESS_S else None
    counts = [found.counts.get(keeper) for keeper in found.names]
    if any(count is not None and any(count) for count in counts):
        return False
    if any(count is None for count in counts):
        return False if waited_s >= COUNTS_S else None
    return True
