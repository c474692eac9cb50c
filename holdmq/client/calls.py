"""Calls to brokers that are made again until their deadline while it makes sense."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from holdmq.client.route import RouteTable
from holdmq.errors import BusyError, HoldMQError, RequestTimeout, TransportError
from holdmq.produce.pauses import pause_s
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import Buffer
from holdmq.wire.header import Header

ATTEMPT_S: Final = 5.0
"""How long one attempt waits for an answer: a broker that is silent so long is asked anew."""


async def call_until(
    routes: RouteTable,
    timeout_s: float,
    code: RequestCode,
    ask: Callable[[bool], tuple[str, Header]],
    body: Buffer = b"",
) -> Reply:
    """Call until it is answered, refused for good, or `timeout_s` is over; then the last error is raised.

    `ask` gives broker and header for each attempt; its argument says whether an earlier one may have
    taken effect. Errors that it raises count as refusals. Raises RequestTimeout, TransportError, RemoteError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    may_have_happened = False
    attempts = 0
    while True:
        left = deadline - loop.time()
        try:
            broker, header = ask(may_have_happened)
            client = routes.link(broker).client
            parts = [body] if len(body) else []
            return await client.call(code, header, max(0.001, min(left, ATTEMPT_S)), parts, len(body))
        except TransportError as error:
            may_have_happened = True
            last: HoldMQError = error
        except HoldMQError as error:
            if not error.retriable:
                raise
            last = error
            routes.refresh_soon()
        retry_after_ms = last.retry_after_ms if isinstance(last, BusyError) else 0
        wait_s = pause_s(attempts, retry_after_ms, random.random())  # noqa: S311 # jitter guards nothing
        attempts += 1
        if loop.time() + wait_s >= deadline:
            if isinstance(last, RequestTimeout):
                raise RequestTimeout(f"no answer within {timeout_s} s") from last
            raise last
        await asyncio.sleep(wait_s)
