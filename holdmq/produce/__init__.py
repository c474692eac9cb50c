"""What every producer does alike, whatever its window is: the body of a PRODUCE, pauses, what refusals mean.

Sans-IO. The windows differ because what they keep differs: that of the SDK (holdmq.client.lanes) is one per
queue, so that messages may leave for another broker; a gateway's (gateway.brokers) is one per broker, so that
thousands of queues cost one batch and one epoch.
"""

from __future__ import annotations

import secrets
from typing import Final

PRODUCE_MAX_BYTES: Final = 1 << 20
"""Records of one PRODUCE: large enough to fill a disk, small enough not to delay others."""


def new_producer_id() -> int:
    """An id that no producer before had: a broker's memory of another must never answer for this one."""
    return secrets.randbits(63)
