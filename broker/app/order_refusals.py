"""Which requests a broker refuses whose engine has no log order, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from holdmq.errors import Code, RemoteError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode

LOG_ORDER_REQUESTS: Final = (
    RequestCode.READ_OPEN,
    RequestCode.READ_FILTER,
    RequestCode.READ,
    RequestCode.READ_CLOSE,
    RequestCode.READ_AT,
    RequestCode.SHARE_JOIN,
    RequestCode.SHARE_LEAVE,
    RequestCode.SHARE_SETTLE,
    RequestCode.SHARE_READ,
    RequestCode.SHARE_LIST,
)
"""Requests that name a position in the log of all queues, or whose answers follow from one."""


def refusals(engine: str) -> Mapping[RequestCode, OnRequest]:
    """Handlers that refuse what needs a log order, as a broker does that never knew these requests."""
    return {code: partial(_refuse, code, engine) for code in LOG_ORDER_REQUESTS}


def _refuse(code: RequestCode, engine: str, _request: Request) -> None:
    raise RemoteError(
        Code.UNKNOWN_REQUEST,
        f"{code.name} needs one order of all records, which the storage engine {engine!r} of this broker "
        "does not keep: read queue by queue (PULL)",
    )
