"""Registries that are asked: what one call leaves open, another one or the end closes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdmq.client import registries as module
from holdmq.client.registries import Registries
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty


async def test_a_call_that_is_cancelled_while_it_closes_what_it_tried_leaves_no_connection(
    registries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Client] = []
    closing = asyncio.Event()

    class SlowToClose(Client):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            made.append(self)

        async def close(self) -> None:
            closing.set()
            await asyncio.sleep(0.05)
            await super().close()

    monkeypatch.setattr(module, "Client", SlowToClose)
    asked = Registries(registries, "client", "me", "test")
    calls = [asyncio.create_task(asked.call(RequestCode.CLUSTER_GET, Empty())) for _ in range(2)]
    # The first answer's connection is kept; the other call closes its own, and is cancelled meanwhile.
    await closing.wait()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asked.close()
    assert [client.connection for client in made] == [None, None]
