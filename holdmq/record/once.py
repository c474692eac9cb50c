"""What a QoS 2 publish of a persistent session is known by: the ONCE property of its record.

::

    ONCE 0x01 session uid/packet id/generation's epoch/its count/epoch/settled 0x02      numbers in hex

A *generation* tells publishes with one packet id apart: it is another, higher one after each PUBREL. The
queue's broker keeps the newest generation of every packet id, and a record whose generation is not higher is
the same publish, sent again. `epoch` is that of the session's connection: once a record of a newer one came,
those of older ones come too late. `settled`: nobody sends publishes of generations below (epoch, settled)
again; 0 = that is not known. Pure. Source: mqtt.md, Inbound QoS 2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Generation = tuple[int, int]
"""(epoch of the session in which it was begun, count from 1 within it); (0, 0) is before all of them."""

NO_GENERATION: Final[Generation] = (0, 0)
WILL_UID: Final = 1 << 63
"""The bit of what a will is known by; sessions' own numbers do not have it."""
ONCE_BYTES_MAX: Final = 128
"""A pair at its longest, rounded up."""

ONCE_KEY: Final = b"ONCE\x01"
"""How the pair begins."""


class Once(NamedTuple):
    """A publish as its broker knows it."""

    uid: int
    packet_id: int
    generation: Generation
    epoch: int
    settled: int

    def pair(self) -> bytes:
        """The property as records hold it."""
        begun, count = self.generation
        return b"ONCE\x01%x/%x/%x/%x/%x/%x\x02" % (
            self.uid,
            self.packet_id,
            begun,
            count,
            self.epoch,
            self.settled,
        )


def once_of(properties: bytes) -> Once | None:
    """What encoded properties say of their publish; None = it is not kept from being stored twice."""
    begin = properties.find(ONCE_KEY)
    if begin < 0 or (begin and properties[begin - 1] != 2):
        return None
    mqtt_at = properties.find(b"\0")
    end = properties.find(b"\2", begin)
    if end < 0 or 0 <= mqtt_at < end:
        return None
    try:
        numbers = [int(part, 16) for part in properties[begin + len(ONCE_KEY) : end].split(b"/")]
    except ValueError:
        return None
    if len(numbers) != 6 or min(numbers) < 0:
        return None
    uid, packet_id, begun, count, epoch, settled = numbers
    return Once(uid, packet_id, (begun, count), epoch, settled)
