"""A broker whose engine has no log order refuses what needs one, and does the rest."""

from __future__ import annotations

from typing import Any

import pytest
from broker_stack import Start

from broker.app.order_refusals import LOG_ORDER_REQUESTS
from holdmq.errors import Code, RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty, PullQueue, ReadAtRequest, ReadOpenRequest, ReadPosition

REQUESTS: dict[RequestCode, Any] = {
    RequestCode.READ_OPEN: ReadOpenRequest(1, 0, None, []),
    RequestCode.READ_AT: ReadAtRequest(0),
}


@pytest.mark.parametrize("code", LOG_ORDER_REQUESTS)
async def test_what_needs_a_log_order_is_refused_by_name_where_there_is_none(
    start: Start, code: RequestCode
) -> None:
    broker = await start(has_log_order=False)
    with pytest.raises(
        RemoteError, match=rf"^UNKNOWN_REQUEST: {code.name} needs .*'{broker.store.engine}'"
    ) as refused:
        await broker.client.call(code, REQUESTS.get(code, Empty()))
    assert refused.value.code == Code.UNKNOWN_REQUEST
    assert not refused.value.retriable


async def test_without_a_log_order_queues_are_written_and_read(start: Start) -> None:
    broker = await start(has_log_order=False)
    await broker.create("t")
    assert (await broker.produce("t", 0, (b"a", None))).status == Code.OK
    _queues, found = await broker.pull(PullQueue("t", 0, 0, 0))
    assert found == [b"a"]


async def test_with_a_log_order_readers_open(start: Start) -> None:
    broker = await start()
    reply = await broker.client.call(RequestCode.READ_OPEN, REQUESTS[RequestCode.READ_OPEN])
    assert reply.header(ReadPosition).position == 0
