"""What a broker's refusal of a run leaves behind: the same run again, sequences it counted, or none."""

from __future__ import annotations

from typing import Final

from holdmq.errors import CODES, Code

STALE_ROUTE: Final = frozenset((Code.QUEUE_UNKNOWN, Code.TOPIC_UNKNOWN))
"""The same queue again would not help: ask for the route anew. The broker counts no sequence of these."""
SURELY_NOT_STORED: Final = frozenset(
    (Code.OUT_OF_SEQUENCE, Code.STORE_FULL, Code.STORE_FAILED, Code.NOT_ENOUGH_REPLICAS)
)
"""Refusals after which the broker surely has not got the run. BUSY may be said before it looked."""

MAYBE_STORED: Final = frozenset((Code.NOT_LEADER,))
"""Refusals after which a copy may have the run: whoever leads next stores it, or the same run sent again."""


def is_sent_again(code: Code) -> bool:
    """Whether the sequences of a run stay free, so that the same run is sent again."""
    return CODES[code].retriable and code not in STALE_ROUTE


def leaves_gap(code: Code) -> bool:
    """Whether the broker has not counted the sequences of a run that is given up: a new epoch must follow."""
    return code in STALE_ROUTE or code == Code.PRODUCER_FENCED
