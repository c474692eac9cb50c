"""What a connection to a broker is: one name for each thing that it does, from its role and its requests.

A connection may be several: an application that sends and consumes over one is a producer and a consumer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from holdmq.wire.reader_headers import BULK

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
GATEWAY: Final = "gateway"
SPARK: Final = "spark"
CONSOLE: Final = "console"
KINDS: Final = (PRODUCER, CONSUMER, GATEWAY, SPARK, CONSOLE)
"""`console`: the console, and commands of `holdmq`. One that has done nothing yet has no kind."""

_BY_ROLE: Final = {"gateway": GATEWAY, "spark": SPARK, "stats": SPARK, "console": CONSOLE}


def kinds_of(role: str, *, produces: bool, is_member: bool, reads: Collection[str]) -> list[str]:
    """The kinds of a connection, in the order of KINDS.

    `reads`: the kinds of holdmq.wire.reader_headers in which it reads for no group. A gateway sends and reads
    for its MQTT clients, the console and Spark for people: they are no producers and consumers by that, but
    Spark that writes is a producer.
    """
    own = _BY_ROLE.get(role)
    found = {own} if own else set()
    if BULK in reads:
        found.add(SPARK)
    is_application = own in (None, SPARK)
    if produces and is_application:
        found.add(PRODUCER)
    if is_member or (is_application and any(kind != BULK for kind in reads)):
        found.add(CONSUMER)
    return [kind for kind in KINDS if kind in found]
