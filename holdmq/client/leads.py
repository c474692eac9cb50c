"""The leader of each broker's copies, by the epochs in what registries answer. Sans-IO.

A broker's name may be that of several processes, its copies; one of them leads, and each lead has a higher
epoch than the one before. Registries differ for a while after a change: one that still names the old leader
is not believed by who knows the new one. Epoch 0 = the broker has no copies, and is where a registry says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from holdmq.wire.headers import BrokerRow

FAILOVER_S: Final = 30.0
"""How long a broker that has copies is waited for: a failover takes 11 s by default, and moves no key."""
LEAD_DOUBTED_S: Final = 60.0
"""How long a leader may be unreachable until registries that name an older one are believed: the epochs of a
coordinator that lost its state begin again."""


class Heard(NamedTuple):
    """What a registry's answer says of brokers: a row for each name, that of the highest epoch ever heard.

    `outdated`: names whose leader the registry does not know (yet); what it says of their topics is as old.
    """

    rows: dict[str, BrokerRow]
    outdated: frozenset[str]


class Leads:
    """The row of the highest epoch of every name; `forget` those that are gone."""

    def __init__(self) -> None:
        self._rows: dict[str, BrokerRow] = {}

    def hear(self, brokers: Iterable[BrokerRow], doubted: Collection[str] = ()) -> Heard:
        """Take a registry's answer; of a `doubted` name it is believed whatever its epoch."""
        rows: dict[str, BrokerRow] = {}
        for row in brokers:
            best = rows.get(row.broker)
            if best is None or (-row.epoch, row.broker_id) < (-best.epoch, best.broker_id):
                rows[row.broker] = row
        outdated: set[str] = set()
        for name, row in rows.items():
            known = self._rows.get(name)
            if known is not None and row.epoch < known.epoch and name not in doubted:
                rows[name] = known
                outdated.add(name)
            else:
                self._rows[name] = row
        return Heard(rows, frozenset(outdated))

    def newer(self, brokers: Iterable[BrokerRow]) -> dict[str, BrokerRow]:
        """Take of another registry's answer only what is newer: known names in a higher epoch."""
        found: dict[str, BrokerRow] = {}
        for row in brokers:
            known = self._rows.get(row.broker)
            if known is not None and row.epoch > known.epoch:
                self._rows[row.broker] = found[row.broker] = row
        return found

    @property
    def has_copies(self) -> bool:
        """Whether any broker has."""
        return any(row.epoch for row in self._rows.values())

    def epoch(self, broker: str) -> int:
        """The highest epoch heard of a name; 0 = none, or it has no copies."""
        row = self._rows.get(broker)
        return 0 if row is None else row.epoch

    def forget(self, broker: str) -> None:
        """The name is gone: whatever is heard of it next is news."""
        self._rows.pop(broker, None)
