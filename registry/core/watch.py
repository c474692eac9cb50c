"""Decides which of several registries tells of lost processes, and of which.

All registries hear of all processes. The one that runs for longest is on duty: it alone raises alarms, and
the others keep a copy of what it has raised, so that whoever follows tells nothing twice. What another
registry still sees is not lost. A registry that sees nobody any more cannot know whether all have died or it
is cut off: it says that, once, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from holdmq.alarms.core.alarms import AlarmKey, Reading
from registry.core.roster import ProcessKey, Roster

CANNOT_SEE: Final = "cannot_see"
SUFFIX: Final = "_lost"
NAMED_MAX: Final = 5
"""Processes that one sentence names."""

_TEXTS: Final = {
    "broker": "its queues take no messages and hand none out",
    "gateway": "its devices have to connect again, elsewhere",
    "spark": "nothing is counted, and what reads the job's tables sees the past",
    "registry": "with the last of them no broker and no topic can be found",
}


class Told(NamedTuple):
    """An alarm that was raised and told: since when, in ms since the epoch, and its text."""

    kind: str
    name: str
    since_ms: int
    text: str


class RegistryView(NamedTuple):
    """What a registry says: since when it runs (ms), its random id, whether it is on duty, whom it sees, and
    what it has told."""

    started_ms: int
    registry_id: bytes
    is_on_duty: bool
    present: frozenset[ProcessKey]
    told: Sequence[Told]


class ClusterWatch:
    """Decides for one registry. Times are seconds of a clock that never goes back.

    `lost_after_s`: how long a process must be gone, 0 = nobody is told; `forget_s`: after so long it is asked
    for no more.
    """

    def __init__(
        self,
        roster: Roster,
        own_id: bytes,
        started_ms: int,
        started_at: float,
        lost_after_s: float,
        forget_s: float,
    ) -> None:
        self.lost_after_s = lost_after_s
        self.forget_s = forget_s
        self.is_on_duty = False
        self.told: dict[tuple[str, str], Told] = {}
        """What the registry on duty has told, this one or another; before the first look what a file said."""
        self._roster = roster
        self._own = (started_ms, own_id)
        self._seen_at = started_at
        """When somebody came into sight: others need time until they are here, too."""
        self._is_blind = False
        self._peers: dict[str, float] = {}
        self._elsewhere: frozenset[ProcessKey] = frozenset()
        self._has_peers = False

    # What is heard

    def peer_left(self, address: str) -> None:
        """A registry said that it stops in order."""
        self._peers.pop(address, None)
        self._roster.forget(ProcessKey("registry", address))

    def peers_heard(self, views: Mapping[str, RegistryView | None], now: float) -> list[Told]:
        """Take what registries say, by address; None = no answer. Returns what others have told, and this one
        has to go on with: all of it when it comes on duty, then that of others who are as well."""
        answers = {
            address: view
            for address, view in views.items()
            if view is not None and view.registry_id != self._own[1]
        }
        for address in answers:
            self._peers[address] = now
            self._roster.forget(ProcessKey("registry", address))
        for address, heard_at in self._peers.items():
            if address not in answers:
                self._roster.lose(ProcessKey("registry", address), heard_at)
        others = {view.registry_id: view for view in answers.values()}
        self._elsewhere = frozenset[ProcessKey]().union(*(view.present for view in others.values()))
        self._has_peers = bool(others)
        was_on_duty = self.is_on_duty
        self.is_on_duty = all(self._own < (view.started_ms, view.registry_id) for view in others.values())
        theirs = {
            (one.kind, one.name): one for view in others.values() if view.is_on_duty for one in view.told
        }
        if not was_on_duty and any(view.is_on_duty for view in others.values()):
            self.told = theirs
        if not self.is_on_duty:
            return []
        taken = list((theirs if was_on_duty else self.told | theirs).values())
        for one in taken:
            if one.kind.endswith(SUFFIX):
                key = ProcessKey(one.kind.removesuffix(SUFFIX), one.name)
                self._roster.lose(key, now - self.lost_after_s)
        return taken

    # What is decided

    def readings(self, raised: Collection[tuple[str, str]], now: float) -> Iterator[Reading]:
        """Give what is to be told, of a registry on duty; `raised` are its alarms (kind, name)."""
        for key, since in list(self._roster.lost.items()):
            if now - since >= self.forget_s:
                self._roster.forget(key)
        if not self.lost_after_s:
            return
        lost = {key: at for key, at in self._roster.lost.items() if key not in self._elsewhere}
        untold = {key: at for key, at in lost.items() if (key.kind + SUFFIX, key.name) not in raised}
        ripe = [key for key, at in untold.items() if now - at >= self.lost_after_s]
        is_alone = not (self._roster.present or self._has_peers)
        if is_alone and len(untold) > 1 and ripe:
            self._is_blind = True
        elif self._is_blind and not is_alone:
            self._is_blind = False
            self._seen_at = now
        for key in lost:
            if key not in untold:
                yield _lost(key)
        if self._is_blind:
            yield _blind(sorted(untold))
        elif now - self._seen_at >= self.lost_after_s:
            for key in ripe:
                yield _lost(key)


def _lost(key: ProcessKey) -> Reading:
    text = (
        f"{key.kind} {key.name} is gone without a goodbye: it died, hangs, or is cut off; "
        f"{_TEXTS.get(key.kind, 'what it did is left undone')}"
    )
    return Reading(AlarmKey(key.kind + SUFFIX, key.name), 1, 1, text)


def _blind(lost: list[ProcessKey]) -> Reading:
    named = ", ".join(f"{key.kind} {key.name}" for key in lost[:NAMED_MAX])
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    text = (
        f"this registry sees none of the {len(lost)} processes that it knew: it is cut off, or all of them "
        f"have died: {named}{more}"
    )
    return Reading(AlarmKey(CANNOT_SEE, "cluster"), 1, 1, text)
