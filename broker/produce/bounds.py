"""What messages must be to be taken, told to whoever may produce: in HELLO, and when it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.produce.core.least_size import LeastSize
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import BoundsChangedRequest, HelloRequest

_TOLD_ROLES: Final = frozenset(("client", "gateway", "console"))
"""Roles of HELLO that may produce, and take what a broker says by itself."""


class MessageBounds:
    """The least size of messages of one broker; `connections` are all, with what HELLO said of them."""

    def __init__(
        self,
        bytes_min: int,
        connections: Mapping[Connection, HelloRequest | None],
        now: Callable[[], float],
    ) -> None:
        self._least = LeastSize(bytes_min)
        self._connections = connections
        self._now = now

    @property
    def bytes_min(self) -> int:
        """What HELLO tells producers."""
        return self._least.bytes_min

    def enforced(self) -> int:
        """What is refused below, in bytes of the body; 0 = nothing."""
        return self._least.enforced(self._now())

    def reconfigure(self, bytes_min: int) -> None:
        """Tell everybody another least size; a higher one is enforced when all have had time to hear."""
        if bytes_min == self._least.bytes_min:
            return
        self._least.change(bytes_min, self._now())
        told = BoundsChangedRequest(bytes_min)
        for connection, hello in self._connections.items():
            if hello is not None and hello.role in _TOLD_ROLES:
                connection.send_one_way(RequestCode.BOUNDS_CHANGED, told)
