"""What a room offers whose rows every broker of a cluster is to have (`broker.joining`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol


class Taken(NamedTuple):
    """Names of rows that were taken, and why others could not be, "" = all were."""

    names: list[str]
    refused: str = ""


class SpreadTable(Protocol):
    """A table of which every broker is to have all rows. What is here already stays as it is."""

    @property
    def version(self) -> int:
        """Rises with every change of `names`."""

    def names(self) -> Collection[str]:
        """Rows that others are to have."""

    def settings_of(self, name: str) -> dict[str, Any] | None:
        """What others need to have such a row; None = it is not there."""

    def has(self, name: str) -> bool:
        """Whether there is such a row here, and others' is not wanted."""

    async def take(self, found: Mapping[str, Mapping[str, Any]]) -> Taken:
        """Have these rows, durably, but for those that are here by now. Raises HoldMQError: none is taken."""

    async def drop_unused(self, name: str) -> bool:
        """Have a row no more that was deleted elsewhere, if nobody misses it here; whether it went."""
