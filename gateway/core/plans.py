"""Plans: how the publishes of one connection to one topic become records, worked out once."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.producer import Target


class Plan:
    """`encode(body, born_ms)` makes the record; `packet_type` is its answer's, 0 for none.

    `is_delayed`: the log keeps the record until its time.
    """

    __slots__ = ("encode", "is_delayed", "packet_type", "target")

    def __init__(
        self,
        encode: Callable[[bytes, int], bytes],
        target: Target,
        packet_type: int,
        is_delayed: bool = False,
    ) -> None:
        self.encode = encode
        self.target = target
        self.packet_type = packet_type
        self.is_delayed = is_delayed
