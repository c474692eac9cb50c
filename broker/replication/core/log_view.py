"""What a replica's core knows of its own log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage.api.replication import Epoch


class LogView(NamedTuple):
    """The log at one moment: positions never fall while it is open, except by a cut.

    `appended` is behind the last byte that the log was given, `written` is behind the last byte that
    the disk's cache has, `durable` behind the last that counts as acknowledged (fsynced under sync,
    else written); `confirmed` is what readers may see, `first` where the log begins. `is_whole` False:
    it may lack what it has acknowledged. `is_stuck`: a write has taken too long. `refused` counts records
    that were refused for want of copies.
    """

    store_id: bytes
    first: int
    appended: int
    written: int
    durable: int
    confirmed: int
    epochs: Sequence[Epoch]
    is_whole: bool
    is_stuck: bool = False
    refused: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way to the disk: only then is the log's end a fact to tell others."""
        return self.appended == self.durable

    @property
    def last_epoch(self) -> int:
        """The epoch that the log is in."""
        return self.epochs[-1].epoch
